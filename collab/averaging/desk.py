"""What a member's rounds have in common, and how one of them ends for it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from collab.averaging.certificates import Certified
from collab.averaging.seats import Seats
from collab.averaging.silence import Silence
from collab.averaging.timeouts import MeasuredTimeouts
from collab.averaging.verdicts import Verdicts
from collab.metrics.records import Phase
from collab.net.base import Stream
from collab.types import PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What a member's rounds have in common."""

    me: PeerId
    timeouts: MeasuredTimeouts
    silence: Silence
    """How long leaders may say nothing."""
    seats: Seats
    verdicts: Verdicts
    open: Callable[[PeerId, float], Awaitable[Stream]]
    """A stream to somebody who is to lead on, within so many seconds."""
    keep_stream: Callable[[Stream], None]
    """Takes a stream for the leader's next round."""
    reach: Callable[[Phase, int], None]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a round ended for one member."""

    certified: Certified | None
    """What was decided, proved; None: it was aborted."""
    reason: str = ""
    text: str = ""
