"""One key on two machines is told on both, and a peer's own words of any life are its own."""

import asyncio
from dataclasses import replace

from collab.metrics.records import Notice
from collab.ports import Ports
from collab.swarm.board import ProgressBoard
from collab.swarm.double import RESTART_S, TEXT
from collab.swarm.membership import Membership
from collab.swarm.progress import HEARTBEAT_S
from tests.fakes import FakeDirectory, FakeNetwork, FakeObserver, make_ports, run
from tests.swarm.people import PEOPLE, record

F = "f" * 64


class Machine:
    """A life of person 0 somewhere."""

    def __init__(self, network: FakeNetwork, directory: FakeDirectory, address: int) -> None:
        self.ports: Ports = make_ports(network.join(PEOPLE[address].peer_id), directory)
        board = ProgressBoard(self.ports, PEOPLE[0], F)
        self.membership = Membership(
            board, self.ports.clock, lambda: replace(record(0), said_at=self.ports.clock.now())
        )

    @property
    def told(self) -> list[str]:
        assert isinstance(self.ports.observer, FakeObserver)
        return [event.text for event in self.ports.observer.events if isinstance(event, Notice)]


def test_two_machines_with_one_key_both_say_so_once() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            directory = FakeDirectory()
            machines = [Machine(network, directory, number) for number in (0, 1)]
            for machine in machines:
                await machine.membership.report()
                network.run(machine.membership.keep_alive())
                await asyncio.sleep(HEARTBEAT_S / 3)
            await asyncio.sleep(RESTART_S + 10 * HEARTBEAT_S)
            assert [machine.told for machine in machines] == [[TEXT], [TEXT]]

    run(main())


def test_who_is_started_again_or_speaks_often_hears_nobody_but_itself() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            directory = FakeDirectory()
            before = Machine(network, directory, 0)
            await before.membership.report()
            await before.membership.report()
            now = Machine(network, directory, 1)
            await now.membership.report()
            network.run(now.membership.keep_alive())
            for _ in range(200):
                now.membership.speak()
                await asyncio.sleep(0.1)
            assert (before.told, now.told) == ([], [])

    run(main())


def test_a_board_beside_the_one_that_speaks_takes_its_words_for_nobody_else_s() -> None:
    """Whoever looks for a way past a router reads the swarm with a board of its own, for hours."""

    async def main() -> None:
        async with FakeNetwork() as network:
            directory = FakeDirectory()
            machine = Machine(network, directory, 0)
            looking = ProgressBoard(machine.ports, PEOPLE[0], F)
            network.run(machine.membership.keep_alive())
            for _ in range(4):
                await asyncio.sleep(RESTART_S)
                assert (await looking.refresh()).records
            assert machine.told == []

    run(main())
