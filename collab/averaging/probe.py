"""One second of traffic at joining, so that the first rounds are not planned blindly.

A newcomer and some peers send each other parts, as in a round and through the same queue, for at most ``SECONDS`` and
``LARGEST_BYTES``; both ends of the newcomer's link are measured by what arrives.
"""

import asyncio
import logging

from collab.averaging.flow import Inflow, Links, Outflow, Part
from collab.errors import BadMessage, NetworkError
from collab.net.base import Stream, Transport
from collab.net.wire import Message
from collab.types import PeerId

logger = logging.getLogger(__name__)

PROBE_PROTOCOL = "collab/probe/1"
SECONDS = 1.0
LARGEST_BYTES = 16 << 20
"""In each direction, over all peers: 0.6 s of 200 Mbit/s; a faster link need not be known better."""
PEERS = 4
"""One peer could be slower than we are; four seldom are together."""
PART_BYTES = 64 << 10
LAST = 2.0
"""Place of a probe's parts in the queue: behind all of a round, whose places are below 1."""
PATIENCE_S = 5.0
SERVED_AT_ONCE = 2
"""Newcomers that a peer helps at a time; the others go without."""


class Probe:
    """Measures our link with others' help, and helps others."""

    def __init__(self, transport: Transport, links: Links) -> None:
        self._transport, self._links = transport, links
        self._num_served = 0

    async def serve(self) -> None:
        """Begin to help newcomers."""
        await self._transport.serve(PROBE_PROTOCOL, self._help)

    async def measure(self, peers: list[PeerId]) -> None:
        """Exchange parts with the first of ``peers``; who does not answer or has no time is left out."""
        chosen = peers[:PEERS]
        if chosen:
            await asyncio.gather(*(self._measure_with(peer, LARGEST_BYTES // len(chosen)) for peer in chosen))

    async def _measure_with(self, peer: PeerId, num_bytes: int) -> None:
        try:
            stream = await self._transport.open(peer, PROBE_PROTOCOL, timeout_s=PATIENCE_S)
            try:
                await stream.send(Message("probe", {"bytes": num_bytes}), timeout_s=PATIENCE_S)
                if (await stream.receive(timeout_s=PATIENCE_S)).kind == "ready":
                    await self._exchange(stream, num_bytes)
            finally:
                stream.close()
        except NetworkError as error:
            logger.debug("probe failed peer=%s reason=%s", peer, error)

    async def _help(self, stream: Stream) -> None:
        num_bytes = (await stream.receive(timeout_s=PATIENCE_S)).get("bytes", int)
        if self._num_served >= SERVED_AT_ONCE or not 0 < num_bytes <= LARGEST_BYTES:
            await stream.send(Message("busy"), timeout_s=PATIENCE_S)
            return
        self._num_served += 1
        try:
            await stream.send(Message("ready"), timeout_s=PATIENCE_S)
            await self._exchange(stream, num_bytes)
        finally:
            self._num_served -= 1

    async def _exchange(self, stream: Stream, num_bytes: int) -> None:
        """Send and receive until both sides have had their second."""
        outflow = Outflow(stream, self._links)
        left_bytes = num_bytes
        is_over_there = False
        self._links.downlink.begin()
        sending = asyncio.create_task(self._send(stream, outflow, num_bytes))
        try:
            async with Inflow(stream, self._links, timeout_s=PATIENCE_S) as inflow:
                while not (is_over_there and sending.done()) or outflow.is_busy:
                    message = await stream.receive(timeout_s=PATIENCE_S)
                    if message.kind == "ack":
                        outflow.acknowledged(message)
                    elif message.kind == "end":
                        is_over_there = True
                    elif message.kind == "part" and left_bytes > 0:
                        left_bytes -= len(message.payload)
                        inflow.took(message)
                        await self._links.downlink.keep_within_limit()
                    else:
                        raise BadMessage(f"{stream.remote} sends {message.kind} in a probe")
        finally:
            self._links.downlink.end()
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            outflow.settle()

    async def _send(self, stream: Stream, outflow: Outflow, num_bytes: int) -> None:
        data = bytes(PART_BYTES)
        until_s = self._links.clock() + SECONDS
        for index in range(num_bytes // PART_BYTES):
            if self._links.clock() >= until_s:
                break
            part = Part(kind="part", index=index, num_bytes=PART_BYTES, encode=lambda: data, order=LAST)
            await outflow.send(part, timeout_s=PATIENCE_S)
        await stream.send(Message("end"), timeout_s=PATIENCE_S)
