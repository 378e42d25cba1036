"""Whether the batch is there: heard from the leader, and from the directory when no leader hears us."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from collab.averaging.calls import NOT_COMING, Call, Reply
from collab.averaging.following import Following
from collab.averaging.settings import FixedTerms, RoundSettings
from collab.averaging.standing import STANDING_PROTOCOL, Standing, Word
from collab.averaging.timeouts import FIRST, MeasuredTimeouts
from collab.concurrency import Background
from collab.net.base import Entry, Stream
from collab.net.wire import Message
from collab.swarm.batch_watch import SHORTEST_WAIT_S, BatchWatch
from collab.swarm.board import ProgressBoard
from collab.swarm.membership import REPORT_S, Membership
from collab.swarm.progress import REFRESH_S, SwarmView
from collab.swarm.records import PeerRecord, pack_record
from collab.types import Lineage, PeerId
from tests.fakes import NOW, FakeDirectory, FakeNetwork, FakeTransport, make_ports, run
from tests.swarm.people import PEOPLE, record

F, L, LEADER, TARGET = "f" * 64, Lineage("l"), PeerId("leader"), 100
KEY = f"{F[:32]}.peers"


class Us:
    """Person 0, whose record the test sets, and the leader that it may stand with."""

    def __init__(self, network: FakeNetwork, ours: PeerRecord) -> None:
        self.directory, self.record, self.network = FakeDirectory(), ours, network
        ports = make_ports(network.join(PEOPLE[0].peer_id), self.directory)
        clock = ports.clock
        board = ProgressBoard(ports, PEOPLE[0], F)
        self.membership = Membership(board, clock, lambda: replace(self.record, said_at=clock.now()))
        self.leaders: list[PeerId] = []
        timeouts = MeasuredTimeouts(ports.clock.monotonic, FIRST)
        self.standing = Standing(ports, F, lambda lineage, epoch: self.leaders, self._attend, timeouts)
        self.watch = BatchWatch(self.membership, self.standing)

    def _attend(self, call: Call, leader: PeerId) -> Reply:
        if not self.membership.is_training_at(call.epoch, call.lineage):
            return NOT_COMING
        self.watch.note_call((call.epoch, call.lineage))
        return Reply(is_coming=True)

    async def find_leader(self) -> None:
        """And stand with it."""
        settings = RoundSettings(fingerprint=F, policy="exact", can_reduce=True, terms=FixedTerms(float(TARGET)))
        leading = make_ports(self.network.join(LEADER))
        await Following(leading, settings, MeasuredTimeouts(leading.clock.monotonic, FIRST), lambda: None).serve()
        self.leaders.append(LEADER)
        assert not await self.watch.has_reached(TARGET)
        await asyncio.sleep(1.0)
        assert self.standing.is_connected

    async def asks(self, samples: int) -> tuple[bool, float]:
        """After a microbatch that brought us to ``samples``: the answer, and how long it took."""
        self.record = replace(self.record, samples=samples)
        began_s = asyncio.get_running_loop().time()
        answer = await self.watch.has_reached(TARGET)
        return answer, asyncio.get_running_loop().time() - began_s


class Other:
    """Another trainer that stands with the leader."""

    def __init__(self, us: Us) -> None:
        self._transport: FakeTransport = us.network.join("other")

    async def says(self, samples: float, samples_per_s: float = 10.0, microbatch_s: float = 1.0) -> None:
        """Over a stream of its own each time; the last one counts."""
        stream = await self._transport.open(LEADER, STANDING_PROTOCOL, timeout_s=1.0)
        await stream.send(Message("stand", {"fingerprint": F}), timeout_s=1.0)
        await stream.send(Word(3, L, samples, samples_per_s, microbatch_s).to_message(), timeout_s=1.0)
        await asyncio.sleep(0.01)


def with_us(test: Callable[[Us], Awaitable[None]], **changes: Any) -> None:
    async def main() -> None:
        async with FakeNetwork() as network, Background() as tasks:
            us = Us(network, record(0, **changes))
            tasks.create_task(us.standing.run())
            tasks.create_task(us.membership.keep_alive())
            await test(us)

    run(main())


def test_without_a_leader_the_directory_tells() -> None:
    async def test(us: Us) -> None:
        other = record(1, samples=60)
        us.directory.table.setdefault(KEY, {})[other.peer] = Entry(pack_record(other, PEOPLE[1]), NOW + 100)
        await us.membership.report()
        assert await us.asks(30) == (False, 0.0)
        assert await us.asks(40) == (True, 0.0)
        assert not us.standing.is_connected

    with_us(test, samples_per_s=10.0, microbatch_s=1.0)


def test_when_nobody_leads_any_more_the_directory_tells() -> None:
    async def test(us: Us) -> None:
        await us.find_leader()
        us.network.leave(LEADER)
        us.leaders.clear()
        await us.asks(30)  # the word that shows that nobody leads any more
        await asyncio.sleep(2.0)
        assert not us.standing.is_connected
        other = record(1, samples=60)
        us.directory.table.setdefault(KEY, {})[other.peer] = Entry(pack_record(other, PEOPLE[1]), NOW + 100)
        await us.membership.report()
        assert await us.asks(40) == (True, 0.0)

    with_us(test, samples_per_s=10.0, microbatch_s=1.0)


def test_a_leader_that_says_nothing_to_our_words_is_not_waited_for() -> None:
    async def test(us: Us) -> None:
        async def freeze(stream: Stream) -> None:
            await asyncio.sleep(1e6)

        await us.network.join("frozen").serve(STANDING_PROTOCOL, freeze)
        us.leaders.append(PeerId("frozen"))
        other = record(1, samples=60)
        us.directory.table.setdefault(KEY, {})[other.peer] = Entry(pack_record(other, PEOPLE[1]), NOW + 100)
        await us.asks(30)
        await asyncio.sleep(1.0)
        assert us.standing.is_connected
        assert (await us.asks(40))[0] is False, "it may be about to call us"
        await asyncio.sleep(FIRST.silence_s)
        assert not us.standing.is_connected
        assert (await us.asks(40))[0] is True

    with_us(test, samples_per_s=10.0, microbatch_s=1.0)


def test_far_from_the_batch_the_answer_takes_no_time() -> None:
    async def test(us: Us) -> None:
        await us.find_leader()
        await Other(us).says(10)
        assert await us.asks(10) == (False, 0.0)
        await asyncio.sleep(1.0)
        assert await us.asks(20) == (False, 0.0)  # 4 s to go, a microbatch takes 1 s

    with_us(test, samples_per_s=10.0, microbatch_s=1.0)


@pytest.mark.parametrize(("left_s", "waits"), [(0.02, True), (0.4, True), (0.6, False)])
def test_we_wait_for_a_call_that_comes_within_half_a_microbatch_and_else_compute_on(left_s: float, waits: bool) -> None:
    """Both compute 10 samples in a second; the other one's microbatches end ``left_s`` after ours."""

    async def test(us: Us) -> None:
        await us.find_leader()
        other = Other(us)
        await other.says(30)
        await asyncio.sleep(1.0 - left_s - 0.01)
        assert await us.asks(40) == (False, 0.0)
        await asyncio.sleep(1.0)  # our microbatch; the other one has told of 40, unheard, and is at its last
        calling = asyncio.create_task(us.asks(50))
        await asyncio.sleep(left_s)
        assert calling.done() != waits
        await other.says(50)
        answer, seconds = await calling
        assert answer == waits
        assert seconds == pytest.approx(left_s if waits else 0.0, abs=0.02)
        assert (await us.asks(50))[0]  # called meanwhile, so there at the end of the next microbatch at the latest

    with_us(test, samples_per_s=10.0, microbatch_s=1.0)


def test_a_call_that_does_not_come_is_waited_for_half_a_microbatch_longer_than_predicted() -> None:
    async def test(us: Us) -> None:
        await us.find_leader()
        await Other(us).says(50)
        await asyncio.sleep(0.69)
        await us.asks(40)  # due in 0.3 s
        await asyncio.sleep(0.1)
        answer, seconds = await us.asks(40)
        assert not answer
        assert seconds == pytest.approx(0.2 + 0.5, abs=0.02)

    with_us(test, samples_per_s=10.0, microbatch_s=1.0)


def test_when_the_batch_is_overdue_and_nobody_calls_the_directory_tells() -> None:
    async def test(us: Us) -> None:
        await us.find_leader()
        other = record(1, samples=60)
        await Other(us).says(50)
        await us.asks(40)  # the leader does not know of the other one's last ten, and waits for it in vain
        await asyncio.sleep(1.0)
        us.directory.table.setdefault(KEY, {})[other.peer] = Entry(pack_record(other, PEOPLE[1]), NOW + 100)
        await us.membership.report()
        answer, seconds = await us.asks(40)
        assert answer
        assert seconds == pytest.approx(0.5, abs=0.02)

    with_us(test, samples_per_s=10.0, microbatch_s=1.0)


def test_while_a_late_leader_does_not_call_the_directory_is_read_as_rarely_as_anybody_speaks_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(us: Us) -> None:
        late: Any = SimpleNamespace(is_connected=True, due_s=-1.0, report=lambda _: None)
        watch = BatchWatch(us.membership, late)
        other = record(1, samples=50, samples_per_s=1000.0)
        us.directory.table.setdefault(KEY, {})[other.peer] = Entry(pack_record(other, PEOPLE[1]), NOW + 100)
        await us.membership.report()
        read_s, look = list[float](), us.membership.look

        async def looking(*, brief: bool = False) -> SwarmView:
            read_s.append(asyncio.get_running_loop().time())
            return await look(brief=brief)

        monkeypatch.setattr(us.membership, "look", looking)
        for _ in range(40):
            assert not await watch.has_reached(TARGET)
            await asyncio.sleep(0.02)
        lasted_s = read_s[-1] - read_s[0]
        assert lasted_s / REPORT_S - 1 <= len(read_s) <= lasted_s / REPORT_S + lasted_s / REFRESH_S + 2

    with_us(test, samples=40, samples_per_s=10.0, microbatch_s=0.02)


def test_with_quick_microbatches_a_call_has_time_for_its_round_trips() -> None:
    async def test(us: Us) -> None:
        await us.find_leader()
        await Other(us).says(59, 1000.0, 0.001)
        await us.asks(40)
        await asyncio.sleep(0.001)
        answer, seconds = await us.asks(40)
        assert not answer
        assert seconds == pytest.approx(SHORTEST_WAIT_S, abs=0.001)

    with_us(test, samples_per_s=1000.0, microbatch_s=0.001)


def test_once_called_we_come_after_the_microbatch_that_we_are_in() -> None:
    async def test(us: Us) -> None:
        await us.find_leader()
        await Other(us).says(95)
        await us.asks(5)
        await asyncio.sleep(0.01)
        assert await us.asks(8) == (True, 0.0)
        us.record = replace(us.record, epoch=4)
        assert await us.asks(0) == (False, 0.0)  # the call was to the round before

    with_us(test, samples_per_s=10.0, microbatch_s=1.0)


def test_with_a_leader_nobody_waits_for_the_directory() -> None:
    async def test(us: Us) -> None:
        await us.find_leader()
        await Other(us).says(10)
        us.directory.is_silent = True
        for samples in range(60):
            assert await us.asks(samples) == (False, 0.0)
            await asyncio.sleep(0.1)

    with_us(test, samples_per_s=10.0, microbatch_s=0.1)


def test_with_a_leader_the_directory_still_hears_of_us_beside_the_work() -> None:
    async def test(us: Us) -> None:
        await us.find_leader()
        stores = us.directory.stores
        for samples in range(50):
            await us.asks(samples)
            await asyncio.sleep(0.1)
        assert 5.0 / (2 * REPORT_S) - 1 <= us.directory.stores - stores <= 5.0 / REPORT_S + 1

    with_us(test, samples_per_s=10.0, microbatch_s=0.1)


def test_whoever_waits_for_samples_hears_a_call_once_for_each_history() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            us = Us(network, replace(record(0), epoch=3, lineage=L, samples=0))
            waiting = asyncio.create_task(us.watch.called())
            us.watch.note_call((3, L))
            await asyncio.sleep(0.1)
            assert not waiting.done(), "it has nothing to bring"
            us.record = replace(us.record, samples=8)
            us.watch.note_call((2, L))
            await asyncio.sleep(0.1)
            assert not waiting.done(), "that is not its history"
            us.watch.note_call((3, L))
            await asyncio.wait_for(waiting, 1.0)
            again = asyncio.create_task(us.watch.called())
            us.watch.note_call((3, L))
            await asyncio.sleep(0.1)
            assert not again.done(), "that call has been heeded"
            us.record = replace(us.record, epoch=4)
            us.watch.note_call((4, L))
            await asyncio.wait_for(again, 1.0)

    run(main())
