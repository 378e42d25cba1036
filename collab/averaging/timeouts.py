"""Every deadline of a round in one place."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTimeouts:
    """Seconds: what is not measured, or not yet.

    Measured are arrivals (``deadlines``), silences (``silence``), and what most members took (``laggards``).
    """

    open_s: float = 3.0
    """Opening a stream to a peer that is alive takes one round trip; 3 s is ten of the longest."""
    reply_s: float = 3.0
    """Answer to a small message."""
    gather_slack_s: float = 1.0
    """How much longer than announced a leader waits for a peer that said it is coming."""
    gather_limit_s: float = 60.0
    """Longest wait that a peer can announce; whoever needs longer misses the round."""
    part_s: float = 20.0
    """Silence on a stream of parts after which its other side is complained of."""
    pulse_s: float = 0.5
    """How often everybody in a round tells the leader that it is there, and the leader them."""
    alive_s: float = 5.0
    """The same on streams of parts that carry nothing else; four are lost before ``part_s``."""
    thanks_s: float = 0.5
    """For a member to show that it has the verdict; a round trip across the world, after which its stream is closed."""
    silence_s: float = 3.0
    """Without a sign of life somebody counts as gone, before it is known how long pauses are."""
    sender_s: float = 10.0
    """Silence of a contributor whose part is missing after which its reducer goes on without it; shorter than
    ``part_s``, so that the reducer names it before others take the reducer itself for dead, longer than ``pulse_s``."""
    stalled_s: float = 60.0
    """Time without anything of use from a side that says it is there; longer than any queue of a link fit to train."""
    blame_s: float = 1.0
    """How long a leader that heard of one failure listens to the other members before it judges."""
    reform_s: float = 180.0
    """Silence of most of those who decide after which the others go on without them. As long as this a partition may
    last without a split; and so long a swarm stands still that has lost most of its peers at one blow."""
    verdict_s: float = 10.0
    """How long a member in doubt asks the others before it gives the round up."""
