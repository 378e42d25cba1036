"""Leases of few peers over one directory, moment by moment."""

import asyncio
import math
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

import pytest

from collab.data.blocks import BlockId, BlockPlan
from collab.data.coverage import Coverage
from collab.data.lease_board import LeaseBoard, Said
from collab.data.leases import Leases
from collab.data.ledger import Ledger
from collab.data.pace import KNOWN_S
from collab.data.surroundings import Surroundings
from collab.errors import NetworkError
from collab.ports import Ports
from collab.simulation.world import World
from collab.swarm.progress import SwarmView
from collab.swarm.records import PeerRecord, PeerState
from collab.types import PeerId, Role
from tests.fakes import NOW, FakeDirectory, FakeNetwork, make_ports, run

PLAN = BlockPlan.of(400 * 8, digest="a" * 32, seed=0, microbatch_size=8)


class SlowDirectory(FakeDirectory):
    """Storing takes time, too, so that claims meet."""

    async def store(self, *args: Any, **options: Any) -> bool:
        await asyncio.sleep(self.answers_after_s)
        return await super().store(*args, **options)


class Peer:
    """One peer's leases; it trains what it takes at once."""

    def __init__(self, name: str, network: FakeNetwork, directory: FakeDirectory, names: Sequence[str]) -> None:
        self.name, self.names = name, names
        self.coverage = Coverage(PLAN)
        self.data_passes = dict.fromkeys(names, 0)
        board = LeaseBoard(make_ports(network.join(name), directory), "f" * 64, PLAN)
        around = Surroundings(view=self.view, look=self.look, target_samples=64)
        self.ledger = Ledger(most_per_round=1000.0)
        self.leases = Leases(board, self.coverage, self.ledger, around)
        self.taken: list[BlockId] = []

    def view(self) -> SwarmView:
        return SwarmView(tuple(self.record(name) for name in sorted(self.names)), NOW)

    async def look(self) -> None:
        pass

    def record(self, name: str) -> PeerRecord:
        return PeerRecord(
            peer=PeerId(name), fingerprint="f", name=name, role=Role.TRAINER, state=PeerState.TRAINING, said_at=NOW,
            can_be_dialled=True, samples_per_s=8.0, data=PLAN.data, data_pass=self.data_passes[name],
        )  # fmt: skip

    async def take(self, number: int, pause_s: float = 0.0) -> None:
        for _ in range(number):
            self.taken.append(await self.leases.next_block())
            await asyncio.sleep(pause_s)


def with_peers(names: Sequence[str], main: Any, directory: FakeDirectory) -> None:
    async def everything() -> None:
        async with FakeNetwork() as network:
            peers = [Peer(name, network, directory, names) for name in names]
            tasks = [asyncio.create_task(peer.leases.run()) for peer in peers]
            try:
                await main(*peers)
            finally:
                for task in tasks:
                    task.cancel()
                with suppress(asyncio.CancelledError):
                    await asyncio.gather(*tasks)

    run(everything())


async def together(*work: Coroutine[Any, Any, None]) -> None:
    await asyncio.gather(*work)


@pytest.mark.parametrize("latency_s", [0.0, 0.05, 0.3])
def test_peers_that_claim_at_once_never_hold_the_same_block(latency_s: float) -> None:
    directory = SlowDirectory()
    directory.answers_after_s = latency_s

    async def main(*peers: Peer) -> None:
        await together(*(peer.take(40, pause_s=1.0) for peer in peers))
        taken = [block for peer in peers for block in peer.taken]
        assert len(taken) == len(set(taken)) == 160
        assert sum(peer.leases.unleased for peer in peers) == 0

    with_peers(["a", "b", "c", "d"], main, directory)


def test_at_the_end_of_a_pass_work_of_the_next_one_is_in_hand_and_nothing_is_trained_twice() -> None:
    directory = SlowDirectory()
    directory.answers_after_s = 0.5

    async def main(*peers: Peer) -> None:
        waits: list[float] = []

        async def train(peer: Peer) -> None:
            clock = asyncio.get_running_loop().time
            for _ in range(350):
                asked_s = clock()
                peer.taken.append(await peer.leases.next_block())
                waits.append(clock() - asked_s)
                await asyncio.sleep(1.0)
                peer.leases.done(peer.taken[-1])
                for other in peers:
                    other.ledger.note_round(f"{peer.name}{len(peer.taken)}", [(PeerId(peer.name), 8.0)], NOW + clock())

        await together(*(train(peer) for peer in peers))
        assert max(waits[20:]) < 0.1
        taken = [block for peer in peers for block in peer.taken]
        assert len(taken) == len(set(taken))
        assert {block.pass_number for block in taken} >= {0, 1}
        assert sum(peer.leases.unleased for peer in peers) == 0

    with_peers(["a", "b"], main, directory)


def test_two_that_want_the_last_block_do_not_both_take_it() -> None:
    directory = SlowDirectory()
    directory.answers_after_s = 0.05

    async def main(*peers: Peer) -> None:
        for peer in peers:
            for page in range(PLAN.num_pages):
                peer.coverage.note(0, page, PLAN.full_page(page) & ~(1 if page == 2 else 0))
        await together(*(peer.take(1) for peer in peers))
        first = [block for peer in peers for block in peer.taken if block.pass_number == 0]
        assert len(first) <= 1
        assert all(len(peer.taken) == 1 for peer in peers), "the other one begins the next pass"

    with_peers(["a", "b"], main, directory)


def test_without_a_directory_training_goes_on_with_blocks_that_should_be_ours() -> None:
    directory = FakeDirectory()
    directory.is_silent = True

    async def main(*peers: Peer) -> None:
        began_s = asyncio.get_running_loop().time()
        await together(*(peer.take(30) for peer in peers))
        assert asyncio.get_running_loop().time() - began_s < 10.0, "only the first claim was waited for"
        taken = [block for peer in peers for block in peer.taken]
        assert len(taken) == len(set(taken)) == 90, "the assignment parts them"
        assert all(peer.leases.unleased == 30 for peer in peers)
        directory.is_silent = False
        await asyncio.sleep(20.0)
        before = sum(peer.leases.unleased for peer in peers)
        await together(*(peer.take(5, pause_s=1.0) for peer in peers))
        assert sum(peer.leases.unleased for peer in peers) == before, "and leases come back with the directory"
        taken = [block for peer in peers for block in peer.taken]
        assert len(taken) == len(set(taken))

    with_peers(["a", "b", "c"], main, directory)


def test_a_directory_that_has_not_answered_is_not_waited_for_until_it_does() -> None:
    directory = FakeDirectory()

    async def main(peer: Peer) -> None:
        clock = asyncio.get_running_loop().time

        async def waits_s(number: int) -> list[float]:
            waits = []
            for _ in range(number):
                asked_s = clock()
                await peer.take(1)
                waits.append(clock() - asked_s)
                await asyncio.sleep(1.0)
                peer.ledger.note_round(f"{len(peer.taken)}", [(PeerId("a"), 8.0)], NOW + clock())
                peer.leases.done(peer.taken[-1])
            return waits

        await waits_s(5)
        directory.answers_after_s = math.inf
        waits = await waits_s(60)
        assert peer.leases.unleased > 20
        assert sum(waits) < 0.1
        directory.answers_after_s = 0.0
        await waits_s(20)
        before = peer.leases.unleased
        await waits_s(5)
        assert peer.leases.unleased == before, "and leases come back with it"

    with_peers(["a"], main, directory)


def test_leases_of_a_peer_that_is_gone_are_issued_again() -> None:
    directory = FakeDirectory()

    async def main(gone: Peer, other: Peer) -> None:
        await gone.take(3)
        held = set(gone.taken)
        other.names = ["b"]
        other.data_passes = {"b": 0}
        for _ in range(500):
            await other.take(1, pause_s=0.2)
            other.leases.done(other.taken[-1])
        assert held <= set(other.taken)

    with_peers(["a", "b"], main, directory)


def test_leases_that_are_given_back_are_free_at_once() -> None:
    directory = FakeDirectory()

    async def main(leaver: Peer, other: Peer) -> None:
        await leaver.take(1)
        await asyncio.sleep(5.0)
        await leaver.leases.close()
        said = [entry.value for key in directory.table for name, entry in directory.table[key].items() if name == "a"]
        assert said
        key = (0, leaver.taken[0].page)
        entries = await other.leases._board.read(key)
        assert entries[PeerId("a")].held == 0

    with_peers(["a", "b"], main, directory)


def test_one_liar_does_not_move_the_others_to_another_pass() -> None:
    directory = FakeDirectory()

    async def main(*peers: Peer) -> None:
        for peer in peers:
            peer.data_passes["liar"] = 10**6
        await asyncio.sleep(3.0)
        assert [peer.leases.newest for peer in peers[:3]] == [0, 0, 0]
        for peer in peers:
            peer.data_passes |= {"b": 2, "c": 2}
        await asyncio.sleep(3.0)
        assert peers[0].leases.newest == 2, "but most do"

    with_peers(["a", "b", "c", "liar"], main, directory)


def test_a_clock_that_is_put_back_a_little_takes_no_word_from_anybody() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            ports = make_ports(network.join("a"), FakeDirectory())
            board = LeaseBoard(ports, "f" * 64, PLAN)
            for held in (1, 2, 3):
                await board.say((0, 0), Said(held=held, trained=0, life_s=60.0))
                ports.clock.correct(-0.01)  # type: ignore[attr-defined]
            assert (await board.read((0, 0)))[PeerId("a")].held == 3

    run(main())


def test_a_clock_that_is_put_back_by_hours_does_not_keep_our_words_from_a_keeper_with_the_right_time() -> None:
    world = World(0)
    words: list[int] = []

    async def main(ports: Ports) -> None:
        board = LeaseBoard(ports, "f" * 64, PLAN)
        with suppress(NetworkError):
            await board.say((0, 0), Said(held=1, trained=0, life_s=60.0))
        world.peers[0].clock.error_s = 0.0
        for held in (2, 3):
            await board.say((0, 0), Said(held=held, trained=0, life_s=60.0))
            words.append((await board.read((0, 0)))[board.me].held)

    world.add_peer(main, clock_error_s=2 * 3600.0)
    with world:
        world.run(until_s=10.0)
    assert words == [2, 3]


def test_speeds_are_reckoned_when_somebody_has_said_something_or_a_round_has_committed_and_else_seldom() -> None:
    reckoned: list[float] = []

    async def main(peer: Peer) -> None:
        loop, rates, said = asyncio.get_running_loop(), peer.ledger.rates, [peer.view()]

        def noted(now_s: float) -> dict[PeerId, float]:
            reckoned.append(loop.time())
            return rates(now_s)

        await peer.take(1)
        peer.ledger.rates = noted  # type: ignore[method-assign]
        peer.view = lambda: said[0]  # type: ignore[method-assign]
        peer.leases._around = Surroundings(view=peer.view, look=peer.look, target_samples=64)
        await asyncio.sleep(1.5)
        reckoned.clear()
        await asyncio.sleep(20.0)
        assert not reckoned, "nobody has said anything"
        said[0] = SwarmView(said[0].records, NOW)
        await asyncio.sleep(1.1)
        assert len(reckoned) == 1, "a new word"
        peer.ledger.note_round("a round", [(PeerId("anna"), 8.0)], NOW)
        await asyncio.sleep(1.1)
        assert len(reckoned) == 2, "a round"
        await asyncio.sleep(20.0)
        assert len(reckoned) - 2 == 20.0 // KNOWN_S, "what it has shown fades"

    with_peers(["anna"], main, FakeDirectory())
