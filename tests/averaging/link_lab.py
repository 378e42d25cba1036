"""An uplink on a model of its link: one line that serves one part after the other, and a queue in front of it."""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from collab.averaging.uplink import Path, Uplink
from collab.types import PeerId
from tests.fakes import run

MBIT = 125_000.0
PART_BYTES = (64 << 10) + 64

Changes = tuple[tuple[float, float], ...]
"""(second, bytes/s) of a line."""


@dataclass(frozen=True, slots=True)
class Served:
    """One part on a line."""

    at_s: float
    waited_s: float
    took_s: float


class Line:
    """Carries one part at a time, in their order; ``bytes_per_s`` may change between two parts."""

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self.served: list[Served] = []
        self._queue: deque[tuple[int, float, Callable[[], None]]] = deque()

    def push(self, num_bytes: int, carried: Callable[[], None]) -> None:
        self._queue.append((num_bytes, asyncio.get_running_loop().time(), carried))
        if len(self._queue) == 1:
            self._begin()

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        num_bytes, came_s, _ = self._queue[0]
        self.served.append(Served(loop.time(), loop.time() - came_s, num_bytes / self.bytes_per_s))
        loop.call_later(num_bytes / self.bytes_per_s, self._end)

    def _end(self) -> None:
        _, _, carried = self._queue.popleft()
        carried()
        if self._queue:
            self._begin()

    def use(self, from_s: float, to_s: float) -> float:
        """Fraction of the time in which the line was busy."""
        busy_s = sum(max(0.0, min(to_s, part.at_s + part.took_s) - max(from_s, part.at_s)) for part in self.served)
        return busy_s / (to_s - from_s)

    def longest_wait_s(self, from_s: float, to_s: float) -> float:
        """Of the parts whose turn came in that time."""
        return max(part.waited_s for part in self.served if from_s <= part.at_s < to_s)


@dataclass(kw_only=True)
class Lab:
    """One sender that always has a part for every receiver."""

    up_bytes_per_s: float
    round_trip_s: float = 0.04
    num_receivers: int = 1
    first_down_bytes_per_s: float | None = None
    """Of the first receiver; None, and all others: no limit."""
    max_bytes_per_s: float | None = None
    clocks_differ_s: float = 0.0
    line: Line = field(init=False)
    down: Line | None = field(init=False)
    uplink: Uplink = field(init=False)

    async def send_for(self, seconds: float, changes: Changes = ()) -> None:
        """Send without pause, and return when all of it has been acknowledged."""
        loop = asyncio.get_running_loop()
        self.line = Line(self.up_bytes_per_s)
        self.down = Line(self.first_down_bytes_per_s) if self.first_down_bytes_per_s else None
        self.uplink = Uplink(loop.time, max_bytes_per_s=self.max_bytes_per_s)
        for at_s, bytes_per_s in changes:
            loop.call_later(at_s, setattr, self.line, "bytes_per_s", bytes_per_s)
        paths = [self.uplink.path(PeerId(f"peer{number}")) for number in range(self.num_receivers)]
        senders = [
            asyncio.create_task(self._send(path, self.down if number == 0 else None))
            for number, path in enumerate(paths)
        ]
        await asyncio.sleep(seconds)
        for sender in senders:
            sender.cancel()
        await asyncio.gather(*senders, return_exceptions=True)
        while any(path.under_way_bytes for path in paths):
            await asyncio.sleep(0.1)

    async def _send(self, path: Path, down: Line | None) -> None:
        for index in itertools.count():
            await self.uplink.admit(path, index, PART_BYTES)
            self._depart(path, down)

    def _depart(self, path: Path, down: Line | None) -> None:
        loop = asyncio.get_running_loop()
        departed_s, one_way_s = loop.time(), self.round_trip_s / 2

        def arrive() -> None:
            there_s = loop.time() - departed_s
            delay_s, trip_s = there_s + self.clocks_differ_s, there_s + one_way_s
            loop.call_later(one_way_s, self.uplink.acknowledge, path, PART_BYTES, delay_s, trip_s)

        def leave() -> None:
            if down is None:
                loop.call_later(one_way_s, arrive)
            else:
                loop.call_later(one_way_s, down.push, PART_BYTES, arrive)

        self.line.push(PART_BYTES, leave)


def after(lab: Lab, seconds: float, changes: Changes = ()) -> Lab:
    """The lab when it has sent for that time."""
    run(lab.send_for(seconds, changes))
    return lab
