"""Weights & Biases: one run, over a backbone's lives and over hours in which the service does not answer."""

import logging
import netrc
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from collab.metrics.names import EPOCH
from collab.metrics.retried import Route
from collab.metrics.tracking import PROJECT, Tracked

logger = logging.getLogger(__name__)

INIT_LIMIT_S = 15
KEY, MODE, PLACE = "WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"
"""Variables of wandb's."""
USUAL_PLACE = "https://api.wandb.ai"
FIGURES_ONLY: dict[str, Any] = {
    "disable_git": True, "disable_code": True, "host": "collab",
    "x_disable_meta": True, "x_disable_machine_info": True, "x_disable_stats": True, "x_save_requirements": False,
}  # fmt: skip
"""Else wandb sends the machine's and the user's name, paths, the processor's load, installed packages, and the whole
command line, with whatever secret is there."""
KEPT_BYTES = 500 * 10**6
"""Of what earlier lives have left on the disk."""


class Wandb:
    """Without a key on the disk only; also while it cannot be reached, and it gets all of that when it can be."""

    name = "wandb"

    def route(self, tracked: Tracked) -> Route:
        """See ``Library``."""
        import wandb

        settings = wandb.Settings(silent=True, console="off", init_timeout=INIT_LIMIT_S, **FIGURES_ONLY)
        wandb.setup(settings=settings)
        known = {
            "project": os.environ.get("WANDB_PROJECT", PROJECT),
            "id": tracked.identity,
            "name": tracked.name,
            "resume": "allow",
            "config": dict(tracked.config),
            "dir": str(tracked.directory),
            "settings": settings,
        }
        folder, mode = tracked.directory / "wandb", os.environ.get(MODE) or ("online" if has_key() else "offline")
        service = WandbRun(known, folder, mode)
        return Route(
            service=service,
            unopened="cannot be reached" if mode == "online" else "cannot begin",
            stand_in=service if mode == "offline" else WandbRun(known, folder, "offline"),
            hint="for what earlier lives left here, and this one when it ends before: "
            f"wandb sync {folder / 'offline-run-*'}",
        )


class WandbRun:
    """Implements ``Destination``: a run of wandb's, with the service or on the disk."""

    def __init__(self, known: Mapping[str, Any], folder: Path, mode: str) -> None:
        """
        Args:
            known: of the run, as wandb wants it.
            folder: where wandb keeps on this disk what it does not send.
        """
        self._known, self._folder, self._mode = known, folder, mode
        self._run: Any = None

    @property
    def where(self) -> str:
        """See ``Destination``."""
        return f"in {self._folder}" if self._run.offline else str(self._run.url)

    def open(self) -> None:
        """See ``Destination``."""
        import wandb

        trim(self._folder, KEPT_BYTES)
        self._run = wandb.init(mode=self._mode, **self._known)
        self._run.define_metric("*", step_metric=EPOCH.name)

    def take(self, figures: Mapping[str, float]) -> None:
        """See ``Destination``."""
        self._run.log(dict(figures))

    def close(self) -> None:
        """See ``Destination``."""
        self._run.finish()

    def drop(self) -> None:
        """See ``Destination``: nothing else may have this identity."""
        import wandb

        try:
            wandb.teardown()
        except Exception as error:  # noqa: BLE001 - its process may be what has died
            logger.debug("wandb does not end in order reason=%s", type(error).__name__)


def has_key() -> bool:
    """Whether this user has given wandb a key: in a variable, or by ``wandb login``, which keeps it in ``.netrc``."""
    if os.environ.get(KEY):
        return True
    host = urlsplit(os.environ.get(PLACE) or USUAL_PLACE).hostname or ""
    for path in (os.environ.get("NETRC"), "~/.netrc", "~/_netrc"):
        try:
            if path and host in netrc.netrc(Path(path).expanduser()).hosts:  # its "default" is no key of wandb's
                return True
        except (OSError, ValueError, netrc.NetrcParseError):  # ValueError: of no encoding that this machine uses
            continue
    return False


def trim(folder: Path, most_bytes: int) -> None:
    """Remove the oldest lives' directories until all take no more than so much; the newest stays."""
    lives = [life for life in folder.glob("*run-*") if life.is_dir() and not life.is_symlink()]
    lives.sort(key=lambda life: life.stat().st_mtime, reverse=True)
    total = 0
    for place, life in enumerate(lives):
        total += sum(path.lstat().st_size for path in life.rglob("*") if path.is_file())
        if place and total > most_bytes:
            shutil.rmtree(life, ignore_errors=True)
