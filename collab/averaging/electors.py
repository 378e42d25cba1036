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
        self._left: dict[PeerId, int] = {}
        """First epoch about which each has promised nothing."""

    def of(self, maker: CommitRecord | None, expected: Expected) -> tuple[PeerId, ...]:
        """In the order of the record that made the history; empty before the first step, when everybody may vote."""
        if maker is None:
            return ()
        excused = {peer for peer in maker.members if self._is_excused(peer, expected, maker.epoch + 1)}
        return tuple(peer for peer in maker.members if peer not in excused) or maker.members

    def is_gone(self, peer: PeerId, expected: Expected) -> bool:
        """Whether a peer said goodbye, or has not been heard of for very long."""
        return self._is_excused(peer, expected, None)

    def _is_excused(self, peer: PeerId, expected: Expected, epoch: int | None) -> bool:
        """Whether ``epoch`` may be decided without a peer. One that has promised anything there was counted on by
        somebody, so its goodbye does not excuse it there: two quorums might have no other elector in common.
        """
        now_s = self._clock()
        if peer in expected.present:
            self._seen_s[peer] = now_s
            self._left.pop(peer, None)
            return False
        if peer in expected.left:
            self._left[peer] = expected.left[peer]
        has_left = peer in self._left and (epoch is None or self._left[peer] <= epoch)
        return has_left or now_s - self._seen_s.setdefault(peer, now_s) > self._reform_s
