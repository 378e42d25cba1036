"""The guard at every entry: who asks too much is refused at once and counted, and nobody else notices."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from collab.errors import (
    BadCertificate,
    BadMessage,
    BadPart,
    NetworkError,
    StreamClosed,
    TimedOut,
    TooLarge,
    VersionMismatch,
)
from collab.metrics.records import PeerRefused
from collab.net.base import Barred, Stream
from collab.net.buckets import Pace
from collab.net.guard import ASKED_AGAIN_S, Guard, GuardedTransport
from collab.net.quotas import FOR_GUESTS, QUOTAS, Limits, Quota
from collab.net.wire import Message
from collab.ports import Entrance
from collab.types import PeerId
from tests.fakes import FakeClock, FakeNetwork, FakeObserver, FakeTransport, run

SERVER = PeerId("server")
QUOTA = Quota(open_streams=3, streams=Pace(burst=5, per_s=0.5), messages=Pace(burst=10, per_s=2.0))
ROOMY = Quota(open_streams=1000, streams=Pace(burst=1000, per_s=1000.0))
LIMITS = Limits(quotas={"talk": QUOTA, "roomy": ROOMY}, offences=Pace(burst=8, per_s=1.0), quiet_peers=20)


class Lab:
    """A guarded server, and visitors."""

    def __init__(self, network: FakeNetwork) -> None:
        self.network, self.observer, self.num_served = network, FakeObserver(), 0
        self.guard = Guard(FakeClock(), self.observer, LIMITS)
        self.server = GuardedTransport(network.join(SERVER), self.guard)

    async def serve(self, protocol: str, handler: Callable[[Stream], Awaitable[None]]) -> None:
        async def counting(stream: Stream) -> None:
            self.num_served += 1
            await handler(stream)

        await self.server.serve(protocol, counting)

    @property
    def refused(self) -> Counter[tuple[str, str]]:
        """How often whom, and why."""
        return Counter((e.peer, e.reason) for e in self.observer.events if isinstance(e, PeerRefused))


def in_lab(test: Callable[[Lab], Awaitable[None]]) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            await test(Lab(network))

    run(main())


async def swallow(stream: Stream) -> None:
    while True:
        await stream.receive(timeout_s=60)


async def visit(visitor: FakeTransport, protocol: str = "talk") -> Stream:
    stream = await visitor.open(SERVER, protocol, timeout_s=1)
    await asyncio.sleep(0.001)
    return stream


async def is_open(stream: Stream) -> bool:
    try:
        await stream.send(Message("word"), timeout_s=1)
        await asyncio.sleep(0.001)
        await stream.send(Message("word"), timeout_s=1)
    except StreamClosed:
        return False
    return True


def test_one_stream_too_many_is_refused_at_once_and_the_others_stay() -> None:
    async def test(lab: Lab) -> None:
        await lab.serve("talk", swallow)
        pushy, modest = lab.network.join("pushy"), lab.network.join("modest")
        streams = [await visit(pushy) for _ in range(4)]
        assert [await is_open(stream) for stream in streams] == [True, True, True, False]
        assert lab.num_served == 3
        assert await is_open(await visit(modest))
        assert lab.refused == {("pushy", "too_many_streams"): 1}
        streams[0].close()
        await asyncio.sleep(0.001)
        assert await is_open(await visit(pushy))

    in_lab(test)


def test_streams_that_follow_each_other_too_fast_are_refused_until_time_has_passed() -> None:
    async def test(lab: Lab) -> None:
        async def greet(stream: Stream) -> None:
            await stream.receive(timeout_s=1)

        await lab.serve("talk", greet)
        pushy = lab.network.join("pushy")
        for _ in range(7):
            stream = await visit(pushy)
            stream.close()
            await asyncio.sleep(0.001)
        assert lab.num_served == 5
        assert lab.refused == {("pushy", "streams_too_often"): 2}
        await asyncio.sleep(2.0)  # at half a stream a second
        (await visit(pushy)).close()
        assert lab.num_served == 6

    in_lab(test)


def test_small_messages_beyond_any_honest_number_end_the_stream_and_large_ones_do_not_count() -> None:
    async def test(lab: Lab) -> None:
        await lab.serve("talk", swallow)
        chatty, busy = await visit(lab.network.join("chatty")), await visit(lab.network.join("busy"))
        for _ in range(100):
            await busy.send(Message("part", payload=bytes(5000)), timeout_s=1)
        for _ in range(12):
            assert await is_open(chatty) or lab.refused
        assert await is_open(busy)
        assert lab.refused == {("chatty", "too_many_messages"): 1}
        again = await visit(lab.network.peers[PeerId("chatty")])
        assert not await is_open(again), "a new stream is no new allowance"

    in_lab(test)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (BadMessage("nonsense"), "bad_message"),
        (TooLarge("large"), "too_large"),
        (BadCertificate("not_signed", "forged"), "not_signed"),
        (VersionMismatch("old"), "version_mismatch"),
        (StreamClosed("gone"), ""),
        (TimedOut("late"), ""),
    ],
)
def test_what_ends_a_handler_is_counted_with_its_reason_and_what_is_nobodys_fault_is_not(
    error: NetworkError, reason: str
) -> None:
    async def test(lab: Lab) -> None:
        async def fail(stream: Stream) -> None:
            raise error

        await lab.serve("talk", fail)
        await visit(lab.network.join("odd"))
        assert lab.refused == ({("odd", reason): 1} if reason else {})

    in_lab(test)


def test_what_a_round_has_told_of_already_is_not_counted_twice() -> None:
    async def test(lab: Lab) -> None:
        def tell(peer: str) -> None:
            told = PeerRefused(at_s=0.0, epoch=3, peer=PeerId(peer), reason="not_finite", text="")
            lab.guard.observe(told)

        async def fail(stream: Stream) -> None:
            await stream.receive(timeout_s=1)
            tell(stream.remote)
            await asyncio.sleep(2.0)  # it is told why
            raise BadMessage("not finite")

        async def fail_later(stream: Stream) -> None:
            tell(stream.remote)
            await asyncio.sleep(60.0)
            raise BadMessage("something else")

        await lab.serve("talk", fail)
        await lab.serve("roomy", fail_later)
        odd = lab.network.join("odd")
        stream = await visit(odd)
        await stream.send(Message("part"), timeout_s=1)
        tell("somebody else")
        await asyncio.sleep(3.0)
        assert lab.refused == {("odd", "not_finite"): 1, ("somebody else", "not_finite"): 1}
        await visit(odd, "roomy")
        await asyncio.sleep(61.0)
        assert lab.refused["odd", "bad_message"] == 1, "one that comes long after is another offence"

    in_lab(test)


def test_a_peer_that_keeps_on_is_shut_out_for_a_while_and_heard_again() -> None:
    async def test(lab: Lab) -> None:
        async def fail(stream: Stream) -> None:
            raise BadMessage("nonsense")

        await lab.serve("roomy", fail)
        await lab.serve("talk", swallow)
        pushy, modest = lab.network.join("pushy"), lab.network.join("modest")
        for _ in range(20):
            await visit(pushy, "roomy")
        assert lab.num_served == 9, "eight are allowed for"
        assert lab.refused == {
            ("pushy", "bad_message"): 9,
            ("pushy", "shut_out"): 1 + 11,
        }
        assert not await is_open(await visit(pushy))
        assert await is_open(await visit(modest))
        await asyncio.sleep(LIMITS.shut_out_s)
        assert await is_open(await visit(pushy))

    in_lab(test)


@pytest.mark.parametrize("error", [BadMessage("not understood"), VersionMismatch("old")])
def test_a_peer_that_comes_again_every_second_is_refused_and_never_shut_out(error: NetworkError) -> None:
    async def test(lab: Lab) -> None:
        async def fail(stream: Stream) -> None:
            raise error

        await lab.serve("roomy", fail)
        for _ in range(300):
            await visit(lab.network.join("old"), "roomy")
            await asyncio.sleep(1.0)
        assert lab.num_served == 300
        assert lab.refused["old", "shut_out"] == 0

    in_lab(test)


def test_a_peer_of_another_version_is_never_shut_out_however_often_it_comes() -> None:
    async def test(lab: Lab) -> None:
        async def fail(stream: Stream) -> None:
            raise VersionMismatch("old")

        await lab.serve("roomy", fail)
        for _ in range(300):
            await visit(lab.network.join("old"), "roomy")
        assert lab.refused == {("old", "version_mismatch"): 300}

    in_lab(test)


def test_the_guard_remembers_few_quiet_peers_and_all_that_are_here() -> None:
    async def test(lab: Lab) -> None:
        await lab.serve("talk", swallow)
        here = [await visit(lab.network.join(f"here-{number}")) for number in range(30)]
        for number in range(200):
            (await visit(lab.network.join(f"passing-{number}"))).close()
            await asyncio.sleep(0.001)
            assert lab.guard.num_known <= 30 + LIMITS.quiet_peers + 1
        for stream in here:
            stream.close()
        await asyncio.sleep(0.001)
        assert lab.guard.num_known == LIMITS.quiet_peers

    in_lab(test)


def test_of_a_quiet_peer_nothing_is_remembered_when_it_may_do_everything_again() -> None:
    async def test(lab: Lab) -> None:
        await lab.serve("talk", swallow)
        for _ in range(30):
            await visit(lab.network.join("hostile"))
        assert ("hostile", "shut_out") in lab.refused
        for number in range(5):
            (await visit(lab.network.join(f"passing-{number}"))).close()
        await asyncio.sleep(LIMITS.refill_s() - 1.0)
        (await visit(lab.network.join("later"))).close()
        assert lab.guard.num_known == 7
        await asyncio.sleep(2.0)
        (await visit(lab.network.join("last"))).close()
        await asyncio.sleep(0.001)
        assert lab.guard.num_known == 3, "the last two, and one that has its streams open"

    assert LIMITS.refill_s() == 10.0
    in_lab(test)


def test_a_handler_of_ours_that_fails_is_counted_and_fails_still() -> None:
    async def main() -> None:
        observer = FakeObserver()
        guard = Guard(FakeClock(), observer, LIMITS)

        async def fail(stream: Stream) -> None:
            raise BadPart("not_finite", "nonsense")

        async def defect(stream: Stream) -> None:
            raise KeyError("defect")

        stream = SilentStream()
        with pytest.raises(BadPart):
            await guard.attend("talk", fail, stream)
        with pytest.raises(KeyError):
            await guard.attend("talk", defect, stream)
        reasons = [event.reason for event in observer.events if isinstance(event, PeerRefused)]
        assert reasons == ["not_finite", "handler_failed"]

    run(main())


class SilentStream:
    """Of somebody who says nothing."""

    remote = PeerId("odd")

    async def send(self, message: Message, *, timeout_s: float) -> None:
        """Nobody hears it."""

    async def receive(self, *, timeout_s: float) -> Message:
        raise StreamClosed("nothing comes")

    def close(self) -> None:
        """It is no stream."""


def test_streams_to_ourselves_are_not_counted() -> None:
    async def test(lab: Lab) -> None:
        await lab.serve("talk", swallow)
        for _ in range(50):
            await visit(lab.network.peers[SERVER])
        assert lab.num_served == 50
        assert lab.guard.num_known == 0

    in_lab(test)


class GuestsOnly:
    """A door that takes everybody for somebody who looks only."""

    is_closed = False

    def barred(self, peer: PeerId, credential: bytes) -> Barred:
        return Barred("guest", "a guest looks at the run, and takes no part")


async def answer(stream: Stream) -> None:
    while True:
        await stream.receive(timeout_s=4 * ASKED_AGAIN_S)
        await stream.send(Message("answer"), timeout_s=1)


def test_a_guest_may_look_for_as_long_as_it_likes_and_nothing_else() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            guard = Guard(FakeClock(), FakeObserver(), entrance=Entrance(door=GuestsOnly()))
            server, guest = GuardedTransport(network.join(SERVER), guard), network.join("guest")
            for protocol in QUOTAS:

                await server.serve(protocol, answer)
            streams = {protocol: await guest.open(SERVER, protocol, timeout_s=1) for protocol in QUOTAS}
            for stream in streams.values():
                await stream.send(Message("question"), timeout_s=1)
            heard = {protocol: (await stream.receive(timeout_s=1)).kind for protocol, stream in streams.items()}
            assert {protocol for protocol, kind in heard.items() if kind == "answer"} == set(FOR_GUESTS) & set(QUOTAS)
            assert set(heard.values()) == {"answer", "barred"}
            await asyncio.sleep(2 * ASKED_AGAIN_S)
            for protocol in set(FOR_GUESTS) & set(QUOTAS):
                await streams[protocol].send(Message("question"), timeout_s=1)
                assert (await streams[protocol].receive(timeout_s=1)).kind == "answer"

    run(main())
