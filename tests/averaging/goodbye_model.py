"""Two ballots of one instance whose leaders have heard different goodbyes: every interleaving.

The leader of each ballot excuses some electors that have said goodbye; what it has heard of is chosen before, and
whoever it excuses has closed its seat before its ballot begins. A promise and its arrival are one step, and so are a
vote and its arrival: one that is lost binds its elector and helps nobody. A proposer goes on with any quorum of what it
has heard. Electors of equal standing are sorted.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from collab.averaging.ballots import Electorate
from collab.types import PeerId

LOW, HIGH = 0, 1


class Seat(NamedTuple):
    """One elector."""

    is_closed: bool = False
    promised_low: bool = False
    promised_high: bool = False
    showed_vote: bool = False
    """Whether its answer to the higher ballot named its vote in the lower one."""
    voted_low: bool = False
    voted_high: bool = False


State: TypeAlias = tuple[tuple[Seat, ...], bool, str]
"""Seats; whether the lower ballot was put to the vote; what the higher one put to the vote: "", "low" or "own"."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Those of the product; each can be broken."""

    voters_are_excused: bool = False
    """Broken: who has voted in this very instance, and left, is excused there, too."""
    promisers_are_excused: bool = False
    """Broken: who has promised and not voted is."""


class Goodbyes:
    """See the module. ``excused``: by each ballot's leader, as places in the electorate."""

    def __init__(self, num_electors: int, excused: tuple[frozenset[int], frozenset[int]], rules: Rules) -> None:
        self.rules, self.excused = rules, excused
        places = range(num_electors)
        self.within = tuple(frozenset(places) - gone for gone in excused)
        self.electorates = tuple(Electorate(tuple(PeerId(str(i)) for i in sorted(some))) for some in self.within)
        self._pinned = {min(some) for some in self.within}
        self._kinds = [tuple(place in gone for gone in excused) for place in places]

    @property
    def kind(self) -> tuple[object, ...]:
        """Equal for models that differ by names alone."""
        first, second = (min(some) for some in self.within)
        others = sorted(kind for place, kind in enumerate(self._kinds) if place not in self._pinned)
        return self._kinds[first], self._kinds[second], first == second, tuple(others)

    def first(self) -> State:
        return (Seat(),) * len(self._kinds), False, ""

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        seats, low, high = state
        for place, seat in enumerate(seats):
            for label, after in self._elector_steps(place, seat, state):
                yield f"{label} at {place}", (self._sorted(seats, place, after), low, high)
        if not low and self._has_quorum(LOW, seats, lambda seat: seat.promised_low):
            yield "propose low", (seats, True, high)
        if not high and self._has_quorum(HIGH, seats, lambda seat: seat.promised_high):
            if self._has_quorum(HIGH, seats, lambda seat: seat.promised_high and not seat.showed_vote):
                yield "propose own", (seats, low, "own")
            if any(seat.showed_vote for seat in seats):
                yield "propose what was found", (seats, low, "low")

    def _elector_steps(self, place: int, seat: Seat, state: State) -> Iterator[tuple[str, Seat]]:
        seats, low, high = state
        if seat.is_closed:
            return
        has_promised = seat.promised_low or seat.promised_high
        has_voted = seat.voted_low or seat.voted_high
        is_free = (not has_promised or self.rules.promisers_are_excused) and not has_voted
        if any(place in gone for gone in self.excused) and (is_free or self.rules.voters_are_excused):
            yield "goodbye", seat._replace(is_closed=True)
        begun = [all(seats[gone].is_closed for gone in some) for some in self.excused]
        is_above = seat.promised_high or seat.voted_high
        if place in self.within[LOW] and not is_above:
            if begun[LOW] and not low and not seat.promised_low:
                yield "promise low", seat._replace(promised_low=True)
            if low and not seat.voted_low:
                yield "vote low", seat._replace(voted_low=True)
        if place in self.within[HIGH]:
            if begun[HIGH] and not high and not is_above:
                yield "promise high", seat._replace(promised_high=True, showed_vote=seat.voted_low)
            if high and not seat.voted_high:
                yield "vote high", seat._replace(voted_high=True)

    def fault(self, state: State) -> str | None:
        seats, _, high = state
        is_low = self._has_quorum(LOW, seats, lambda seat: seat.voted_low)
        if is_low and high == "own" and self._has_quorum(HIGH, seats, lambda seat: seat.voted_high):
            return f"two values decided: {self.electorates[LOW].members}, {self.electorates[HIGH].members}"
        return None

    def _has_quorum(self, ballot: int, seats: tuple[Seat, ...], did: Callable[[Seat], bool]) -> bool:
        voters = {PeerId(str(place)) for place in self.within[ballot] if did(seats[place])}
        return self.electorates[ballot].has_quorum(voters)

    def _sorted(self, seats: tuple[Seat, ...], place: int, after: Seat) -> tuple[Seat, ...]:
        changed = [*seats[:place], after, *seats[place + 1 :]]
        if place not in self._pinned:
            alike = [i for i, kind in enumerate(self._kinds) if kind == self._kinds[place] and i not in self._pinned]
            for i, seat in zip(alike, sorted(changed[i] for i in alike), strict=True):
                changed[i] = seat
        return tuple(changed)


def disjoint_quorums(num_electors: int) -> tuple[object, ...] | None:
    """Two quorums without a common elector, of all electorates that leaders may know; None: there are none.

    Whoever any leader excuses has never promised nor voted in the instance, so it is in no quorum of any ballot.
    """
    places = range(num_electors)
    subsets = [frozenset(c) for n in range(num_electors + 1) for c in itertools.combinations(places, n)]
    for gone in subsets[:-1]:
        quorums = dict[frozenset[int], frozenset[int]]()
        for excused in (some for some in subsets if some <= gone):
            electorate = Electorate(tuple(PeerId(str(place)) for place in places if place not in excused))
            for voters in (some for some in subsets if not some & gone):
                if electorate.has_quorum({PeerId(str(place)) for place in voters}):
                    quorums.setdefault(voters, excused)
        for one, other in itertools.combinations(quorums, 2):
            if not one & other:
                return gone, one, quorums[one], other, quorums[other]
    return None


def all_goodbyes(num_electors: int, rules: Rules) -> Iterator[Goodbyes]:
    """One for each way in which two leaders can have heard of goodbyes; somebody is left for both."""
    seen = set[tuple[object, ...]]()
    some = [frozenset(c) for n in range(num_electors) for c in itertools.combinations(range(num_electors), n)]
    for excused in itertools.product(some, some):
        model = Goodbyes(num_electors, excused, rules)
        if model.kind not in seen:
            seen.add(model.kind)
            yield model
