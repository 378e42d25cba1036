"""Strange helpers cost a newcomer little, and strange newcomers a helper."""

import asyncio

import pytest

from collab.averaging.probe import LARGEST_BYTES, LONGEST_S, PATIENCE_S, PROBE_PROTOCOL, SERVED_AT_ONCE
from collab.errors import StreamClosed
from collab.net.base import Handler, Stream
from collab.net.wire import Message
from collab.ports import Ports
from collab.types import PeerId
from tests.averaging.probe_lab import FAST, MBIT, ProbeLab, check, mbit, take_turns
from tests.simulation.rounds import link

READY = Message("ready", {"up_bytes_per_s": 1000 * MBIT, "down_bytes_per_s": 1000 * MBIT})


@pytest.fixture(autouse=True)
def fair_links(monkeypatch: pytest.MonkeyPatch) -> None:
    take_turns(monkeypatch)


async def is_busy(stream: Stream) -> None:
    await stream.receive(timeout_s=10)
    await stream.send(Message("busy"), timeout_s=10)


async def never_acknowledges(stream: Stream) -> None:
    await stream.receive(timeout_s=10)
    await stream.send(READY, timeout_s=10)
    await asyncio.sleep(1e3)


async def never_ends(stream: Stream) -> None:
    await stream.receive(timeout_s=10)
    await stream.send(READY, timeout_s=10)
    while True:
        await stream.send(Message("ack", {"bytes": 0, "delay_s": 0.0, "sent_s": 0.0}), timeout_s=10)
        await asyncio.sleep(0.01)


async def claims_more(stream: Stream) -> None:
    await stream.receive(timeout_s=10)
    await stream.send(READY, timeout_s=10)
    message = await stream.receive(timeout_s=10)
    fields = {"bytes": LARGEST_BYTES, "delay_s": 0.0, "sent_s": message.get("sent_s", float)}
    await stream.send(Message("ack", fields), timeout_s=10)
    await asyncio.sleep(1e3)


async def floods(stream: Stream) -> None:
    await stream.receive(timeout_s=10)
    await stream.send(READY, timeout_s=10)
    while True:
        part = Message("part", {"index": 0, "sent_s": 0.0, "queue_s": 0.0}, bytes(1 << 20))
        await stream.send(part, timeout_s=10)


async def sends_nonsense(stream: Stream) -> None:
    await stream.receive(timeout_s=10)
    await stream.send(READY, timeout_s=10)
    await stream.send(Message("part", {"index": "x"}, bytes(100)), timeout_s=10)
    await asyncio.sleep(1e3)


async def has_an_absurd_link(stream: Stream) -> None:
    await stream.receive(timeout_s=10)
    await stream.send(Message("ready", {"up_bytes_per_s": 1e300, "down_bytes_per_s": float("nan")}), timeout_s=10)
    await asyncio.sleep(1e3)


async def has_an_absurd_clock(stream: Stream) -> None:
    await stream.receive(timeout_s=10)
    await stream.send(READY, timeout_s=10)
    while True:
        message = await stream.receive(timeout_s=10)
        fields = {"bytes": len(message.payload), "delay_s": -1e300, "sent_s": message.fields.get("sent_s", 0.0)}
        await stream.send(Message("ack", fields), timeout_s=10)


HARMLESS = [is_busy, never_acknowledges, never_ends, claims_more, sends_nonsense, has_an_absurd_link]


@pytest.mark.parametrize("handler", [*HARMLESS, floods, has_an_absurd_clock])
def test_a_strange_helper_costs_no_more_than_the_longest_probe(handler: Handler) -> None:
    lab = ProbeLab([link(25, delay_ms=5)], [FAST] * 4, strange={1: handler})
    lab.run()
    assert lab.seconds[0] <= LONGEST_S + 0.3


@pytest.mark.parametrize("handler", HARMLESS)
def test_three_helpers_are_enough_beside_a_strange_one(handler: Handler) -> None:
    its_link = link(25, delay_ms=5)
    check(ProbeLab([its_link], [FAST] * 4, strange={1: handler}).run(), its_link)


@pytest.mark.parametrize("handler", [*HARMLESS, floods, has_an_absurd_clock])
def test_strange_helpers_alone_do_not_make_a_link_wider_than_it_is(handler: Handler) -> None:
    probed = ProbeLab([link(25, delay_ms=5)], [FAST] * 2, strange={0: handler, 1: handler}).run()
    assert all(found is None or mbit(found) <= 1.15 * 25 for found in (probed.up, probed.down)), probed


# -- who asks for too much -------------------------------------------------------------------------------------------


async def visits(ports: Ports, peer: PeerId, *messages: Message) -> None:
    """More often than a peer serves at once, and without ever closing a stream."""
    streams = [await ports.transport.open(peer, PROBE_PROTOCOL, timeout_s=10) for _ in range(SERVED_AT_ONCE)]
    for stream in streams:
        await stream.send(Message("probe"), timeout_s=10)
        for message in messages:
            await stream.send(message, timeout_s=10)


TURN = Message("turn", {"bytes": 1 << 20, "first_bytes": 1 << 16})


@pytest.mark.parametrize(
    "messages",
    [
        [Message("turn", {"bytes": 1 << 40, "first_bytes": 1 << 16})],
        [Message("turn", {"bytes": 1 << 20, "first_bytes": -1})],
        [Message("turn", {"bytes": 1 << 20})],
        [TURN, TURN],
        [Message("part", {"index": 0, "sent_s": 0.0, "queue_s": 0.0})],
        [Message("ack", {"bytes": 1, "delay_s": 0.0, "sent_s": 0.0})],
        [Message("end")],
    ],
)
def test_a_strange_newcomer_is_sent_away_and_the_next_one_is_helped(messages: list[Message]) -> None:
    its_link = link(25, delay_ms=5)
    lab = ProbeLab([its_link], [FAST])

    async def before(ports: Ports) -> None:
        await visits(ports, lab.world.peers[0].peer_id, *messages)
        await asyncio.sleep(0.1)

    lab.before = before
    check(lab.run(), its_link, off=0.05)


def test_who_begins_with_anything_but_a_probe_is_sent_away() -> None:
    its_link = link(25, delay_ms=5)
    lab = ProbeLab([its_link], [FAST])

    async def before(ports: Ports) -> None:
        stream = await ports.transport.open(lab.world.peers[0].peer_id, PROBE_PROTOCOL, timeout_s=10)
        await stream.send(TURN, timeout_s=10)
        with pytest.raises(StreamClosed):
            await stream.receive(timeout_s=10)

    lab.before = before
    check(lab.run(), its_link, off=0.05)


def test_a_newcomer_that_says_nothing_more_blocks_a_helper_for_some_seconds_only() -> None:
    its_link = link(25, delay_ms=5)
    lab = ProbeLab([its_link], [FAST])

    async def before(ports: Ports) -> None:
        await visits(ports, lab.world.peers[0].peer_id)
        await asyncio.sleep(PATIENCE_S + LONGEST_S + 0.1)

    lab.before = before
    check(lab.run(), its_link, off=0.05)


def test_what_a_helper_takes_of_one_newcomer_is_bounded() -> None:
    lab = ProbeLab([link(1000, delay_ms=5)], [link(1000, delay_ms=5)])

    async def before(ports: Ports) -> None:
        stream = await ports.transport.open(lab.world.peers[0].peer_id, PROBE_PROTOCOL, timeout_s=10)
        await stream.send(Message("probe"), timeout_s=10)
        part = Message("part", {"index": 0, "sent_s": 0.0, "queue_s": 0.0}, bytes(1 << 20))

        async def flood() -> None:
            for _ in range(2 * LARGEST_BYTES // len(part.payload)):
                await stream.send(part, timeout_s=10)

        with pytest.raises(StreamClosed):
            await flood()

    lab.before = before
    lab.run()
