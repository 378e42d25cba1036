"""A client's work units, from the first lease to the last answer: what is computed, on its way, and kept for later."""

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from collab.errors import NetworkError
from collab.ports import Clock
from collab.strategies.base import HandedOver
from collab.swarm.parameter_store.base import Assimilated, Stored, Verdict
from collab.swarm.unit_client import Granted, NothingNow
from collab.types import Vector

logger = logging.getLogger(__name__)

AGAIN_S = 1.0
"""After nobody has answered."""
GOODBYE_S = 1.0
"""For giving units back; their deadlines do the same later."""
RENEWED = 0.5
"""Of a lease's time after which it is made longer."""
REFUSED_S = 600.0
"""After a server has refused a push another one may take it; what the unit came to is lost then."""
SILENT_S = 10.0
"""For which nobody hears of that: a backbone that starts again takes no longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A unit, and what it begins with."""

    granted: Granted
    stored: Stored


class Client(Protocol):
    """Asks those who hand out units and mix parameters: ``UnitClient``.

    All may raise NetworkError: nobody answers.
    """

    @property
    def era(self) -> Callable[[], str]:
        """Mark of the last rollback."""
        ...

    async def take(self) -> Granted | NothingNow: ...

    async def extend(self, granted: Granted) -> float:
        """Seconds that it stays ours; 0: it is somebody else's."""
        ...

    async def give_back(self, granted: Granted) -> None: ...

    async def pull(self, known: int | None, era: str) -> Stored | None: ...

    async def push(self, granted: Granted, values: Vector, based_on: int) -> Assimilated: ...


class UnitDesk:
    """Has leases on so many units at once: one is computed, one is being pushed, the others wait with their parameters.

    Implements the strategies' ``Units``.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        is_computed: Callable[[], bool],
        *,
        at_once: int,
        say: Callable[[str], None],
    ) -> None:
        """
        Args:
            is_computed: whether all samples of the unit that the replica has begun are.
            at_once: 1: the next unit is asked for when this one is pushed.
            say: something that a person should read.
        """
        self._client, self._clock, self._is_computed = client, clock, is_computed
        self._at_once, self._say = at_once, say
        self._reason = ""
        """Why the last push was not taken."""
        self._places = asyncio.Semaphore(at_once)
        """One for each unit of which it is not settled what has become of it."""
        self._waiting: asyncio.Queue[Work | None] = asyncio.Queue()
        """None: the run is over."""
        self._held: dict[str, tuple[Granted, float]] = {}
        """By lease: until when it is ours."""
        self._has_more = asyncio.Event()
        """There is another one."""
        self._present: Work | None = None
        self._pulled: tuple[str, Stored] | None = None
        """The newest, and of which era, so that it is not fetched again while it is."""
        self._push: asyncio.Task[tuple[HandedOver, Verdict]] | None = None
        self._pushed: Granted
        """Of that."""

    # -- Units -------------------------------------------------------------------------------------------------------

    @property
    def is_single(self) -> bool:
        return self._at_once == 1

    @property
    def is_over(self) -> bool:
        return self._present is not None and not self.is_given_up and self._is_computed()

    def push(self, copy: HandedOver) -> None:
        work, self._present = self._present, None
        if work is None or self._push is not None:
            raise ValueError("there is nothing to push, or the push before is not answered")
        self._push, self._pushed = asyncio.create_task(self._deliver(work, copy)), work.granted

    async def answer(self, *, waits: bool) -> tuple[HandedOver, Verdict] | None:
        push = self._push
        if push is None or not (waits or push.done()):
            return None
        copy, verdict = await asyncio.shield(push)
        self._push = None
        return copy, Verdict.REFUSED if self._is_old(self._pushed) else verdict  # it is in what was given up

    # -- the training loop's -----------------------------------------------------------------------------------------

    @property
    def is_given_up(self) -> bool:
        """Whether the unit that is computed was handed out before a rollback of which we know by now."""
        return self._present is not None and self._is_old(self._present.granted)

    @property
    def era(self) -> str:
        """Mark of the last rollback that we know of."""
        return self._client.era()

    async def next(self) -> Work | None:
        """The next unit; None: the run is over, as far as is known. One that was begun and not pushed goes back."""
        if self._present is not None:
            await self._give_back(self._present.granted)
            self._present = None
        while (work := await self._waiting.get()) is not None and self._is_old(work.granted):
            self._settle(work.granted)
        self._present = work
        if work is None:
            self._places.release()  # should we be asked again, a store that has lost its last pushes has units again
        return work

    async def newest(self, era: str, *, is_last: bool = False) -> Stored | None:
        """The servers' parameters now.

        Args:
            era: since the rollback of this mark.
            is_last: fetched again whatever their version: a store that was lost may have come to it another way.

        Raises:
            NetworkError: nobody gives them.
        """
        before = self._pulled[1] if self._pulled is not None and self._pulled[0] == era else None
        pulled = await self._client.pull(None if before is None or is_last else before.version, era)
        if pulled is not None:
            self._pulled = era, pulled
        return pulled or before

    async def run(self) -> None:
        """Have units ready, and keep them ours, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep())
            while True:
                await self._places.acquire()
                await self._waiting.put(await self._fetch())

    async def close(self) -> None:
        """Give back what was not pushed, so that nobody has to wait for its deadline."""
        push = self._push
        with suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                if push is not None:
                    await asyncio.wait((push,))
                await asyncio.gather(*(self._give_back(granted) for granted, _ in tuple(self._held.values())))
        if push is not None:
            push.cancel()
            await asyncio.gather(push, return_exceptions=True)

    # -- inside ------------------------------------------------------------------------------------------------------

    async def _fetch(self) -> Work | None:
        """A unit with the newest parameters; None: the run is over."""
        while True:
            try:
                granted = await self._client.take()
                if isinstance(granted, NothingNow):
                    if granted.is_over:
                        return None
                    await asyncio.sleep(granted.again_s)
                    continue
                if (work := await self._begun(granted)) is not None:
                    return work
            except NetworkError as error:
                logger.info("no unit reason=%s", error)
            await asyncio.sleep(AGAIN_S)

    async def _begun(self, granted: Granted) -> Work | None:
        """A unit with the newest parameters; None: nobody gives them, and it goes back: we would keep it for ever."""
        self._held[granted.lease] = granted, self._clock.monotonic() + granted.seconds
        self._has_more.set()
        try:
            stored = await self.newest(granted.era)
        except NetworkError as error:
            logger.info("no parameters for unit=%s reason=%s", granted.unit, error)
            stored = None
        if stored is not None:
            return Work(granted=granted, stored=stored)
        del self._held[granted.lease]  # its place is for the next one
        await self._return(granted)
        return None

    async def _deliver(self, work: Work, copy: HandedOver) -> tuple[HandedOver, Verdict]:
        """Push until a server says what has become of it, or it is to be in nothing.

        However long that takes: whoever does the unit meanwhile is the one that counts, and then a server says so.
        """
        granted, began_s, until_s, is_told = work.granted, self._clock.monotonic(), math.inf, False
        try:
            while (verdict := await self._try(work, copy)) in (None, Verdict.REFUSED) and not self._is_old(granted):
                now_s = self._clock.monotonic()
                until_s = min(until_s, now_s + REFUSED_S) if verdict else until_s
                if verdict and now_s >= until_s:
                    break
                if not is_told and now_s >= began_s + SILENT_S:
                    is_told = True
                    self._say(f"what we computed waits, and is pushed again until it is taken: {self._reason}")
                await asyncio.sleep(AGAIN_S)
            if verdict in (None, Verdict.STALE, Verdict.REFUSED):
                await self._give_back(granted)
            return copy, verdict or Verdict.REFUSED
        finally:
            self._settle(granted)

    async def _try(self, work: Work, copy: HandedOver) -> Verdict | None:
        """What a server says; None: nobody knows what has become of it."""
        try:
            verdict = (await self._client.push(work.granted, copy.mean, work.stored.version)).verdict
            self._reason = f"a server's answer is {verdict}"
            return verdict
        except NetworkError as error:
            self._reason = error.message
            logger.info("not pushed unit=%s reason=%s", work.granted.unit, error)
            return None

    def _settle(self, granted: Granted) -> None:
        """It is clear what has become of a unit, if it was not before."""
        if self._held.pop(granted.lease, None) is not None:
            self._places.release()

    async def _give_back(self, granted: Granted) -> None:
        self._settle(granted)
        await self._return(granted)

    async def _return(self, granted: Granted) -> None:
        """Somebody else may have it; should nobody hear that, its deadline says so."""
        if self._is_old(granted):
            return
        with suppress(NetworkError):
            await self._client.give_back(granted)

    def _is_old(self, granted: Granted) -> bool:
        """Whether there was a rollback since: nobody has a use for that unit any more."""
        return granted.era != self._client.era()

    async def _keep(self) -> None:
        """Make leases longer while we work on them."""
        while True:
            await self._until_due()
            now_s = self._clock.monotonic()
            for lease, (granted, until_s) in tuple(self._held.items()):
                if until_s - now_s < RENEWED * granted.seconds and not self._is_old(granted):
                    with suppress(NetworkError):
                        seconds = await self._client.extend(granted)
                        if lease in self._held:  # if it is somebody else's now, whoever pushes first has done it
                            self._held[lease] = granted, self._clock.monotonic() + (seconds or math.inf)

    async def _until_due(self) -> None:
        """Returns when the first lease is to be made longer, a second from now at the earliest."""
        await asyncio.sleep(AGAIN_S)
        while True:
            self._has_more.clear()
            now_s = self._clock.monotonic()
            left_s = min(
                (until_s - RENEWED * granted.seconds - now_s for granted, until_s in self._held.values()),
                default=math.inf,
            )
            if left_s <= 0:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s if math.isfinite(left_s) else None):
                    await self._has_more.wait()
