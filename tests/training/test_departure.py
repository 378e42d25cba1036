"""Whether a goodbye comes through."""

from types import SimpleNamespace
from typing import Any

import pytest

from collab.swarm.records import PeerState
from collab.training.departure import GOODBYES, Departure
from tests.fakes import FakeClock, run


class Membership:
    """Its word is heard when it has been said so often."""

    def __init__(self, heard_at: int) -> None:
        self.said, self._heard_at = 0, heard_at

    async def report(self) -> None:
        self.said += 1

    def is_heard(self) -> bool:
        return self.said >= self._heard_at

    def is_last_trainer(self) -> bool:
        return False


async def nothing() -> None:
    pass


@pytest.mark.parametrize(("heard_at", "said"), [(1, 1), (2, 2), (99, GOODBYES)])
def test_a_goodbye_that_nobody_has_taken_is_said_again(heard_at: int, said: int) -> None:
    membership, vitals = Membership(heard_at), SimpleNamespace(state=PeerState.TRAINING)
    parts: dict[str, Any] = {
        "ports": SimpleNamespace(clock=FakeClock()),
        "replica": None,
        "teller": SimpleNamespace(vitals=vitals, free_from=None),
        "membership": membership,
        "engine": SimpleNamespace(retire=lambda: 7),
        "copy": SimpleNamespace(save=nothing),
        "mandate": None,
    }
    run(Departure(**parts).leave(is_finished=False, is_urgent=False))
    assert vitals.state is PeerState.LEFT
    assert membership.said == said
