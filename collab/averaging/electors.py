"""Who decides what follows a history, when some of those who should have not been heard of for very long.

As long as a majority of an electorate is there, nobody needs this. It is for a swarm that has lost most of its peers
at once: without it the run would stand still for ever. Safety then rests on time (``RoundTimeouts.reform_s``): a peer
that is cut off for longer, and not dead, may come back to a history that went on without it; it takes that over.
"""

from collections.abc import Callable

from collab.averaging.agreement import CommitRecord
from collab.averaging.assembly import Expected
from collab.averaging.ballots import Electorate
from collab.averaging.messages import Group
from collab.types import PeerId


def electorate_of(group: Group) -> Electorate:
    """Who decides about a round: as the history says, before the first step the members themselves."""
    return Electorate(group.electors or tuple(member.peer for member in group.members))


class Electors:
    """Remembers when each elector was last heard of."""

    def __init__(self, clock: Callable[[], float], reform_s: float) -> None:
        self._clock, self._reform_s = clock, reform_s
        self._seen_s: dict[PeerId, float] = {}
        self._left: set[PeerId] = set()

    def of(self, maker: CommitRecord | None, expected: Expected) -> tuple[PeerId, ...]:
        """In the order of the record that made the history; empty before the first step, when everybody may vote."""
        if maker is None:
            return ()
        return tuple(peer for peer in maker.members if not self.is_excused(peer, expected)) or maker.members

    def is_excused(self, peer: PeerId, expected: Expected) -> bool:
        """Whether a peer said goodbye, or has not been heard of for very long."""
        now_s = self._clock()
        if peer in expected.present:
            self._seen_s[peer] = now_s
            self._left.discard(peer)
            return False
        if peer in expected.left:
            self._left.add(peer)
        return peer in self._left or now_s - self._seen_s.setdefault(peer, now_s) > self._reform_s
