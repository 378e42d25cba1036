"""For how long peers have been looked for in vain, and which of them said goodbye.

A run goes on without most of those who decide when these have not been heard of for minutes. So it matters that *we*
have looked for them all the time: a peer that looks again after a long while, because it slept or had no reason to,
must not take everybody for long gone.
"""

from collections.abc import Callable, Collection, Mapping

from collab.averaging.assembly import Expected
from collab.swarm.progress import SwarmView
from collab.swarm.records import PeerState
from collab.types import Lineage, PeerId, Role

LONGEST_STEP_S = 10.0
"""Counted between two looks; whoever looks less often was frozen, and knows nothing of the time between."""
MOST_REMEMBERED, MOST_BACKBONES = 4096, 64
"""Peers; those that have been away for longest are forgotten first, and are missed anew when somebody asks for them."""


class Presence:
    """Fed with every look at the swarm."""

    def __init__(self, clock: Callable[[], float], is_vouched: Callable[[PeerId], bool] = lambda _: False) -> None:
        """
        Args:
            clock: monotonic seconds.
            is_vouched: whether the owner has named a peer as a backbone.
        """
        self._clock, self._is_vouched = clock, is_vouched
        self._looked_s: float | None = None
        self._looking_s = 0.0
        """For so long we have looked for peers, all in all."""
        self._seen_s: dict[PeerId, float] = {}
        """For how long we had when we saw each last with a seat; in that order."""
        self._asked_s: dict[PeerId, float] = {}
        """For how long we had when we were first asked for each of those that we never saw with one; in that order."""
        self._left: dict[PeerId, int] = {}
        self._backbones: set[PeerId] = set()
        self._era = ""

    @property
    def backbones(self) -> frozenset[PeerId]:
        """Those that we have ever seen and that said no goodbye, here or not."""
        return frozenset(self._backbones)

    @property
    def left(self) -> Mapping[PeerId, int]:
        """Peers that have said goodbye and were not seen with a seat since, and the first epoch about which each has
        promised nothing.
        """
        return dict(self._left)

    def looked(
        self,
        present: Collection[PeerId],
        left: Mapping[PeerId, int],
        backbones: Collection[PeerId] = (),
        seatless: Collection[PeerId] = (),
        era: str = "",
    ) -> None:
        """We have looked for everybody just now.

        Args:
            present: whose word is fresh.
            left: whose fresh word is a goodbye; as in ``left``.
            backbones: of those present.
            seatless: whose word is fresh, and who may not vote: as absent as its earlier life, and from now on at the
                latest; what that said in its goodbye holds.
            era: of the states that count; in another one epochs come again, about which no goodbye says anything.
        """
        if era != self._era:
            self._era = era
            self._left.clear()
        now_s = self._clock()
        self._looking_s += min(now_s - self._looked_s, LONGEST_STEP_S) if self._looked_s is not None else 0.0
        self._looked_s = now_s
        for peer in present:
            self._seen_s.pop(peer, None)
            self._seen_s[peer] = self._looking_s
            self._asked_s.pop(peer, None)
            self._left.pop(peer, None)
        for peer in seatless:
            self.absent_s(peer)
        self._left.update(left)
        self._backbones = (self._backbones | set(backbones)) - left.keys()
        self._backbones.difference_update(sorted(self._backbones, key=self.absent_s)[MOST_BACKBONES:])
        for known in (self._seen_s, self._asked_s, self._left):
            while len(known) > MOST_REMEMBERED:
                del known[next(iter(known))]

    def expected(self, view: SwarmView, epoch: int, lineage: Lineage) -> Expected:
        """Who should be in the group of (epoch, lineage), of those in ``view``.

        Trainers one epoch behind count, since their records may lag behind a step that they have taken; so do those
        ahead, since a group that the swarm has left behind must not find itself a majority.
        """
        trainers = frozenset(record.peer for record in view.all_trainers() if record.epoch >= epoch - 1)
        at_it, backbones = view.trainers(epoch, lineage), [r for r in view.records if r.role is Role.BACKBONE]
        gone_on = (r for r in (*view.all_trainers(), *backbones) if max(r.epoch, r.checkpoint_epoch) > epoch)
        return Expected(
            trainers=trainers,
            behind=frozenset(record.peer for record in view.all_trainers()) - trainers,
            syncing=frozenset(r.peer for r in view.records if r.state is PeerState.SYNCING and r.lineage),
            helpers=frozenset(record.peer for record in view.helpers()),
            left=self.left,
            absent_s=self.absent_s,
            backbones=self.backbones,
            seatless=frozenset(record.peer for record in (*at_it, *view.helpers()) if not record.has_seat),
            ahead=frozenset(record.peer for record in gone_on),
            has_met=self._seen_s.__contains__,
            is_vouched=self._is_vouched,
        )

    def absent_s(self, peer: PeerId) -> float:
        """Seconds for which we have looked for a peer in vain; for one never seen, since somebody first asked."""
        seen_s = self._seen_s.get(peer)
        return self._looking_s - (seen_s if seen_s is not None else self._asked_s.setdefault(peer, self._looking_s))
