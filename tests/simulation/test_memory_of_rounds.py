"""What a round used is free when it is over, whatever went wrong in it, and not when the next garbage collection comes.

Vectors take megabytes, and Python collects its oldest objects after hundreds of rounds. So nothing of a round may hold
itself. An error that is kept does: its traceback holds all frames that it came through, and one of them keeps it.
"""

import gc
from collections.abc import Iterator
from types import FrameType

import pytest

from collab.averaging.exchange import Exchange
from tests.simulation.faulty_rounds import CAST, Fault, FaultyRounds
from tests.simulation.test_fault_matrix import ROUND, strike

ROOM = "collab.averaging"


class WatchedRounds(FaultyRounds):
    """Looks what is left of the rounds when they are over and everybody is still there."""

    def __init__(self, faults: list[Fault], *, bad_vector: int | None = None) -> None:
        super().__init__(faults, bad_vector=bad_vector)
        self.holders: list[str] = []
        """Of those who live, whoever still has the vectors of a round."""
        self.garbage: set[str] = set()
        """What of a round only a collection frees."""
        self._has_looked = False

    async def _together(self, index: int, number: int) -> None:
        await super()._together(index, number)
        if number < self.num_rounds or self._has_looked:
            return
        self._has_looked = True
        kept = [self._index[one.me] for one in gc.get_objects() if isinstance(one, Exchange)]
        self.holders = [CAST[peer] for peer in kept if self.world.peers[peer].is_alive]
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        self.garbage = {name for one in gc.garbage if (name := place_of(one)).startswith(ROOM)}
        gc.garbage.clear()


def place_of(one: object) -> str:
    """Where an object was made, or a frame runs."""
    if isinstance(one, FrameType):
        return f"{one.f_globals.get('__name__')}, line {one.f_lineno}"
    return f"{type(one).__module__}.{type(one).__qualname__}"


@pytest.fixture(autouse=True)
def _without_collections() -> Iterator[None]:
    gc.collect()
    gc.freeze()  # what is left of other tests does not count
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


CELLS = [
    (kind, role, moment)
    for kind in ("kill", "freeze", "cancel")
    for role in ("leader", "reducer", "sender")
    for moment in ("before BEGIN", "mid-send", "mid-return", "before commit")
]


@pytest.mark.parametrize(("kind", "role", "moment"), CELLS)
def test_nothing_of_a_round_in_which_somebody_was_struck_is_left(kind: str, role: str, moment: str) -> None:
    fault = strike(kind, role, moment)
    rounds = WatchedRounds([fault])
    rounds.run()
    assert rounds.fired == {fault}
    assert rounds.holders == []
    if kind != "kill":  # whose memory goes with its process, and here does not
        assert rounds.garbage == set()


@pytest.mark.parametrize(
    ("kind", "role", "message"),
    [
        ("nan", "sender", "part"),
        ("wrong length", "reducer", "result"),
        ("wrong group", "leader", "prepare"),
        ("corrupt", "sender", "done"),
        ("wrong length", "leader", "commit"),
    ],
)
def test_nothing_of_a_round_with_a_spoilt_message_is_left(kind: str, role: str, message: str) -> None:
    fault = Fault(ROUND, CAST.index(role), kind, message)
    rounds = WatchedRounds([fault])
    rounds.run()
    assert rounds.fired == {fault}
    assert rounds.holders == []
    assert rounds.garbage == set()


@pytest.mark.parametrize("role", ["leader", "sender"])
def test_nothing_of_a_round_with_numbers_that_are_not_finite_is_left(role: str) -> None:
    rounds = WatchedRounds([], bad_vector=CAST.index(role))
    rounds.run()
    assert rounds.holders == []
    assert rounds.garbage == set()


def test_nothing_of_a_round_without_a_quorum_is_left() -> None:
    faults = [Fault(ROUND, peer, "freeze", "part", nth=3) for peer in (1, 2, 3)]
    rounds = WatchedRounds(faults)
    rounds.run()
    assert rounds.holders == []
    assert rounds.garbage == set()
