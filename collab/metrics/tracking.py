"""A run's figures for a tracking service, wandb or trackio: from a thread of its own, for which nobody ever waits."""

import logging
import queue
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from collab.compute import WORKER
from collab.metrics.names import EPOCH, Figure, figures_of
from collab.metrics.records import Event

logger = logging.getLogger(__name__)

PROJECT = "collab"
MOST_WAITING = 5_000
"""Figures that wait for a service that does not take them; of more, the newest are lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """What a service knows a run by."""

    identity: str
    """Of this run and this backbone: the same in each of its lives, so that curves go on."""
    name: str
    config: Mapping[str, Any]
    """The run file."""
    directory: Path
    """For what it writes to the disk."""


class Say(Protocol):
    """Tells a person something; called from any thread."""

    def __call__(self, text: str, hint: str = "", settles: str = "") -> None:
        """
        Args:
            hint: what to do, if something is wrong.
            settles: text of what was wrong until now.
        """
        ...


class Service(Protocol):
    """Where figures go. Called from one thread; everything may block, and raise whatever the library raises."""

    @property
    def name(self) -> str: ...

    def begin(self, tracked: Tracked, say: Say) -> None:
        """Open the run, or go on with it; says where it is."""
        ...

    def log(self, figures: Mapping[str, float]) -> None:
        """Values of metrics at one epoch, which is among them."""
        ...

    def end(self) -> None:
        """Send what there is."""
        ...


class Tracker:
    """Implements ``Sink``: hands figures to a service. Whatever that does, the run goes on."""

    def __init__(self, service: Service, tracked: Tracked, say: Say) -> None:
        self._service, self._tracked, self._say = service, tracked, say
        self._waiting: queue.Queue[tuple[Figure, ...] | None] = queue.Queue(MOST_WAITING)
        # Named like the workers: a process that is to end does not wait for it, nor for what its library does at exit.
        self._thread = threading.Thread(target=self._run, name=WORKER, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def observe(self, event: Event) -> None:
        if figures := figures_of(event):
            try:
                self._waiting.put_nowait(figures)
            except queue.Full:
                logger.debug("figures for %s are lost: it takes none", self._service.name)

    def close(self, limit_s: float) -> None:
        """Let it send what waits, for so long."""
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            self._waiting.get_nowait()  # nobody else puts anything there any more
            self._waiting.put_nowait(None)
        if self._thread.is_alive():
            self._thread.join(limit_s)

    def _run(self) -> None:
        name = self._service.name
        try:
            self._service.begin(self._tracked, self._say)
            while (figures := self._waiting.get()) is not None:
                for epoch in sorted({figure.epoch for figure in figures}):
                    values = {figure.name: figure.value for figure in figures if figure.epoch == epoch}
                    self._service.log({EPOCH.name: float(epoch), **values})
            self._service.end()
        except ImportError as error:
            self._say(f"{name} cannot be used: {error}", f"pip install {name}, beside collab, or --track none")
        except Exception as error:  # noqa: BLE001 - of any kind, and none of it is the run's business
            reason = type(error).__name__  # its text may hold a key
            logger.warning("tracking has ended service=%s reason=%s", name, reason)
            self._say(f"{name} takes no more figures: {reason}", "the run and its dashboard go on without")
