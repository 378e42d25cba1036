"""Who decides what follows a history, when some of those who should have not been heard of for very long.

As long as a majority of an electorate is there, nobody needs this. It is for a swarm that has lost most of its peers
at once, or had them started again, which do not know any more what they voted: without it the run would stand still for
ever. Safety then rests on time (``RoundTimeouts.reform_s``): a peer that is cut off for longer, and not dead, may come
back to a history that went on without it; it takes that over.

Who cannot see the backbones either, and has seen them, is more likely cut off than all that is left, and waits longer
(``orphaned_s``). So of two halves the one with the backbone goes on, and the other one finds what that did.

Each of those who decide looks for the missing itself, so that a leader that is wrong about time finds no quorum. A
newcomer cannot: of peers that it has never met it takes the word of a backbone that leads and that the run's owner has
named, and otherwise begins to look when it comes. Where nobody stays for long the run would never go on.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable

from collab.averaging.agreement import CommitRecord
from collab.averaging.assembly import Expected
from collab.averaging.ballots import Electorate
from collab.averaging.messages import Group
from collab.types import PeerId


def electorate_of(group: Group) -> Electorate:
    """Who decides about a round: as the history says, before the first step the members themselves."""
    return Electorate(group.electors or tuple(member.peer for member in group.members))


MOST_REMEMBERED = 4096
"""Of those who were in rounds; who was in none for longest is forgotten first."""


class Electors:
    """Who is excused from deciding, by what this peer has seen of them."""

    def __init__(self, reform_s: float, orphaned_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            clock: monotonic seconds.
        """
        self._reform_s, self._orphaned_s, self._clock = reform_s, orphaned_s, clock
        self._met_s: dict[PeerId, float] = {}
        """When the last group began that each was in with us, in that order."""

    def note_met(self, members: Iterable[PeerId], begun_s: float) -> None:
        """A group that we were in has come to a decision: its members were here, whatever their words in the directory
        said.

        Args:
            members: not of the record, which may be that of an earlier attempt, in which others were.
            begun_s: when they were here.
        """
        for peer in members:
            self._met_s.pop(peer, None)
            self._met_s[peer] = begun_s
        oldest_s = self._clock() - self._orphaned_s  # whom we have missed for longer is gone whatever we know of it
        while len(self._met_s) > MOST_REMEMBERED or next(iter(self._met_s.values()), math.inf) < oldest_s:
            del self._met_s[next(iter(self._met_s))]

    def of(self, maker: CommitRecord | None, expected: Expected) -> tuple[PeerId, ...]:
        """In the order of the record that made the history; empty when everybody may vote who is there.

        That is so before the first step, and when all who should decide are gone: others hold their state, or a
        checkpoint of it, and nobody else ever will go on from there.
        """
        if maker is None:
            return ()
        return tuple(peer for peer in maker.members if not self._is_excused(peer, expected, maker))

    def are_gone(self, members: Collection[PeerId], expected: Expected, leader: PeerId | None = None) -> bool:
        """Whether all who should decide are, for a member that looks for itself, as below."""
        return all(self._is_missed(peer, expected, None, leader) for peer in members)

    def is_gone(self, peer: PeerId, expected: Expected) -> bool:
        """Whether a peer said goodbye, or has not been heard of for very long."""
        return self._is_excused(peer, expected, None)

    def leaves_out_too_soon(
        self,
        named: Collection[PeerId],
        maker: CommitRecord,
        expected: Expected,
        leader: PeerId | None = None,
    ) -> tuple[PeerId, ...]:
        """Those whom a leader leaves out, and whom we have missed for less than half as long as it should have."""
        left_out = (peer for peer in maker.members if peer not in named)
        return tuple(peer for peer in left_out if not self._is_missed(peer, expected, maker, leader))

    def _is_missed(
        self, peer: PeerId, expected: Expected, maker: CommitRecord | None, leader: PeerId | None
    ) -> bool:
        """Whether a peer is excused for who looks for itself: half as long is enough.

        Of one that it has never met, in the directory or in a round, the word of the owner's backbone is, which leads:
        that has looked for it all the time. Not so for who has a reason for more patience than usual.
        """
        patience_s = self._patience_s(expected)
        if self._is_excused(peer, expected, maker, patience_s / 2):
            return True
        is_told = patience_s <= self._reform_s and leader is not None and expected.is_vouched(leader)
        has_met = expected.has_met(peer) or peer in self._met_s
        return is_told and peer not in expected.able and not has_met

    def _patience_s(self, expected: Expected) -> float:
        """How long somebody must be missed: as long as usual for those who are with most of the backbones.

        Not so while somebody is here who has gone on: what followed was decided, maybe by those who are missed, and is
        to be had. Somebody who only says so holds the others up for no longer than a backbone that is missed.
        """
        known = [
            peer
            for peer in sorted(expected.backbones)
            if peer in expected.present or expected.absent_s(peer) <= self._orphaned_s
        ]
        is_with_them = not known or Electorate(tuple(known)).has_quorum(expected.present)
        return self._reform_s if is_with_them and not expected.ahead else self._orphaned_s

    def _is_excused(
        self, peer: PeerId, expected: Expected, maker: CommitRecord | None, limit_s: float | None = None
    ) -> bool:
        """Whether what follows ``maker`` may be decided without a peer.

        One that has promised anything there was counted on by somebody, so its goodbye does not excuse it there: two
        quorums might have no other elector in common. Nor does a goodbye from before a round that it was in.
        """
        if peer in expected.able:
            return False
        goodbye = expected.left.get(peer)
        if goodbye is not None and (maker is None or maker.epoch < goodbye <= maker.epoch + 1):
            return True
        absent_s = min(expected.absent_s(peer), self._clock() - self._met_s.get(peer, -math.inf))
        return absent_s > (self._patience_s(expected) if limit_s is None else limit_s)
