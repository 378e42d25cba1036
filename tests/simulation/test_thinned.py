"""Vectors that stand for longer ones: what their bytes weigh on the links, and what they leave to others."""

import asyncio

import pytest

from collab.averaging.base import Committed
from collab.averaging.messages import PARTS_PROTOCOL
from collab.net.base import Stream
from collab.net.wire import Message
from collab.ports import Ports
from collab.simulation.links import PIECE_BYTES, Link
from collab.simulation.world import World
from tests.simulation.rounds import rounds_of_homes

WEIGHT = 1000
UP_BYTES_PER_S = 2.5e6
LINK = Link(up_bytes_per_s=UP_BYTES_PER_S, down_bytes_per_s=12.5e6, latency_s=0.015)


class Pair:
    """One sends messages to the other, each on its own stream; when each came."""

    def __init__(self, *messages: tuple[str, Message]) -> None:
        self.world = World(seed=1)
        self.world.network.bulk_weight = WEIGHT
        self.came_s: dict[str, float] = {}
        self._messages = messages
        self._all_here = asyncio.Event()
        self._receiver = self.world.add_peer(self._receive, link=LINK)
        self._sender = self.world.add_peer(self._send, link=LINK)
        self.world.run()
        self.sent_bytes = self._sender.sent_bytes

    async def _receive(self, ports: Ports) -> None:
        for protocol, _ in self._messages:
            await ports.transport.serve(protocol, self._take)
        await self._all_here.wait()

    async def _take(self, stream: Stream) -> None:
        message = await stream.receive(timeout_s=100)
        self.came_s[message.kind] = self.world.time_s - self._began_s
        if len(self.came_s) == len(self._messages):
            self._all_here.set()

    async def _send(self, ports: Ports) -> None:
        await asyncio.sleep(1)  # until the other serves
        to = self._receiver.peer_id
        streams = [await ports.transport.open(to, protocol, timeout_s=10) for protocol, _ in self._messages]
        self._began_s = self.world.time_s
        async with asyncio.TaskGroup() as tasks:
            for stream, (_, message) in zip(streams, self._messages, strict=True):
                tasks.create_task(stream.send(message, timeout_s=100))
        await self._all_here.wait()


def test_a_part_of_a_thinned_vector_weighs_as_the_whole_and_takes_turns_with_a_sign_of_life() -> None:
    part, sign = Message("part", {}, bytes(5000)), Message("pulse")
    pair = Pair((PARTS_PROTOCOL, part), ("round", sign))
    assert pair.came_s["part"] == pytest.approx(WEIGHT * 5000 / UP_BYTES_PER_S, rel=0.05)
    assert pair.came_s["pulse"] < 0.03 + 2 * PIECE_BYTES / UP_BYTES_PER_S + 0.01


def test_what_is_no_vector_weighs_what_it_is_also_beside_a_vector() -> None:
    acknowledgement = Message("ack", {"bytes": 1000, "sent_s": 1.0})
    pair = Pair((PARTS_PROTOCOL, acknowledgement))
    assert pair.sent_bytes < 1000
    assert pair.came_s["ack"] < 0.04


def test_homes_that_send_a_thinned_vector_at_once_do_not_fall_silent_for_their_leader() -> None:
    homes = 20
    rounds = rounds_of_homes(homes, rounds=2)
    rounds.world.network.bulk_weight = WEIGHT
    rounds.run()
    lost = {key: outcome for key, outcome in rounds.outcomes.items() if not isinstance(outcome, Committed)}
    assert not lost
