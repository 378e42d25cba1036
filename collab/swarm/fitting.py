"""A state that fits: who gives one of another model is not asked for it again, and somebody else is."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from collab.errors import CorruptState, NoDonor, ShapeMismatch
from collab.metrics.records import Notice
from collab.ports import Ports
from collab.swarm.snapshots import Manifest, PackedSnapshot
from collab.swarm.state_transfer import Wanted
from collab.types import PeerId

T = TypeVar("T")
Brought = tuple[PackedSnapshot, Mapping[PeerId, int]]
"""A state, and how many of its bytes came from whom."""
Fetch = Callable[[list[PeerId], Wanted], Awaitable[Brought]]
"""From these donors. May raise ``NoDonor``."""


async def fetch_fitting(
    ports: Ports, donors: Sequence[PeerId], wanted: Wanted, fetch: Fetch, read: Callable[[PackedSnapshot], T]
) -> tuple[T, Manifest, Mapping[PeerId, int]]:
    """Take a state of this run's model; of others people are told.

    Args:
        read: what is made of it, beside the event loop. Raises ``StateError`` for one that does not fit.

    Returns:
        What was read, and of what; and how many bytes came from whom.

    Raises:
        NoDonor: nobody gives any state.
        StateError: nobody gives another one than what does not fit; as the last one was refused.
    """
    left, misfit = list(donors), None
    while True:
        try:
            packed, gave = await fetch(left, wanted)
        except NoDonor as error:
            raise misfit or error from error.__cause__
        try:
            return await ports.compute.beside(partial(read, packed)), packed.manifest, gave
        except (ShapeMismatch, CorruptState) as error:
            misfit, wanted = error, replace(wanted, refused=wanted.refused | {packed.manifest.digest})
            left = [donor for donor in left if donor not in gave]
            whose = ", ".join(sorted(gave))
            text = f"the state of epoch {packed.manifest.epoch} from {whose} is not taken: {error.message}"
            hint = "others are asked; if theirs is refused, too, this machine has another model, or version, than they"
            ports.observer.observe(Notice(at_s=ports.clock.now(), text=text, hint=hint, is_problem=True))
