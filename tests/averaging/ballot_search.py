"""Breadth-first search through all states of a model, for the shortest way to one that must not be."""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from collab.errors import SplitDecision

S = TypeVar("S", bound=Hashable)


class Searchable(Protocol[S]):
    """What can be searched; states are equal when nothing that follows could tell them apart."""

    def first(self) -> S: ...

    def steps(self, state: S) -> Iterator[tuple[str, S]]: ...

    def fault(self, state: S) -> str | None: ...


@dataclass(frozen=True, kw_only=True)
class Found(Generic[S]):
    """What a search came to."""

    states: int
    transitions: int
    is_complete: bool
    """Whether every state that can be reached was looked at."""
    fault: str | None = None
    trace: tuple[str, ...] = ()
    """Steps to the fault, a shortest way."""
    reached: frozenset[str] = frozenset()
    """Which of the marks that were asked for occurred in some state."""


def search(
    model: Searchable[S],
    *,
    also: Callable[[S], str | None] = lambda _: None,
    marks: Callable[[S], frozenset[str]] = lambda _: frozenset(),
    max_states: int = 10**9,
) -> Found[S]:
    """Look at every reachable state until one has a fault.

    Args:
        model: what to search.
        also: a second property; the fault in words, or None.
        marks: things worth knowing that they happened, so that a search cannot pass by never getting anywhere.
        max_states: after which the search gives up.
    """
    first = model.first()
    origin: dict[S, tuple[str, S] | None] = {first: None}
    waiting, transitions, reached = [first], 0, marks(first)
    fault, where, last = None, first, ""

    def trace() -> tuple[str, ...]:
        labels, state = ([last] if last else []), where
        while (step := origin[state]) is not None:
            labels.append(step[0])
            state = step[1]
        return tuple(reversed(labels))

    while waiting and fault is None and len(origin) < max_states:
        following = []
        for state in waiting:
            where = state
            try:
                fault = model.fault(state) or also(state)
                if fault is not None:
                    break
                reached |= marks(state)
                for label, after in model.steps(state):
                    transitions += 1
                    if after not in origin:
                        origin[after] = (label, state)
                        following.append(after)
            except SplitDecision as error:
                fault, last = str(error), "an elector learns"
                break
        waiting = following
    is_complete = fault is None and not waiting
    found = trace() if fault is not None else ()
    return Found(
        states=len(origin),
        transitions=transitions,
        is_complete=is_complete,
        fault=fault,
        trace=found,
        reached=reached,
    )
