"""What leaves and comes on one stream is accounted, acknowledged and, when the stream ends, given up."""

import asyncio
import math
from collections.abc import Awaitable, Callable

import pytest

from collab.averaging.flow import ANSWER_S, HEAD_BYTES, PROMPT_BYTES, Inflow, Links, Outflow, Part, kept_alive
from collab.averaging.plan import MAX_RATE, MIN_RATE
from collab.averaging.timeouts import FIRST
from collab.averaging.uplink import FIRST_WINDOW_BYTES
from collab.errors import BadMessage, StreamClosed, TimedOut
from collab.net.base import Stream
from collab.net.wire import Message
from collab.swarm.bandwidth import Rate
from collab.types import PeerId
from tests.fakes import FakeNetwork, run

A, B = PeerId("a"), PeerId("b")
DATA = bytes(1000)


def part(index: int = 0, data: bytes = DATA) -> Part:
    return Part(kind="part", index=index, num_bytes=len(data), encode=lambda: data, order=float(index))


def make_links() -> Links:
    return Links(asyncio.get_running_loop().time)


async def is_silent(stream: Stream) -> bool:
    """Whether nothing more comes; closes the stream if so."""
    try:
        await stream.receive(timeout_s=1)
    except TimedOut:
        return True
    return False


def between(talk: Callable[[Stream, Stream], Awaitable[None]]) -> None:
    """Run ``talk`` with the two ends of a stream, ours first."""

    async def main() -> None:
        async with FakeNetwork() as network:
            theirs: asyncio.Future[Stream] = asyncio.get_running_loop().create_future()
            over = asyncio.Event()

            async def accept(stream: Stream) -> None:
                theirs.set_result(stream)
                await over.wait()

            await network.join(B).serve("parts", accept)
            ours = await network.join(A).open(B, "parts", timeout_s=1)
            await talk(ours, await theirs)
            over.set()

    run(main())


@pytest.mark.parametrize(("measured", "said"), [(1e-3, MIN_RATE), (5e4, 5e4), (1e13, MAX_RATE)])
def test_a_rate_measured_beyond_what_leaders_believe_is_said_as_the_nearest_they_do(
    measured: float, said: float
) -> None:
    async def main() -> None:
        links = make_links()
        links.uplink.believe(Rate(measured, is_limit=True), 100.0)
        links.downlink.believe(Rate(measured, is_limit=True), 100.0)
        rates = links.measured()
        assert (rates["up_bytes_per_s"], rates["down_bytes_per_s"]) == pytest.approx((said, said))

    run(main())


GOOD = {"bytes": 1000 + HEAD_BYTES, "delay_s": 0.1, "sent_s": 0.0}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("bytes", value) for value in (1001 + HEAD_BYTES, 2**62, -1, 1000.0, True, "1000", None)),
        *(("delay_s", value) for value in (math.nan, math.inf, -math.inf, "soon", None)),
        *(("sent_s", value) for value in (math.nan, math.inf, -math.inf, 1e9, "now", None)),
    ],
)
def test_an_acknowledgement_that_makes_no_sense_is_a_bad_message_and_changes_nothing(name: str, value: object) -> None:
    async def talk(ours: Stream, theirs: Stream) -> None:
        links = make_links()
        outflow = Outflow(ours, links)
        await outflow.send(part(), timeout_s=1)
        with pytest.raises(BadMessage):
            outflow.acknowledged(Message("ack", {**GOOD, name: value}))
        assert links.uplink.path(B).under_way_bytes == 1000 + HEAD_BYTES
        outflow.acknowledged(Message("ack", GOOD))
        assert not outflow.is_busy

    between(talk)


@pytest.mark.parametrize("kind", ["part", "round", "ready"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("sent_s", value) for value in (math.nan, math.inf, -math.inf, "now", None, True)),
        *(("queue_s", value) for value in (math.nan, math.inf, -1e-9, "long", None, True)),
    ],
)
def test_a_message_that_was_sent_at_no_time_is_a_bad_one(kind: str, name: str, value: object) -> None:
    async def talk(ours: Stream, theirs: Stream) -> None:
        links = make_links()
        links.downlink.begin()
        async with Inflow(theirs, links, timeout_s=1) as inflow:
            message = Message(kind, {"index": 0, "sent_s": 0.0, "queue_s": 0.0, name: value}, DATA)
            with pytest.raises(BadMessage):
                (inflow.took if kind == "part" else inflow.opened)(message)
        assert await is_silent(ours)
        links.downlink.end()
        assert links.downlink.rate() is None

    between(talk)


@pytest.mark.parametrize("count", [1, 2, 7, 300])
def test_everything_that_was_sent_is_acknowledged_in_the_end(count: int) -> None:
    async def talk(ours: Stream, theirs: Stream) -> None:
        links = make_links()
        outflow = Outflow(ours, links)

        async def send() -> None:
            for index in range(count):
                await outflow.send(part(index), timeout_s=1)

        async def take() -> None:
            async with Inflow(theirs, make_links(), timeout_s=1) as inflow:
                for index in range(count):
                    message = await theirs.receive(timeout_s=1)
                    assert (message.fields["index"], bytes(message.payload)) == (index, DATA)
                    inflow.took(message)

        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(send())
            tasks.create_task(take())
            while not sending.done() or outflow.is_busy:
                outflow.acknowledged(await ours.receive(timeout_s=1))
        assert links.uplink.path(B).under_way_bytes == 0
        assert await is_silent(ours)

    between(talk)


def test_an_acknowledgement_waits_a_moment_for_more_parts_and_counts_them_all() -> None:
    async def talk(ours: Stream, theirs: Stream) -> None:
        loop = asyncio.get_running_loop()
        async with Inflow(theirs, make_links(), timeout_s=1) as inflow:
            began_s = loop.time()
            for _ in range(3):
                inflow.took(Message("part", {"sent_s": began_s - 0.25, "queue_s": 0.0}, DATA))
            answer = await ours.receive(timeout_s=1)
            assert answer.fields["bytes"] == 3 * (1000 + HEAD_BYTES)
            assert answer.fields["delay_s"] == pytest.approx(0.25)
            assert loop.time() - began_s == pytest.approx(ANSWER_S)

    between(talk)


def test_the_message_that_opens_a_round_is_acknowledged_at_once_with_no_bytes() -> None:
    async def talk(ours: Stream, theirs: Stream) -> None:
        loop = asyncio.get_running_loop()
        links = make_links()
        async with Inflow(theirs, make_links(), timeout_s=1) as inflow:
            began_s = loop.time()
            inflow.opened(Message("round", {"round_id": "r", "sent_s": began_s - 0.25, "queue_s": 0.0}))
            answer = await ours.receive(timeout_s=1)
            assert loop.time() == began_s
        assert (answer.fields["bytes"], answer.fields["delay_s"]) == (0, pytest.approx(0.25))
        outflow = Outflow(ours, links)
        outflow.acknowledged(answer)
        assert not outflow.is_busy
        assert links.uplink.path(B).trip_s == pytest.approx(0.25)
        assert await is_silent(ours)

    between(talk)


def test_parts_say_how_long_they_wait_for_the_uplink_as_their_sender_believes() -> None:
    async def talk(ours: Stream, theirs: Stream) -> None:
        links = make_links()
        for name, queue_s in (("b", 0.2), ("c", 0.5)):  # both ways show a queue of 0.2 s at least
            path = links.uplink.path(PeerId(name))
            path.delay.add(0.0, 3.0)
            path.delay.add(0.0, 3.0 + queue_s)
        await Outflow(ours, links).send(part(), timeout_s=1)
        assert (await theirs.receive(timeout_s=1)).fields["queue_s"] == pytest.approx(0.2)

    between(talk)


def test_a_large_part_is_acknowledged_at_once() -> None:
    async def talk(ours: Stream, theirs: Stream) -> None:
        loop = asyncio.get_running_loop()
        async with Inflow(theirs, make_links(), timeout_s=1) as inflow:
            began_s = loop.time()
            inflow.took(Message("part", {"sent_s": began_s, "queue_s": 0.0}, bytes(PROMPT_BYTES)))
            answer = await ours.receive(timeout_s=1)
            assert answer.fields["bytes"] == PROMPT_BYTES + HEAD_BYTES
            assert loop.time() == began_s

    between(talk)


def test_what_was_taken_last_is_acknowledged_before_the_inflow_ends() -> None:
    async def talk(ours: Stream, theirs: Stream) -> None:
        async with Inflow(theirs, make_links(), timeout_s=1) as inflow:
            inflow.took(Message("part", {"sent_s": 0.0, "queue_s": 0.0}, DATA))
        assert (await ours.receive(timeout_s=1)).fields["bytes"] == 1000 + HEAD_BYTES

    between(talk)


def test_an_inflow_that_fails_ends_without_an_acknowledgement() -> None:
    async def talk(ours: Stream, theirs: Stream) -> None:
        async def fail() -> None:
            async with Inflow(theirs, make_links(), timeout_s=1) as inflow:
                inflow.took(Message("part", {"sent_s": 0.0, "queue_s": 0.0}, DATA))
                raise BadMessage("nonsense")

        with pytest.raises(BadMessage, match="nonsense"):
            await fail()
        assert await is_silent(ours)

    between(talk)


def test_a_stream_that_ended_gives_up_what_was_under_way_and_no_other_stream_s() -> None:
    async def talk(ours: Stream, theirs: Stream) -> None:
        links = make_links()
        first, second = Outflow(ours, links), Outflow(ours, links)
        await first.send(part(), timeout_s=1)
        await second.send(part(), timeout_s=1)
        first.settle()
        first.settle()
        assert not first.is_busy
        assert second.is_busy
        assert links.uplink.path(B).under_way_bytes == 1000 + HEAD_BYTES
        second.settle()
        assert links.uplink.path(B).under_way_bytes == 0

    between(talk)


def test_a_part_that_the_stream_did_not_take_is_given_up_with_it() -> None:
    async def talk(ours: Stream, theirs: Stream) -> None:
        links = make_links()
        outflow = Outflow(ours, links)
        theirs.close()
        with pytest.raises(StreamClosed):
            await outflow.send(part(), timeout_s=1)
        outflow.settle()
        assert links.uplink.path(B).under_way_bytes == 0

    between(talk)


def test_a_part_is_encoded_only_when_its_turn_has_come() -> None:
    async def talk(ours: Stream, theirs: Stream) -> None:
        links, encoded = make_links(), list[int]()
        outflow = Outflow(ours, links)
        await outflow.send(part(0, bytes(FIRST_WINDOW_BYTES)), timeout_s=1)

        def encode() -> bytes:
            encoded.append(1)
            return DATA

        late = Part(kind="part", index=1, num_bytes=1000, encode=encode, order=1.0)
        sending = asyncio.create_task(outflow.send(late, timeout_s=1))
        await asyncio.sleep(1.0)
        assert encoded == []
        outflow.acknowledged(Message("ack", {**GOOD, "bytes": FIRST_WINDOW_BYTES + HEAD_BYTES}))
        await sending
        assert encoded == [1]

    between(talk)


def test_what_is_reported_as_delay_is_arrival_by_one_clock_minus_departure_by_the_other() -> None:
    async def talk(ours: Stream, theirs: Stream) -> None:
        loop = asyncio.get_running_loop()
        here, there = Links(lambda: loop.time() + 1000.0), Links(lambda: loop.time() - 500.0)
        outflow = Outflow(ours, here)
        await outflow.send(part(), timeout_s=1)
        await asyncio.sleep(2.0)
        async with Inflow(theirs, there, timeout_s=1) as inflow:
            inflow.took(await theirs.receive(timeout_s=1))
        assert (await ours.receive(timeout_s=1)).fields["delay_s"] == pytest.approx(-1498.0)

    between(talk)


def test_a_stream_is_kept_alive_until_its_round_is_over_and_not_longer() -> None:
    async def talk(ours: Stream, theirs: Stream) -> None:
        loop = asyncio.get_running_loop()
        came_s = []
        async with kept_alive(ours, make_links().timeouts):
            for _ in range(3):
                assert (await theirs.receive(timeout_s=6)).kind == "wait"
                came_s.append(loop.time())
        assert came_s == [FIRST.alive_s * count for count in (1, 2, 3)]
        assert await is_silent(theirs)

    between(talk)


def test_a_stream_that_ends_while_it_is_kept_alive_troubles_nobody() -> None:
    async def talk(ours: Stream, theirs: Stream) -> None:
        theirs.close()
        async with kept_alive(ours, make_links().timeouts):
            await asyncio.sleep(60)

    between(talk)
