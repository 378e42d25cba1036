"""Two instances in a row: what the first decides names the electors of the second.

Every value of the first instance leads to a lineage with an instance of its own, which begins when somebody may know
that the value was decided. A peer restarts at most once. Its new life abstains wherever it may have voted before: in
the first instance, and in the instance of every lineage that was made before it restarted.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TypeAlias

from collab.types import PeerId
from tests.averaging.ballot_model import Model, State
from tests.averaging.ballot_states import Bounds

ChainState: TypeAlias = tuple[State, tuple[State, ...], frozenset[str]]
"""First instance; the second of each lineage; who has restarted."""


@dataclass(frozen=True, kw_only=True)
class Links:
    """What is enumerated, and which rules hold."""

    electors: tuple[str, ...]
    members: tuple[tuple[str, ...], ...]
    """Electors of the second instance, by the value of the first, one a ballot."""
    later_ballots: int = 1
    restarts: int = 0
    rules: Bounds = field(default_factory=Bounds)
    follows_votes: bool = False
    """A broken rule: peers go on from a value that was put to the vote, before it is decided."""


class Chain:
    """See the module."""

    def __init__(self, links: Links) -> None:
        self.links = links
        rules = replace(links.rules, learns=False, restarts=0)
        self.earlier = Model(
            replace(rules, ballots=len(links.members)),
            members=links.electors,
            values=tuple("abcdef"[: len(links.members)]),
        )
        later = replace(rules, ballots=links.later_ballots)
        self.later = tuple(Model(later, members=members) for members in links.members)
        models = (self.earlier, *self.later)
        self._steps = cache(lambda i, state: tuple(models[i].steps(state)))
        self._fault = cache(lambda i, state: models[i].fault(state))
        self._decided = cache(lambda i, state: models[i].decided(state))
        self._is_begun = cache(lambda i, state: models[i].is_begun(state))
        self.peers = sorted({*links.electors, *(peer for members in links.members for peer in members)})

    def first(self) -> ChainState:
        later = tuple(model.first() for model in self.later)
        return self.earlier.first(), later, frozenset()

    def steps(self, state: ChainState) -> Iterator[tuple[str, ChainState]]:
        earlier, later, restarted = state
        for label, after in self._steps(0, earlier):
            yield label, (after, later, restarted)
        for i in self._followed(earlier):
            for label, after in self._steps(i + 1, later[i]):
                yield f"after {self.earlier.own[i]}: {label}", (earlier, _put(later, i, after), restarted)
        if len(restarted) < self.links.restarts:
            for peer in self.peers:
                if peer not in restarted:
                    yield f"restart of {peer}", self._restart(state, PeerId(peer))

    def fault(self, state: ChainState) -> str | None:
        earlier, later, _ = state
        fault = next((f for f in map(self._fault, range(len(later) + 1), (earlier, *later)) if f is not None), None)
        if fault is not None:
            return fault
        if len(self.histories(state)) > 1:
            return f"two histories: {sorted(self.histories(state))}"
        decided = self._decided(0, earlier)
        begun = {own for i, own in enumerate(self.earlier.own) if self._is_begun(i + 1, later[i])}
        return f"lineages {sorted(begun)} go on after {sorted(decided)} was decided" if begun - decided else None

    def histories(self, state: ChainState) -> frozenset[str]:
        """Decisions of both instances, one after the other."""
        lineages = enumerate(zip(self.earlier.own, state[1], strict=True), start=1)
        return frozenset(f"{own} {value}" for i, (own, later) in lineages for value in self._decided(i, later))

    def _proposed(self, earlier: State) -> set[int]:
        values = {value for b in range(len(earlier[1])) for value in self.earlier.asked(earlier, b).values}
        return {self.earlier.own.index(value) for value in values if value is not None}

    def _followed(self, earlier: State) -> list[int]:
        if self.links.follows_votes:
            return sorted(self._proposed(earlier))
        return sorted(self.earlier.own.index(value) for value in self._decided(0, earlier))

    def _restart(self, state: ChainState, peer: PeerId) -> ChainState:
        earlier, later, restarted = state
        made = self._proposed(earlier)
        if peer in self.links.electors:
            earlier = self.earlier.restarted(earlier, peer)
        for i, members in enumerate(self.links.members):
            if peer in members:
                later = _put(later, i, self.later[i].restarted(later[i], peer, took_part=i not in made))
        return earlier, later, restarted | {peer}


def _put(states: tuple[State, ...], i: int, state: State) -> tuple[State, ...]:
    return (*states[:i], state, *states[i + 1 :])
