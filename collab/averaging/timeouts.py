"""Every deadline of a round in one place."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTimeouts:
    """Seconds. Fixed bounds of the first engine; measured rates and arrivals replace them."""

    open_s: float = 3.0
    """Opening a stream to a peer that is alive takes one round trip; 3 s is ten of the longest."""
    reply_s: float = 3.0
    """Answer to a small message."""
    gather_slack_s: float = 1.0
    """How much longer than announced a leader waits for a peer that said it is coming."""
    gather_limit_s: float = 60.0
    """Longest wait that a peer can announce; whoever needs longer misses the round."""
    part_s: float = 20.0
    """Silence on a stream of a round after which the other side counts as dead."""
    pulse_s: float = 5.0
    """How often leader and members tell each other that a long round goes on; four are lost before ``part_s``."""
    sender_s: float = 10.0
    """Silence of a contributor whose part is missing after which its reducer goes on without it; shorter than
    ``part_s``, so that the reducer names it before others take the reducer itself for dead, longer than ``pulse_s``."""
    stalled_s: float = 60.0
    """Time without anything of use from a side that says it is there; longer than any queue of a link fit to train."""
    blame_s: float = 1.0
    """How long a leader that heard of one failure listens to the other members before it judges."""
    finish_s: float = 20.0
    """Wait for the last reports after most have come, beyond as much time again as these took."""
    verdict_s: float = 10.0
    """How long a member in doubt asks the others before it gives the round up."""
