"""What a replica has of windows whose rounds average one at a time: nothing but the one."""

import asyncio

from collab.strategies.base import OwnWindows


class OneWindow:
    """All that is handed over is one window; ``AnchoredReplica`` may have more."""

    def __init__(self) -> None:
        self.advanced = asyncio.Event()
        """Set when ``microbatches_beside`` may have become less, by what the swarm has sent."""

    @property
    def windows(self) -> int:
        """That one round averages."""
        return 1

    def begin_windows(self) -> OwnWindows:
        """See the strategies' ``Replica``; only for more than one."""
        raise NotImplementedError

    def take_paces(self) -> list[tuple[int, int]]:
        """Of each window whose mean came in the rounds since this was last asked, microbatches in it, and those from
        its end until the mean was here.
        """
        return []

    @property
    def has_news(self) -> bool:
        """Whether ``catch_up`` would do anything."""
        return False

    def catch_up(self) -> None:
        """Between two microbatches: let what the swarm has sent take its place in the parameters."""
