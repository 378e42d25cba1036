"""When the owner of a machine wants it back for a while: what they ask a trainer for, and what it has done about it."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from collab import config

HAND_IN_S = 300.0
"""For the next step of the swarm, into which a paused trainer brings what it has computed. Most swarms take it sooner;
where it takes longer, those samples are somebody else's again: at most one step's share of one peer is computed twice.
"""


def release_gpu() -> None:
    """Give the system back what torch keeps of a GPU's memory for later; nothing where no GPU is used."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


@dataclass(slots=True)
class Pause:
    """Asked for from outside, heard by one trainer, once."""

    release: Callable[[], None] = release_gpu
    """Called on the worker when nothing of the trainer is on its device any more."""
    reason: str = ""
    """Why, in words."""
    wanted: asyncio.Event = field(default_factory=asyncio.Event)
    has_made_room: asyncio.Event = field(default_factory=asyncio.Event)
    """Whether the device is free; the network may still be in use."""

    def ask(self, reason: str) -> None:
        """From now on nothing new is computed."""
        if not self.wanted.is_set():
            self.reason = reason
            self.wanted.set()


def can_hand_in(strategy: config.Strategy) -> bool:
    """Whether what a trainer has computed can go into a step without it computing on: half a work unit cannot."""
    return not isinstance(strategy, config.VcAsgd | config.Solo)
