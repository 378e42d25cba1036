"""A peer whose downlink is slow, and known to be: the others do not wait until it has the result."""

from collab.averaging.assistant import Assistant
from collab.averaging.base import Committed
from collab.averaging.flow import Measured
from collab.averaging.round import RoundEngine
from collab.ports import Ports
from tests.simulation.rounds import SimRounds, link

NUM_FAST = 5


class Knowing(SimRounds):
    """Peers that know their links from the first round on."""

    def _engine(self, index: int, ports: Ports, assistant: Assistant) -> RoundEngine:
        engine, its = super()._engine(index, ports, assistant), self.links[index]
        measured = Measured(
            up_bytes_per_s=its.up_bytes_per_s,
            up_is_limit=True,
            down_bytes_per_s=its.down_bytes_per_s,
            down_is_limit=True,
        )
        engine.links.measured = lambda: measured  # type: ignore[method-assign]
        return engine


def test_a_slow_downlink_holds_the_others_up_for_no_longer_than_any_laggard() -> None:
    """The result alone takes it 16 s; without it a round takes less than one."""
    beside = Knowing(links=[*[link(25, 100)] * NUM_FAST, link(25, 0.5)], mb=1.0, rounds=3)
    beside.run()
    assert max(beside.seconds) < 6.0
    outcomes = [beside.outcomes[index, number] for index in range(NUM_FAST) for number in range(3)]
    assert all(isinstance(outcome, Committed) for outcome in outcomes)
    assert all(beside.caught_up[NUM_FAST, number] is not None for number in range(3))
