"""What this peer's rounds leave open: what their encodings owe, and results of which nobody knows yet what became.

Whoever reduces for others takes part in several rounds at once, also in such as a stranger has invented. So each of
them has encodings of its own, and what they owe belongs to the history that the round has made: a round of another
history, or of another length, neither spends it nor adds to it. A contributor has one round at a time, of its own
leaders' and its own vector's length, and carries what it owes from any to the next.
"""

from collections import OrderedDict
from dataclasses import dataclass

from collab.averaging.agreement import CommitRecord
from collab.averaging.encodings import Encodings
from collab.averaging.holding import Holding
from collab.averaging.messages import Group
from collab.averaging.seats import REMEMBERED, Instance
from collab.errors import BadMessage
from collab.types import Lineage, PeerId

MOST_PARTS = 1 << 18
"""Of a round in a history that we do not know, which a stranger may have made up: each costs some 250 bytes before it
has come. The shortest parts are enough for 2 billion elements, usual ones for 4."""
HISTORIES = 4
"""Of which a helper knows what it owes: residuals are as large as the vector. One goes on, others end with a round."""
ROUND_IDS = 256
"""Remembered, so that messages of a round that is over are not taken for those of another."""


def check_length(group: Group, maker: CommitRecord | None) -> None:
    """Whether a round is of the run's vector; who brings none knows that from the round that made the history.

    Args:
        maker: that round, if we know it: the history's name is its digest, so no stranger can invent it.

    Raises:
        BadMessage: it has another length, or, where we do not know, so many parts that they take much memory.
    """
    length = group.num_elements
    if maker is not None and maker.num_elements != length:
        text = f"with {length} elements in a history of {maker.num_elements}"
        raise BadMessage(f"leader {group.leader} began {text}")
    if maker is None and length > MOST_PARTS * group.part_elements:
        raise BadMessage(f"leader {group.leader} began with {length} elements, in more than {MOST_PARTS} parts")


@dataclass(frozen=True, slots=True)
class _Entry:
    encodings: Encodings
    brings: bool


class Accounts:
    """One peer's open accounts."""

    def __init__(self, me: PeerId) -> None:
        self._me = me
        self._own = Encodings()
        self._owed: OrderedDict[Lineage, Encodings] = OrderedDict()
        """By the history whose next round pays it."""
        self._under_way: dict[str, _Entry] = {}
        self._newest: OrderedDict[str, _Entry] = OrderedDict()
        """Rounds that are over without a record that we know of, by id; of those that we brought something to one."""
        self._round_ids: OrderedDict[str, None] = OrderedDict()
        self._undecided: OrderedDict[Instance, Holding] = OrderedDict()

    def begin(self, group: Group, *, brings: bool) -> None:
        """A round begins, until ``end``.

        Args:
            brings: a vector, though it may not go into the mean.

        Raises:
            BadMessage: another round had this id.
        """
        if group.round_id in self._round_ids:
            raise BadMessage(f"leader {group.leader} begins a round with the round id of another, {group.round_id}")
        self._round_ids[group.round_id] = None
        while len(self._round_ids) > ROUND_IDS and next(iter(self._round_ids)) not in self._under_way:
            self._round_ids.popitem(last=False)
        if brings:
            for round_id in [round_id for round_id, entry in self._newest.items() if entry.brings]:
                del self._newest[round_id]
            encodings = self._own
        else:
            owed = self._owed.get(group.lineage)
            encodings = Encodings() if owed is None else owed.fork()
        self._under_way[group.round_id] = _Entry(encodings, brings)

    def encodings(self, group: Group) -> Encodings:
        """Of a round that has begun."""
        return self._under_way[group.round_id].encodings

    def end(self, group: Group) -> None:
        """The round is over for us; that it was decided we may hear later."""
        entry = self._under_way.pop(group.round_id, None)
        if entry is not None:
            self._newest[group.round_id] = entry
            while len(self._newest) > HISTORIES:
                self._newest.popitem(last=False)

    def settle(self, record: CommitRecord) -> None:
        """A round is history: what it lost is owed now, by us if it was ours."""
        owed = self._owed.pop(record.lineage, None)
        entry = self._under_way.get(record.round_id) or self._newest.pop(record.round_id, None)
        if entry is not None:
            entry.encodings.commit(sent=record.used_of(self._me), reduced=record.reduced_by(self._me))
            owed = None if entry.brings else entry.encodings.fork()
        if owed is not None:
            self._owed[record.next_lineage()] = owed
            while len(self._owed) > HISTORIES:
                self._owed.popitem(last=False)

    # -- results of which we do not know what became -------------------------------------------------------------------

    def keep(self, holding: Holding) -> None:
        """We have voted for this, and hold it. Of results that take memory the newest is kept."""
        if holding.mean is not None:
            self._drop_means()
        self._undecided[holding.record.epoch, holding.record.lineage] = holding
        while len(self._undecided) > REMEMBERED:
            self._undecided.popitem(last=False)

    def take(self, record: CommitRecord) -> Holding | None:
        """What we have kept of a round that was decided now; what else was kept for its history is void."""
        kept = self._undecided.pop((record.epoch, record.lineage), None)
        self._drop_means()
        return kept if kept is not None and kept.record == record else None

    def _drop_means(self) -> None:
        for instance in [instance for instance, kept in self._undecided.items() if kept.mean is not None]:
            del self._undecided[instance]
