"""A run's figures for a tracking service, wandb or trackio: from a thread of its own, for which nobody ever waits."""

import logging
import os
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
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
INIT_LIMIT_S = 15
KEY, MODE = "WANDB_API_KEY", "WANDB_MODE"
"""Variables of wandb's."""
Say = Callable[[str, str], None]
"""Tells a person a text and a hint; called from any thread."""


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


class Service(Protocol):
    """Where figures go. Called from one thread; everything may block, and raise whatever the library raises."""

    @property
    def name(self) -> str: ...

    def begin(self, tracked: Tracked) -> tuple[str, str]:
        """Open the run, or go on with it; a remark for a person, and what to do if something is wrong."""
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
            self._say(*self._service.begin(self._tracked))
            while (figures := self._waiting.get()) is not None:
                for epoch in sorted({figure.epoch for figure in figures}):
                    values = {figure.name: figure.value for figure in figures if figure.epoch == epoch}
                    self._service.log({EPOCH.name: float(epoch), **values})
            self._service.end()
        except ImportError as error:
            self._say(f"{name} cannot be used: {error}", f"pip install 'collab[{name}]', or --track none")
        except Exception as error:  # noqa: BLE001 - of any kind, and none of it is the run's business
            reason = type(error).__name__  # its text may hold a key
            logger.warning("tracking has ended service=%s reason=%s", name, reason)
            self._say(f"{name} takes no more figures: {reason}", "the run and its dashboard go on without")


FIGURES_ONLY: dict[str, Any] = {
    "disable_git": True, "disable_code": True, "host": "collab",
    "x_disable_meta": True, "x_disable_machine_info": True, "x_disable_stats": True, "x_save_requirements": False,
}  # fmt: skip
"""Else wandb sends the machine's and the user's name, paths, the processor's load, installed packages, and the whole
command line, with whatever secret is there."""


class Wandb:
    """Weights & Biases. Without a key, or where it cannot be reached in time, on the disk only."""

    name = "wandb"

    def __init__(self) -> None:
        self._run: Any = None

    def begin(self, tracked: Tracked) -> tuple[str, str]:
        import wandb

        settings = wandb.Settings(silent=True, console="off", init_timeout=INIT_LIMIT_S, **FIGURES_ONLY)
        wandb.setup(settings=settings)
        mode = os.environ.get(MODE) or ("online" if os.environ.get(KEY) else "offline")
        known: dict[str, Any] = {
            "project": os.environ.get("WANDB_PROJECT", PROJECT),
            "id": tracked.identity,
            "name": tracked.name,
            "resume": "allow",
            "config": dict(tracked.config),
            "dir": str(tracked.directory),
            "settings": settings,
        }
        problem = ""
        try:
            self._run = wandb.init(mode=mode, **known)
        except Exception as error:
            if mode == "offline":
                raise
            problem = f"wandb cannot be reached ({type(error).__name__}); figures are kept on this disk"
            wandb.teardown()  # else what it has begun under this identity is in the way
            self._run = wandb.init(mode="offline", **known)
        self._run.define_metric("*", step_metric=EPOCH.name)
        if problem:
            later = "start the backbone again when wandb answers, and for what is there until then"
            return problem, f"{later}: wandb sync {tracked.directory / 'wandb' / 'offline-run-*'}"
        place = f"in {tracked.directory / 'wandb'}" if self._run.offline else self._run.url
        return f"wandb has the figures: {place}", ""

    def log(self, figures: Mapping[str, float]) -> None:
        self._run.log(dict(figures))

    def end(self) -> None:
        self._run.finish()


class Trackio:
    """Trackio, on this machine."""

    name = "trackio"

    def __init__(self) -> None:
        self._library: Any = None

    def begin(self, tracked: Tracked) -> tuple[str, str]:
        import trackio

        self._library = trackio
        name = f"{tracked.name}-{tracked.identity}"
        with redirect_stdout(sys.stderr):  # it prints, and standard output is for results
            trackio.init(project=PROJECT, name=name, config=dict(tracked.config), resume="allow")
        return f"trackio has the figures: trackio show --project {PROJECT}", ""

    def log(self, figures: Mapping[str, float]) -> None:
        self._library.log(dict(figures), step=int(figures[EPOCH.name]))

    def end(self) -> None:
        with redirect_stdout(sys.stderr):
            self._library.finish()


def service_for(word: str) -> Service | None:
    """What ``--track`` names; ``auto``: wandb where it has a key.

    Raises:
        ValueError: it names nothing.
    """
    match word:
        case "none":
            return None
        case "auto":
            return Wandb() if os.environ.get(KEY) else None
        case "wandb":
            return Wandb()
        case "trackio":
            return Trackio()
    raise ValueError(f"expected auto, wandb, trackio or none, got {word!r}")
