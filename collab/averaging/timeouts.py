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
    """Time without a part from anybody after which a reducer goes on without those whose parts are missing; shorter
    than ``part_s``, so that the reducer names them before others take the reducer itself for dead."""
    blame_s: float = 1.0
    """How long a leader that heard of one failure listens to the other members before it judges."""
    finish_s: float = 20.0
    """Wait for the last reports after most have come, beyond as much time again as these took."""
    verdict_s: float = 10.0
    """How long a member in doubt asks the others before it gives the round up."""
