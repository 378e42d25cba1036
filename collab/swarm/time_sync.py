"""Measuring how far the machine's clock is from the swarm's, as NTP does: halfway between asking and answer.

It is done at joining and now and then after it, since clocks drift and a virtual machine can be stopped without its
clocks noticing (docs/decisions/0050).
"""

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from collab.errors import BadMessage, NetworkError
from collab.net.base import Stream, Transport
from collab.net.wire import Message
from collab.ports import Clock, Entrance
from collab.types import PeerId

logger = logging.getLogger(__name__)

PROTOCOL = "collab/time/1"
QUESTIONS = 3
"""Answers asked of each peer; the one with the shortest round trip bounds the error best."""
MEASURE_S = 300.0
"""Between two measurements: a clock that nobody disciplines drifts by some 0.03 s meanwhile."""
LOOK_S = 5.0
"""Between two looks whether our machine's clock was set, which may say that ours stood still, and between two
measurements while a clock is slewed: a step of ``SLEW_S`` each keeps up with it."""
MOST_ASKED = 5
"""Of those nearby, by a peer that met nobody at joining."""
TIMEOUT_S = 5.0
"""For a peer's clock: as ``DIAL_TIMEOUT_S``."""
TOLERATED_S = 0.1
"""Less is as likely the link's: one whose ways take unequal times. It is not corrected, so that peers who measure
each other do not wander together."""
SLEW_S = 0.5
"""At most so much at a time: far less than a lease's margin, and than what a record's freshness turns on."""
SLEWED = 0.1
"""Seconds each second that a clock may gain or lose while NTP slews it instead of setting it: 0.083 with chrony."""
ALARMING_OFFSET_S = 3.0
"""A clock that is further off would have its DHT records refused without the correction."""
SURE = 3
"""So many measurements that agree are believed against our own machine: a quarter of an hour, before anybody trains on
alone."""


@dataclass(frozen=True, slots=True)
class Nearby:
    """Whom a peer asks that met nobody at joining."""

    connected: Callable[[], Awaitable[Iterable[PeerId]]]
    """Peers that we have a connection to, strangers among them."""
    entrance: Entrance
    rng: random.Random
    """Who chose by name would ask those who have made up fitting ones."""

    async def chosen(self) -> list[PeerId]:
        """Some that were seen in a round; where there are none, some of those who may come in."""
        door, seen = self.entrance.door, self.entrance.contributors()
        near = [peer for peer in sorted(await self.connected()) if door is None or door.barred(peer, b"") is None]
        asked = [peer for peer in near if peer in seen] or near
        return self.rng.sample(asked, min(MOST_ASKED, len(asked)))


class CorrectableClock(Clock, Protocol):
    """A clock whose offset can be set."""

    def correct(self, offset_s: float) -> None:
        """Move swarm time by ``offset_s``."""
        ...


class MovableClock(CorrectableClock, Protocol):
    """One that knows of what its machine's own clock does."""

    def wall_moved_s(self) -> float:
        """How far the machine's clock was set since the start."""
        ...


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement."""

    at_s: float
    """Monotonic."""
    offset_s: float

    def agrees_with(self, earlier: "Measured") -> bool:
        """Whether both found the same, or what it may have become since: a large offset of ours or theirs shrinks, or
        grows, while the clock is slewed.
        """
        apart_s, smaller_s = abs(self.offset_s - earlier.offset_s), min(abs(self.offset_s), abs(earlier.offset_s))
        is_one_way = smaller_s > ALARMING_OFFSET_S and self.offset_s * earlier.offset_s > 0
        bound_s = SLEWED * (self.at_s - earlier.at_s) if is_one_way else 0.0
        return apart_s <= max(ALARMING_OFFSET_S, bound_s)


class Correction:
    """How much of a measured offset is believed after joining. Small ones are taken at once, in small steps.

    A large one is ours or theirs. Ours, when the machine's own clock was moved by as much since peers last agreed with
    us: so it is after the machine was stopped, and NTP has set its clock. Otherwise the peers may have been stopped,
    and they are given time to find out. When they have not, they are followed: a swarm goes by one time, right or not.
    Where the offset was seen to drift meanwhile it goes on to, and is measured again and again until it does not.

    A first backbone asks whoever is there, so one answer is not enough for it to say that its clock was set while it
    went on: a later one could not tell it any more that it stood still.
    """

    def __init__(self, *, is_first: bool = False, is_measured: bool) -> None:
        """
        Args:
            is_first: whether we met nobody at joining: others go by our time, and only what is ours is corrected.
            is_measured: whether anybody has told us the time at joining; otherwise whoever is first to is believed.
        """
        self._is_first, self._is_measured = is_first, is_measured
        self._moved_s, self._drifts_until_s = 0.0, -math.inf
        self._found: list[Measured] = []

    def rest_s(self, now_s: float) -> float:
        """Until the next measurement."""
        return LOOK_S if now_s < self._drifts_until_s else MEASURE_S

    def of(self, measured: Measured, moved_s: float) -> float:
        """Seconds to move swarm time by.

        Args:
            measured: just now.
            moved_s: ``MovableClock.wall_moved_s``.
        """
        offset_s, drifting_s = measured.offset_s, measured.at_s + MEASURE_S
        self._found = [*[found for found in self._found if measured.agrees_with(found)][1 - SURE :], measured]
        is_sure, since_s = len(self._found) >= SURE, moved_s - self._moved_s
        if abs(offset_s) <= ALARMING_OFFSET_S:
            if is_sure or not self._is_first or abs(since_s) <= ALARMING_OFFSET_S:
                self._agree(moved_s)
            if self._is_first or abs(offset_s) <= TOLERATED_S:
                return 0.0
            if measured.at_s < self._drifts_until_s:
                self._drifts_until_s = drifting_s
            return max(-SLEW_S, min(SLEW_S, offset_s))
        is_ours = abs(since_s - offset_s) <= ALARMING_OFFSET_S
        is_theirs_to_tell = not self._is_first and (is_sure or not self._is_measured)
        if not is_ours and not is_theirs_to_tell:
            self._drifts_until_s = -math.inf
            return 0.0
        if is_sure and abs(offset_s - self._found[0].offset_s) > SLEW_S:
            self._drifts_until_s = drifting_s
        self._agree(moved_s)
        return offset_s

    def _agree(self, moved_s: float) -> None:
        self._is_measured, self._moved_s, self._found = True, moved_s, []


async def serve_time(transport: Transport, clock: Clock) -> None:
    """Answer other peers' questions for the swarm time."""

    async def answer(stream: Stream) -> None:
        for _ in range(QUESTIONS):
            await stream.receive(timeout_s=10.0)
            await stream.send(Message("time", {"now": clock.now()}), timeout_s=10.0)

    await transport.serve(PROTOCOL, answer)


async def measure_offset(transport: Transport, clock: Clock, peers: list[PeerId], *, timeout_s: float) -> float | None:
    """Seconds to add to ``clock`` to agree with the median of ``peers``; None when none of them answered."""
    offsets = await _offsets(transport, clock, peers, timeout_s)
    return _median(offsets) if offsets else None


async def follow_time(
    transport: Transport, clock: MovableClock, peers: Sequence[PeerId], nearby: Nearby, *, is_measured: bool
) -> None:
    """Stay with the time of ``peers`` until cancelled.

    Args:
        peers: met at joining; who has none, as a first backbone, stays with its own time, unless it stood still.
        nearby: where those are who could tell a first backbone that.
        is_measured: see ``Correction``.
    """
    correction = Correction(is_first=not peers, is_measured=is_measured)
    while True:
        await _until_due(clock, correction.rest_s(clock.monotonic()))
        asked = peers or await nearby.chosen()
        offsets = await _offsets(transport, clock, asked, TIMEOUT_S)
        if not offsets:
            continue
        offset_s = _median(offsets if len(offsets) % 2 or not peers else [*offsets, 0.0])  # of two ours decides
        believed_s = correction.of(Measured(clock.monotonic(), offset_s), clock.wall_moved_s())
        clock.correct(believed_s)
        if abs(offset_s) > ALARMING_OFFSET_S:
            logger.info("swarm time is %+.1f s from ours; corrected by %+.1f s", offset_s, believed_s)


async def _until_due(clock: MovableClock, rest_s: float) -> None:
    """Wait for the next measurement: it is sooner when the machine's clock is set."""
    moved_s = clock.wall_moved_s()
    for _ in range(int(rest_s / LOOK_S)):
        await asyncio.sleep(LOOK_S)
        if abs(clock.wall_moved_s() - moved_s) > ALARMING_OFFSET_S:
            return


async def _offsets(transport: Transport, clock: Clock, peers: Sequence[PeerId], timeout_s: float) -> list[float]:
    """To each of ``peers`` that answered."""
    offsets = []
    for peer in dict.fromkeys(peers):  # several addresses may be of one peer
        try:
            offsets.append(await _offset_to(transport, clock, peer, timeout_s))
        except NetworkError as error:
            logger.info("no time from peer=%s reason=%s", peer, error)
    return offsets


def _median(offsets: list[float]) -> float:
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
