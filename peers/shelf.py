"""A backbone's checkpoints on its disk, and what happens when they cannot be written."""

import asyncio
import math
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from collab.checkpoints.base import Checkpoint, Order
from collab.checkpoints.local import epoch_of, list_checkpoints
from collab.checkpoints.local_publisher import Held, LocalPublisher
from collab.errors import CheckpointFailed, Fenced
from collab.metrics.records import CheckpointSaved, Notice
from collab.ports import Ports
from collab.swarm.backbone_records import Publication
from collab.swarm.lease import Tenure
from collab.swarm.snapshots import Snapshot
from collab.swarm.statements import Rollback

REST_AFTER_FAILURE_S = 60.0
"""A full disk is tried again after this; meanwhile others may publish."""
MEANWHILE = (
    "it is tried again each minute, training goes on, and another backbone publishes meanwhile, if there is one"
)


class Shelf:
    """Of one backbone."""

    def __init__(self, ports: Ports, publisher: LocalPublisher) -> None:
        self._ports, self._publisher = ports, publisher
        self.publication: Publication | None = None
        """Of the newest checkpoint; None: there is none, or it was never published."""
        self.era = ""
        """Of what was published so; see ``Snapshot``."""
        self.saved_epoch = -1
        """Of the newest checkpoint; -1: none."""
        self.epochs: frozenset[int] = frozenset()
        """Of all checkpoints that lie here, those set aside not among them."""
        self._rests_until_s = -math.inf
        self._told = ""
        """That nothing was written, as people have heard it; empty: what comes is written."""
        self._problem = "", ""
        self._writing: set[asyncio.Task[bool]] = set()

    @property
    def root(self) -> Path:
        """Where they lie."""
        return self._publisher.root

    @property
    def is_on_disk(self) -> bool:
        """Whether what is kept outlives this process."""
        return True

    @property
    def problem(self) -> tuple[str, str]:
        """Why nothing was written when it was tried last, and what to do, in words; both empty: it is written."""
        return self._problem

    @property
    def is_resting(self) -> bool:
        """Whether something was not written, and is not to be tried again yet."""
        return self._ports.clock.monotonic() < self._rests_until_s

    @property
    def damaged_epoch(self) -> int:
        """See ``LocalPublisher``."""
        return self._publisher.damaged_epoch

    async def newest(self) -> Held | None:
        """See ``LocalPublisher``."""
        held, self.epochs = await self._ports.compute.run(lambda: (self._publisher.newest(), self._epochs_here()))
        self.saved_epoch = held.snapshot.epoch if held is not None else -1
        self.publication = held.publication if held is not None else None
        self.era = held.snapshot.era if held is not None else ""
        return held

    async def highest(self) -> Tenure:
        """The latest tenure that this disk has heard of."""
        return await self._ports.compute.run(self._publisher.highest)

    async def remember(self, seen: Tenure) -> bool:
        """Write down that ``seen`` was heard of; whether that is so now."""
        try:
            await self._ports.compute.run(lambda: self._publisher.note(seen))
        except CheckpointFailed as error:
            self._fail(error)
            return False
        return True

    async def publish(self, snapshot: Snapshot, order: Order) -> bool:
        """Whether it is published now."""

        async def write() -> bool:
            if not await self._write(snapshot.epoch, lambda: self._publisher.publish(snapshot, order)):
                return False
            self.publication, self.era = order.publication, snapshot.era
            return True

        return await self._to_its_end(write())

    async def keep(self, snapshot: Snapshot, digest: str, eval_loss: float) -> bool:
        """Have a snapshot here that nobody has published yet; whether it is here now."""

        async def write() -> bool:
            if not await self._write(snapshot.epoch, lambda: self._publisher.keep(snapshot, digest, eval_loss)):
                return False
            self.publication = None
            return True

        return await self._to_its_end(write())

    async def finish(self) -> None:
        """What is being written is on the disk then, whoever began it and was cancelled meanwhile."""
        await asyncio.gather(*self._writing)

    async def _to_its_end(self, writing: Coroutine[Any, Any, bool]) -> bool:
        task = asyncio.ensure_future(writing)
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        return await asyncio.shield(task)

    async def set_aside_after(self, epoch: int) -> int:
        """See ``LocalPublisher``; ``newest`` says what is left."""
        return await self._ports.compute.run(lambda: self._publisher.set_aside_after(epoch))

    async def begin_again(self, what: Rollback, mark: str) -> Snapshot | None:
        """See the function of this name; the shelf is empty then.

        Raises:
            CheckpointFailed: not now; it is told of.
        """
        try:
            begun, self.epochs = await self._ports.compute.run(
                lambda: (self._publisher.begin_again(what, mark), self._epochs_here())
            )
        except CheckpointFailed as error:
            self._fail(error)
            raise
        self.publication, self.saved_epoch = None, -1
        return begun

    async def _write(self, epoch: int, write: Callable[[], Checkpoint]) -> bool:
        clock = self._ports.clock
        started_s = clock.monotonic()
        try:
            saved, self.epochs = await self._ports.compute.run(lambda: (write(), self._epochs_here()))
        except Fenced as error:
            self._say(f"the checkpoint of epoch {epoch} was not published: {error.message}")
            return False
        except CheckpointFailed as error:
            self._fail(error)
            return False
        if self._told:
            self._say(f"{self.root} takes checkpoints again", settles=self._told)
            self._told, self._problem = "", ("", "")
        self.saved_epoch = epoch
        event = CheckpointSaved(
            at_s=clock.now(), epoch=saved.epoch, path=str(saved.path), num_bytes=saved.num_bytes, seconds=0.0
        )
        if saved.is_new:
            self._ports.observer.observe(replace(event, seconds=clock.monotonic() - started_s))
        return True

    def _epochs_here(self) -> frozenset[int]:
        """Blocks."""
        return frozenset(map(epoch_of, list_checkpoints(self.root)))

    def _fail(self, error: CheckpointFailed) -> None:
        """Told once, until something was written again."""
        self._rests_until_s = self._ports.clock.monotonic() + REST_AFTER_FAILURE_S
        self._problem = error.message, f"{error.hint}; {MEANWHILE}"
        if not self._told:
            self._told, hint = self._problem
            self._say(self._told, hint, is_problem=True)

    def _say(self, text: str, hint: str = "", *, is_problem: bool = False, settles: str = "") -> None:
        at_s = self._ports.clock.now()
        self._ports.observer.observe(
            Notice(at_s=at_s, text=text, hint=hint, is_problem=is_problem, settles=settles)
        )


class MemoryShelf(Shelf):
    """Of a backbone that writes no checkpoints: it begins with those that an earlier life left, and touches none."""

    def __init__(self, ports: Ports, publisher: LocalPublisher) -> None:
        super().__init__(ports, publisher)
        self._is_left = False
        """Whether the swarm has gone on from an earlier state than that of the disk."""

    @property
    def is_on_disk(self) -> bool:
        return False

    async def newest(self) -> Held | None:
        """See ``Shelf``; None, also when what is on the disk is of no use any more."""
        if not self._is_left:
            return await super().newest()
        self.saved_epoch, self.publication = -1, None
        return None

    async def remember(self, seen: Tenure) -> bool:
        """See ``Shelf``. Who never publishes need not remember what it may not publish."""
        return True

    async def publish(self, snapshot: Snapshot, order: Order) -> bool:
        """See ``Shelf``."""
        self.saved_epoch, self.publication, self.era = snapshot.epoch, order.publication, snapshot.era
        return True

    async def keep(self, snapshot: Snapshot, digest: str, eval_loss: float) -> bool:
        """See ``Shelf``."""
        self.saved_epoch, self.publication = snapshot.epoch, None
        return True

    async def set_aside_after(self, epoch: int) -> int:
        """See ``Shelf``."""
        self._is_left = True
        return 0

    async def begin_again(self, what: Rollback, mark: str) -> Snapshot | None:
        """See ``Shelf``: there is nothing here to go back to."""
        self._is_left, self.publication, self.saved_epoch = True, None, -1
        return None
