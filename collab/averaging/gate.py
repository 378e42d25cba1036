"""When the rows of a vector may leave their peer: a round of many windows begins before these are over.

A row belongs to one window, and is final when its window is over. By the leader's interval and everybody's own clock
that is so at about the same time everywhere, whatever was computed by then, so that nobody waits for a slow peer.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable

from collab.averaging.base import Windows
from collab.averaging.messages import Group
from collab.types import AnyVector

logger = logging.getLogger(__name__)


class Gate:
    """Of one contributor in one round: opens row by row, and hands on what has come of each row."""

    def __init__(self, group: Group, windows: Windows, mean: AnyVector) -> None:
        """
        Args:
            mean: [num_elements] of the round, as it comes.
        """
        self._group, self._windows, self._mean = group, windows, mean
        self._opened = asyncio.Event()
        self._came: defaultdict[int, dict[int, bool]] = defaultdict(dict)
        """Of each row the parts that are here, by their first element, and whether we are in them."""
        self.num_open = 0
        """Rows that may leave, always the first ones."""
        self.listeners: list[Callable[[], None]] = []
        """Called whenever a row may leave."""

    async def run(self) -> None:
        """End one window after the other."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for row in range(self._group.rows):
            await asyncio.sleep(began_s + row * self._group.row_s - loop.time())
            await self._windows.close(row)
            self.num_open = row + 1
            self._opened.set()
            for listener in self.listeners:
                listener()

    def is_open(self, stop: int) -> bool:
        """Whether the elements before ``stop`` are final."""
        return stop <= self.num_open * self._group.row_elements

    async def until_open(self, stop: int) -> None:
        """Returns when the elements before ``stop`` are final."""
        while not self.is_open(stop):
            self._opened.clear()
            await self._opened.wait()

    def came(self, start: int, stop: int, *, has_ours: bool) -> None:
        """The result of elements ``start .. stop - 1`` is in the mean; it may come again when its reducer was lost.

        Args:
            has_ours: whether our own part is in it.
        """
        length = self._group.row_elements
        row = start // length
        parts = self._came[row]
        parts[start] = has_ours
        if len(parts) == length // self._group.part_elements:
            is_ours = all(parts.values())
            self._windows.put(row, self._mean[row * length : (row + 1) * length].copy() if is_ours else None)
