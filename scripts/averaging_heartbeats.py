"""Heartbeats beside rounds: small messages over a stream of their own, which bulk traffic must not hold up."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from averaging_gauges import Periods, is_within

from collab.concurrency import Background
from collab.errors import NetworkError
from collab.net.base import Stream, Transport
from collab.net.wire import Message
from collab.types import PeerId

PROTOCOL = "bench/heartbeat/1"
INTERVAL_S = 0.1
FILLER = bytes(150)
"""With its head about 200 bytes; not the payload, which would be counted as elements."""
OPEN_LIMIT_S = 20.0
WAIT_S = 3600.0
"""The stream outlasts every pause between rounds."""

Begin = Callable[[Transport, Sequence[PeerId], Background], Awaitable[None]]
"""Called with a peer's transport, all peers in order, and where to start what goes on."""


class Host(Protocol):
    """A peer whose event loop runs in a thread of its own."""

    def accompany(self, begin: Begin) -> None:
        """Call ``begin`` in the event loop, and wait until it returns."""
        ...


class Heartbeats:
    """Implements ``Gauge``: the round trips of a message every 100 ms.

    A message counts from when it is due, so that an event loop that wakes up late is not left out.
    """

    name = "heartbeats"

    def __init__(self, host: Host, to: int) -> None:
        self._host, self._to = host, to
        self._due_s: list[float] = []
        self._trips_s: dict[int, float] = {}

    def start(self) -> None:
        self._host.accompany(self._begin)

    def read(self, periods: Periods) -> dict[str, Any]:
        now_s, trips_s = time.monotonic(), dict(self._trips_s)
        beats = [(due_s, trips_s.get(number)) for number, due_s in enumerate(list(self._due_s))]
        return summary(beats, periods, now_s)

    async def _begin(self, transport: Transport, peers: Sequence[PeerId], tasks: Background) -> None:
        stream = await transport.open(peers[self._to], PROTOCOL, timeout_s=OPEN_LIMIT_S)
        tasks.create_task(self._send(stream))
        tasks.create_task(self._receive(stream))

    async def _send(self, stream: Stream) -> None:
        due_s = time.monotonic()
        while True:
            self._due_s.append(due_s)
            try:
                beat = Message("beat", {"number": len(self._due_s) - 1, "filler": FILLER})
                await stream.send(beat, timeout_s=WAIT_S)
            except NetworkError:
                return  # the other side is gone, which the unanswered ones tell
            due_s += INTERVAL_S
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))

    async def _receive(self, stream: Stream) -> None:
        try:
            while True:
                number = (await stream.receive(timeout_s=WAIT_S)).get("number", int)
                self._trips_s[number] = time.monotonic() - self._due_s[number]
        except NetworkError:
            return


async def echo(stream: Stream) -> None:
    """The other side."""
    while True:
        await stream.send(await stream.receive(timeout_s=WAIT_S), timeout_s=WAIT_S)


def summary(beats: Sequence[tuple[float, float | None]], periods: Periods, now_s: float) -> dict[str, Any]:
    """How long answers took to what was due while vectors travelled, and how long at quiet times.

    Args:
        beats: when each was due, and its round trip; None: no answer by ``now_s``, and counted with the time so far.
    """
    trips_s, idle_s = (
        [now_s - due_s if trip_s is None else trip_s for due_s, trip_s in beats if is_within(due_s, spans)]
        for spans in (periods.rounds, periods.quiet)
    )
    return {
        "count": len(trips_s),
        "median_s": round(statistics.median(trips_s), 4) if trips_s else None,
        "worst_s": round(max(trips_s), 4) if trips_s else None,
        "count_idle": len(idle_s),
        "median_idle_s": round(statistics.median(idle_s), 4) if idle_s else None,
        "worst_idle_s": round(max(idle_s), 4) if idle_s else None,
        "unanswered": sum(trip_s is None and is_within(due_s, periods.rounds) for due_s, trip_s in beats),
    }
