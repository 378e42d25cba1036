"""What a peer says to the person at its terminal, as far as they want to hear it."""

from peers.process import announce
from peers.screen import Style


def say(line: str, style: Style) -> None:
    """Say something that is no problem; who wants to hear of problems only does not hear it."""
    if style is not Style.QUIET:
        announce(line)
