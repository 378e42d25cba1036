"""A peer as a guest on somebody's machine: when it may work, and what it does when it may not.

One session is one life of a peer in the swarm. When the owner wants the machine, the session frees the device, hands in
what it has computed and leaves; the process stays, with nothing in the network and nothing on the device, and begins
another session when it may.
"""

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from collab.clock import elapsed_s
from collab.concurrency import Background, run_until_first
from collab.durable import replace_file
from collab.training.pausing import Pause
from peers.occasions import Occasion
from peers.places import DataDir
from peers.reading import Reading
from peers.traffic import MonthlyTraffic

logger = logging.getLogger(__name__)

LOOK_S = 0.5
"""Between two looks whether the peer may work: the device is to be free within five seconds of the owner's word."""


class Condition(StrEnum):
    """What a guest is doing."""

    WORKING = "working"
    STARTING = "starting"
    """Nothing of it is on the device yet: it is about to connect anew after a pause, or is to pause while it connects,
    asks a person, or loads what it needs.
    """
    MAKING_ROOM = "making room"
    HANDING_IN = "handing in"
    """The device is free; what was computed goes into the swarm's next step."""
    PAUSED = "paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A guest's word about itself, on the disk."""

    condition: Condition
    reason: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Why nothing is done between two sessions, told when it begins and whenever there is another kind of reason."""

    reason: str
    is_start: bool
    """Whether the process has done nothing else yet."""
    is_known: bool
    """Whether the session that has just ended told this reason."""


class Guest:
    """Of one process."""

    def __init__(
        self,
        place: DataDir,
        occasions: Sequence[Occasion],
        traffic: MonthlyTraffic,
        tell: Callable[[Wait], None],
    ) -> None:
        """
        Args:
            occasions: looked at in order; the first reason counts.
            tell: hears why it waits between two sessions.
        """
        self._place, self._occasions, self.traffic, self._tell = place, occasions, traffic, tell
        self.reading = Reading(traffic)
        self.pause = Pause()
        """Of the present session."""
        self.paused_s = 0.0
        """How long the last pause was, since the owner asked for it."""
        self._asked_s: float | None = None
        """When that was."""
        self._reason, self._is_in_session, self._uses_device = "", False, False
        self._kind = self._asked_kind = -1
        """Which occasion the reason is of: now, and when the session was asked to pause."""
        self._told_kind: int | None = None
        """Of the present wait; None: nothing waits."""
        self._has_begun = False
        self._welcome = asyncio.Event()
        self._count: Callable[[], int] | None = None
        self._told: Told | None = None

    @property
    def waits(self) -> tuple[float, int] | None:
        """Since when it may not work, and for which of the occasions; None: it may."""
        return (self._asked_s, self._kind) if self._reason and self._asked_s is not None else None

    def carry_on(self, asked_s: float, kind: int) -> None:
        """As the guest of this process before its program began anew: what ``waits`` was then, which was told."""
        self._asked_s, self._asked_kind, self._has_begun = asked_s, kind, True
        self.pause.has_made_room.set()

    @asynccontextmanager
    async def stay(self) -> AsyncIterator[None]:
        """Look after the owner's wishes from now on."""
        await self._look()
        try:
            async with Background() as tasks:
                tasks.create_task(self._watch())
                tasks.create_task(self._keep_count())
                yield
        finally:
            self._place.condition.unlink(missing_ok=True)

    async def may_begin(self, stop: asyncio.Event) -> bool:
        """Wait until a session may begin; False: ``stop`` was set before."""
        while self._reason and not stop.is_set():
            self._asked_s = self._asked_s or elapsed_s()
            is_known = self._kind == self._asked_kind and self.pause.has_made_room.is_set()
            self._tell_of(Wait(reason=self._reason, is_start=not self._has_begun, is_known=is_known))
            await run_until_first(self._welcome.wait(), stop.wait())
        self._told_kind = None
        if stop.is_set():
            return False
        if self._asked_s is not None:
            self.paused_s, self._asked_s = elapsed_s() - self._asked_s, None
        self.begin()
        self._has_begun = True
        return True

    def begin(self) -> None:
        """A session begins, even where there is a reason to pause: it then hears so at once, and takes no device."""
        self.pause, self._is_in_session, self._uses_device = Pause(), True, False
        self.traffic.begin_life()
        if self._reason:
            self._ask_to_pause()
        self._say()

    def take_device(self) -> None:
        """From now on something of the session may be on the device."""
        self._uses_device = self._has_begun = True
        self._say()

    @contextmanager
    def metered(self, traffic_bytes: Callable[[], int]) -> Iterator[None]:
        """What a daemon of the session sends and takes is counted, to its end."""
        self.traffic.begin_daemon()
        self._count = traffic_bytes
        try:
            yield
        finally:
            self._count = None
            self.traffic.note(traffic_bytes())

    def end_session(self) -> None:
        """It has left the swarm."""
        self._is_in_session = self._uses_device = False
        self.traffic.save()
        self._say()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self._look()

    async def _look(self) -> None:
        if self._count is not None:
            self.traffic.note(self._count())
        self._kind, self._reason = await asyncio.get_running_loop().run_in_executor(None, self._first_reason)
        if self._reason:
            self._welcome.clear()
            if self._is_in_session and not self.pause.wanted.is_set():
                self._ask_to_pause()
            if self._told_kind not in (None, self._kind):
                self._tell_of(Wait(reason=self._reason, is_start=False, is_known=False))
        else:
            self._welcome.set()
        self._say()

    async def _keep_count(self) -> None:
        """Beside the looks: a busy disk takes its time, and whoever wants the device does not wait for it."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self.traffic.is_due:
                await asyncio.get_running_loop().run_in_executor(None, self.traffic.save)

    def _ask_to_pause(self) -> None:
        self._asked_s, self._asked_kind = elapsed_s(), self._kind
        self.pause.ask(self._reason)

    def _tell_of(self, wait: Wait) -> None:
        self._told_kind = self._kind
        self._tell(wait)

    def _first_reason(self) -> tuple[int, str]:
        reasons = ((kind, occasion()) for kind, occasion in enumerate(self._occasions))
        return next((found for found in reasons if found[1]), (-1, ""))

    def _say(self) -> None:
        """Write down what we are doing, when it has changed or is asked for, which takes away what was there."""
        told = Told(condition=self._condition(), reason=self._reason or self.pause.reason, pid=os.getpid())
        if told == self._told and self._place.condition.exists():
            return
        self._told = told
        words = {"condition": told.condition, "reason": told.reason, "pid": told.pid}
        try:
            replace_file(self._place.condition, json.dumps(words).encode(), is_synced=False)
        except OSError as error:
            logger.info("what this peer is doing cannot be written down reason=%s", error)
            with suppress(OSError):
                _link(told, self._place.condition)

    def _condition(self) -> Condition:
        if self._is_in_session and not self.pause.wanted.is_set():
            return Condition.WORKING
        if (self._reason or self._is_in_session) and not self.reading.is_still:
            return Condition.MAKING_ROOM
        if not self._is_in_session:
            return Condition.PAUSED if self._reason else Condition.STARTING
        if not self._uses_device:
            return Condition.STARTING
        return Condition.HANDING_IN if self.pause.has_made_room.is_set() else Condition.MAKING_ROOM


def _link(told: Told, path: Path) -> None:
    """Say it without the reason where the disk is full: as the target of a link, which lies beside its name."""
    unfinished = path.with_name(f".{path.name}.new")
    unfinished.unlink(missing_ok=True)
    unfinished.symlink_to(f"{told.condition}:{told.pid}")
    unfinished.replace(path)


def condition_of(place: DataDir) -> Told | None:
    """What the guest of a directory last said; None: nothing."""
    try:
        if place.condition.is_symlink():
            condition, _, pid = os.readlink(place.condition).partition(":")
            return Told(condition=Condition(condition), reason="", pid=int(pid))
        words = json.loads(place.condition.read_text(encoding="utf-8"))
        return Told(condition=Condition(words["condition"]), reason=str(words["reason"]), pid=int(words["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
