"""Measuring how far the machine's clock is from the swarm's, as NTP does: halfway between asking and answer."""

import logging
from typing import Protocol

from collab.errors import BadMessage, NetworkError
from collab.net.base import Stream, Transport
from collab.net.wire import Message
from collab.ports import Clock
from collab.types import PeerId

logger = logging.getLogger(__name__)

PROTOCOL = "collab/time/1"
QUESTIONS = 3
"""Answers asked of each peer; the one with the shortest round trip bounds the error best."""


class CorrectableClock(Clock, Protocol):
    """A clock whose offset can be set."""

    def correct(self, offset_s: float) -> None:
        """Move swarm time by ``offset_s``."""
        ...


async def serve_time(transport: Transport, clock: Clock) -> None:
    """Answer other peers' questions for the swarm time."""

    async def answer(stream: Stream) -> None:
        for _ in range(QUESTIONS):
            await stream.receive(timeout_s=10.0)
            await stream.send(Message("time", {"now": clock.now()}), timeout_s=10.0)

    await transport.serve(PROTOCOL, answer)


async def measure_offset(transport: Transport, clock: Clock, peers: list[PeerId], *, timeout_s: float) -> float | None:
    """Seconds to add to ``clock`` to agree with the median of ``peers``; None when none of them answered."""
    offsets = []
    for peer in peers:
        try:
            offsets.append(await _offset_to(transport, clock, peer, timeout_s))
        except NetworkError as error:
            logger.info("no time from peer=%s reason=%s", peer, error)
    if not offsets:
        return None
    return sorted(offsets)[len(offsets) // 2]


async def _offset_to(transport: Transport, clock: Clock, peer: PeerId, timeout_s: float) -> float:
    stream = await transport.open(peer, PROTOCOL, timeout_s=timeout_s)
    answers = []
    try:
        for _ in range(QUESTIONS):
            asked_s, asked_at = clock.monotonic(), clock.now()
            await stream.send(Message("ask"), timeout_s=timeout_s)
            answer = await stream.receive(timeout_s=timeout_s)
            round_trip_s = clock.monotonic() - asked_s
            theirs = answer.get("now", float)
            if not 0 < theirs < 1e11:
                raise BadMessage(f"time of {theirs} from {peer} is no date")
            answers.append((round_trip_s, theirs - (asked_at + round_trip_s / 2)))
    finally:
        stream.close()
    return min(answers)[1]
