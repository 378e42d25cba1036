"""A backbone's way to the Hub: what it has published on its disk is published there, too, while it holds the lease.

It looks at the shelf again and again instead of being told: so the newest checkpoint is taken up again after a failure,
a lost lease or a restart, and what was overtaken while the Hub did not answer is left out. The work itself runs in a
thread of its own, and nobody waits for it.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from collab.checkpoints.base import Order
from collab.checkpoints.hub_publisher import OnHub
from collab.checkpoints.local import path_of
from collab.errors import CheckpointFailed, Fenced, HubBusy, HubDenied, HubError
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
TOLD_AFTER = 2
"""Failures in a row, after which a person hears of it: the Hub stumbles now and then."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class HubPlan:
    """Where to publish, and by what."""

    place: str
    """Of the repository, for people."""
    publish: Callable[[Path, Order], OnHub]
    """Blocks; see ``HubPublisher``."""
    worker: Compute
    """Does nothing else."""


class HubDesk:
    """Of one backbone."""

    def __init__(self, ports: Ports, shelf: Shelf, tenure: Callable[[], Tenure | None], plan: HubPlan) -> None:
        """
        Args:
            tenure: under which we may publish at this very moment, asked from any thread.
        """
        self._ports, self._shelf, self._tenure, self._plan = ports, shelf, tenure, plan
        self._settled: Attempt | None = None
        """There, or not to be tried again."""
        self._not_before_s = -math.inf
        self._failures = 0
        self._told = ""
        self.under_way: int | None = None
        """Epoch of the checkpoint that is being sent."""

    async def run(self) -> None:
        """Publish what is due, until cancelled."""
        while True:
            await self.turn()
            await asyncio.sleep(LOOK_S)

    async def turn(self) -> None:
        """One look, and one attempt if it is time for one."""
        published, tenure, clock = self._shelf.publication, self._tenure(), self._ports.clock
        if published is None or tenure is None or clock.monotonic() < self._not_before_s:
            return
        attempt = published.digest, tenure
        if attempt == self._settled:
            return
        order = Order(publication=published, authority=tenure, may_finish=lambda: self._tenure() == tenure)
        self.under_way = published.epoch
        path, started_s = path_of(self._shelf.root, published.epoch), clock.monotonic()
        try:
            done = await self._plan.worker.run(lambda: self._plan.publish(path, order))
        except (Fenced, HubDenied) as error:
            self._settled = attempt  # the next checkpoint, or the next lease, is another matter
            self._failures = 0
            self._tell(error.message, error.hint, is_problem=isinstance(error, HubDenied))
        except (HubError, CheckpointFailed) as error:
            self._try_later(error)
        except Exception:  # whatever is wrong with what goes to the Hub, the run goes on
            logger.exception("publishing failed place=%s epoch=%d", self._plan.place, published.epoch)
            text = f"epoch {published.epoch} could not be published in {self._plan.place}: see the log"
            self._try_later(HubError(text))
        else:
            self._settled, self._failures = attempt, 0
            self._succeed(done, clock.monotonic() - started_s)
        self.under_way = None

    def _try_later(self, error: HubError | CheckpointFailed) -> None:
        wait_s = min(FIRST_WAIT_S * 2.0**self._failures, LONGEST_WAIT_S)
        wait_s *= 1.0 + SPREAD * self._ports.rng.random()
        if isinstance(error, HubBusy):
            wait_s = max(wait_s, error.retry_after_s)
        self._failures += 1
        self._not_before_s = self._ports.clock.monotonic() + wait_s
        if self._failures >= TOLD_AFTER:
            hint = "training goes on, checkpoints stay on this disk, and the newest one is sent when the Hub answers"
            self._tell(error.message, hint, is_problem=True)

    def _succeed(self, done: OnHub, seconds: float) -> None:
        self._not_before_s = -math.inf
        if self._told:
            self._told = ""
            self._say(f"{self._plan.place} takes checkpoints again")
        if done.is_new:
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
        if text != self._told:
            self._told = text
            self._say(text, hint, is_problem=is_problem)

    def _say(self, text: str, hint: str = "", *, is_problem: bool = False) -> None:
        notice = Notice(at_s=self._ports.clock.now(), text=text, hint=hint, is_problem=is_problem)
        self._ports.observer.observe(notice)
