"""How often a backbone commits to its repository on the Hub, unless it was told."""

HUB_EVERY_MIN = 60.0
"""Minutes from one commit to the next, at least. A repository keeps all of them: of a model of 125 M parameters with
AdamW 1.5 GB each. Only who loses every disk, the trainers' as well, loses what came since the last one."""
