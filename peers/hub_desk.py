"""A backbone's way to the Hub: what it has published on its disk is published there, too, while it holds the lease.

It looks at the shelf again and again instead of being told: so the newest checkpoint is taken up again after a failure,
a lost lease or a restart, and what was overtaken while the Hub did not answer is left out. So is what comes too soon
after the last commit: a repository keeps all of them for ever. The work itself runs in a thread of its own, and nobody
waits for it.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from collab.checkpoints.base import Order
from collab.checkpoints.hub_publisher import OnHub
from collab.checkpoints.local import path_of
from collab.errors import CheckpointFailed, CollabError, Fenced, HubBusy, HubDenied, HubError
from collab.metrics.records import CheckpointOnHub, Notice
from collab.ports import Compute, Ports
from collab.swarm.backbone_records import Publication
from collab.swarm.lease import Tenure

logger = logging.getLogger(__name__)

LOOK_S = 1.0
FIRST_WAIT_S, LONGEST_WAIT_S = 5.0, 900.0
"""Between two attempts: doubled after each failure, unless the Hub asks for more."""
SPREAD = 0.25
"""So much of a wait is left to chance, lest all backbones come back at once."""
DENIED_S = 900.0
"""What was refused is tried again after so long, and nothing is said unless it is refused for another reason: whoever
mends a token or makes room does not have to start the backbone again."""
LONG_S = 3600.0
"""People are told of what has been on its way for longer."""
TOLD_AFTER = 2
"""Failures in a row, after which a person hears of it: the Hub stumbles now and then."""

SLOW = (
    "see whether this machine's uplink is busy, or slow for so large a model; if nothing moves, start the backbone "
    "again: what has arrived is not sent again"
)

Attempt = tuple[str, Tenure]
"""Digest of what was to be published, and under which lease."""


class Shelf(Protocol):
    """What of the checkpoints on the disk matters here."""

    @property
    def root(self) -> Path:
        """Where they lie."""
        ...

    @property
    def publication(self) -> Publication | None:
        """Of the newest one, if it was published."""
        ...

    @property
    def era(self) -> str:
        """Of that one: mark of the rollback that its history began with; empty: there was none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HubPlan:
    """Where to publish, and by what."""

    place: str
    """Of the repository, for people."""
    publish: Callable[[Path, Order], OnHub]
    """Blocks; see ``HubPublisher``."""
    worker: Compute
    """Does nothing else."""
    every_s: float = 0.0
    """After a commit the next one is not before so long, but for the last ones: of the run, and before we leave."""
    is_last: Callable[[int], bool] = lambda _: False
    """Whether the run ends with this epoch."""
    is_told: Callable[[OnHub], bool] = lambda _: False
    """Whether people have heard in an earlier life that it is there; asked where ``publish`` is called."""


class HubDesk:
    """Of one backbone."""

    def __init__(self, ports: Ports, shelf: Shelf, tenure: Callable[[], Tenure | None], plan: HubPlan) -> None:
        """
        Args:
            tenure: under which we may publish at this very moment, asked from any thread.
        """
        self._ports, self._shelf, self._tenure, self._plan = ports, shelf, tenure, plan
        self._settled: Attempt | None = None
        """There, or not to be tried again before ``_denied_until_s``."""
        self._not_before_s = self._paced_until_s = -math.inf
        self._denied_until_s = math.inf
        self._one_turn, self._is_leaving = asyncio.Lock(), False
        self._failures = 0
        self._said = ""
        """What is wrong, as a person has last heard of it."""
        self._told_of = ""
        """Digest of the last checkpoint of which people have heard that it is on the Hub,"""
        self._sent_epoch, self._sent_era = -1, ""
        """and its epoch and era."""
        self._trouble: CollabError | None = None
        """What asks for action, or has lasted."""
        self._failing_since_s: float | None = None
        """Swarm time of the first failure after the last success."""
        self.under_way: int | None = None
        """Epoch of the checkpoint that is being sent."""
        self._began_s = math.inf
        """Swarm time since when."""

    @property
    def standing(self) -> str:
        """What keeps the newest checkpoint from the Hub, and since when; empty: all is well, or it is not our turn."""
        published = self._shelf.publication
        if published is None or self._tenure() is None:
            return ""
        if self._trouble is not None and self._failing_since_s is not None:
            since = _date(self._failing_since_s)
            return f"epoch {published.epoch} is not on the Hub yet: {self._trouble.message} (since {since})"
        if self._is_slow:
            return f"epoch {self.under_way} is not on the Hub yet: it has been on its way since {_date(self._began_s)}"
        return ""

    @property
    def next_step(self) -> str:
        """What to do about ``standing``."""
        if not self.standing:
            return ""
        return self._trouble.hint if self._trouble is not None else SLOW

    @property
    def _is_slow(self) -> bool:
        return self.under_way is not None and self._ports.clock.now() - self._began_s > LONG_S

    async def run(self) -> None:
        """Publish what is due, until cancelled."""
        while True:
            if not self._is_leaving:
                await self.turn()
            await asyncio.sleep(LOOK_S)

    async def finish(self, limit_s: float) -> None:
        """Before the backbone gives up its lease: have the newest checkpoint sent, however long ago the last one was.

        Args:
            limit_s: nobody waits for longer; what has arrived by then is not sent again by the next life.
        """
        self._is_leaving = True
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self.turn()

    async def turn(self) -> None:
        """One look, and one attempt if it is time for one."""
        async with self._one_turn:
            await self._look()

    def _is_due(self, epoch: int, attempt: Attempt) -> bool:
        now_s = self._ports.clock.monotonic()
        if attempt == self._settled:
            return now_s >= self._denied_until_s
        is_left = epoch < self._sent_epoch or self._shelf.era != self._sent_era  # what is on the Hub counts no more
        return now_s >= self._paced_until_s or is_left or self._is_leaving or self._plan.is_last(epoch)

    async def _look(self) -> None:
        published, tenure, clock = self._shelf.publication, self._tenure(), self._ports.clock
        era = self._shelf.era
        if published is None or tenure is None or clock.monotonic() < self._not_before_s:
            return
        attempt = published.digest, tenure
        if not self._is_due(published.epoch, attempt):
            return
        order = Order(publication=published, authority=tenure, may_finish=lambda: self._tenure() == tenure)
        self.under_way, self._began_s = published.epoch, clock.now()
        path, started_s = path_of(self._shelf.root, published.epoch), clock.monotonic()
        try:
            done, is_told = await self._plan.worker.run(lambda: self._publish(path, order))
        except (Fenced, HubDenied) as error:
            self._settled = attempt  # the next checkpoint, or the next lease, is another matter
            self._failures = 0
            self._denied_until_s = clock.monotonic() + DENIED_S if isinstance(error, HubDenied) else math.inf
            self._give_up(error, is_our_turn=order.may_finish())
        except (HubError, CheckpointFailed) as error:
            self._try_later(error)
        except Exception:  # whatever is wrong with what goes to the Hub, the run goes on
            logger.exception("publishing failed place=%s epoch=%d", self._plan.place, published.epoch)
            text = f"epoch {published.epoch} could not be published in {self._plan.place}: see the log"
            self._try_later(HubError(text))
        else:
            self._settled, self._failures, self._denied_until_s = attempt, 0, math.inf
            is_known = is_told or self._told_of == published.digest
            if done.is_new or not is_known:
                self._paced_until_s = clock.monotonic() + self._plan.every_s
            self._succeed(done, clock.monotonic() - started_s, is_told=is_known)
            self._told_of, self._sent_epoch, self._sent_era = published.digest, published.epoch, era
        self.under_way = None

    def _publish(self, path: Path, order: Order) -> tuple[OnHub, bool]:
        """And whether people have heard of it before. In the worker."""
        done = self._plan.publish(path, order)
        return done, not done.is_new and self._plan.is_told(done)

    def _give_up(self, error: Fenced | HubDenied, *, is_our_turn: bool) -> None:
        """A place that is not ours any more, or is ahead of us for a while, asks nothing of anybody: see the hint."""
        is_problem = isinstance(error, HubDenied) or (is_our_turn and bool(error.hint))
        if is_problem:
            self._note(error)
        else:
            self._trouble = self._failing_since_s = None
        self._tell(error.message, error.hint, is_problem=is_problem)

    def _note(self, error: CollabError | None) -> None:
        """Something has failed; None: it need not be known what."""
        if self._failing_since_s is None:
            self._failing_since_s = self._ports.clock.now()
        self._trouble = error or self._trouble

    def _try_later(self, error: HubError | CheckpointFailed) -> None:
        wait_s = min(FIRST_WAIT_S * 2.0**self._failures, LONGEST_WAIT_S)
        wait_s *= 1.0 + SPREAD * self._ports.rng.random()
        if isinstance(error, HubBusy):
            wait_s = max(wait_s, error.retry_after_s)
        self._failures += 1
        self._not_before_s = self._ports.clock.monotonic() + wait_s
        is_known = self._failures >= TOLD_AFTER
        waits = "training goes on, checkpoints stay on this disk, and the newest one is sent when the Hub answers"
        hint = error.hint if isinstance(error, CheckpointFailed) else waits
        self._note(CollabError(error.message, hint=hint) if is_known else None)
        if is_known:
            self._tell(error.message, hint, is_problem=True)

    def _succeed(self, done: OnHub, seconds: float, *, is_told: bool) -> None:
        self._not_before_s = -math.inf
        self._trouble = self._failing_since_s = None
        if self._said:
            self._say(f"{self._plan.place} takes checkpoints again", settles=self._said)
            self._said = ""
        if done.remark:
            self._say(done.remark, "what it was is in the history of the repository")
        if not is_told:
            self._ports.observer.observe(
                CheckpointOnHub(
                    at_s=self._ports.clock.now(),
                    epoch=done.epoch,
                    place=self._plan.place,
                    commit=done.commit,
                    num_bytes=done.num_bytes,
                    seconds=seconds,
                )
            )

    def _tell(self, text: str, hint: str, *, is_problem: bool) -> None:
        """Once, until something was published again or something else is wrong."""
        if text != self._said:
            self._said = text
            self._say(text, hint, is_problem=is_problem)

    def _say(self, text: str, hint: str = "", *, is_problem: bool = False, settles: str = "") -> None:
        at_s = self._ports.clock.now()
        self._ports.observer.observe(
            Notice(at_s=at_s, text=text, hint=hint, is_problem=is_problem, settles=settles)
        )


def _date(swarm_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(swarm_s))
