"""Weights & Biases: one run, over a backbone's lives and over hours in which the service does not answer."""

import logging
import netrc
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from collab.metrics.names import EPOCH
from collab.metrics.tracking import PROJECT, Say, Tracked

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
AGAIN_S, MOST_AGAIN_S = 3600.0, 24 * 3600.0
"""Until a service that did not answer is tried again, and how long that becomes: each try leaves a directory."""
MOST_OWED = 5_000
"""Epochs that are sent when it answers at last; of more, the newest. The disk has all of them."""
KEPT_BYTES = 500 * 10**6
"""Of what earlier lives have left on the disk."""


class Wandb:
    """Without a key on the disk only; also while it cannot be reached, and it gets all of that when it can be."""

    name = "wandb"

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._run: Any = None
        """None: neither the service nor the disk takes figures."""
        self._known: dict[str, Any] = {}
        self._mode = ""
        self._folder = Path()
        self._say: Any = None
        self._problem = ""
        """What a person was told is wrong; empty: nothing is."""
        self._wait_s, self._next_s = AGAIN_S, 0.0
        self._owed: dict[float, dict[str, float]] = {}
        """By epoch, of which several events tell."""

    def begin(self, tracked: Tracked, say: Say) -> None:
        import wandb

        self._say, self._folder = say, tracked.directory / "wandb"
        settings = wandb.Settings(silent=True, console="off", init_timeout=INIT_LIMIT_S, **FIGURES_ONLY)
        wandb.setup(settings=settings)
        self._known = {
            "project": os.environ.get("WANDB_PROJECT", PROJECT),
            "id": tracked.identity,
            "name": tracked.name,
            "resume": "allow",
            "config": dict(tracked.config),
            "dir": str(tracked.directory),
            "settings": settings,
        }
        self._mode = os.environ.get(MODE) or ("online" if has_key() else "offline")
        if reason := self._open(self._mode):
            self._fall_back("cannot be reached" if self._mode == "online" else "cannot begin", reason)
        else:
            say(self._where())

    def log(self, figures: Mapping[str, float]) -> None:
        if not self._problem:
            reason = self._send(figures)
            if not reason:
                return
            self._fall_back("takes no figures", reason)
        self._owed.setdefault(figures[EPOCH.name], {}).update(figures)
        if len(self._owed) > MOST_OWED:
            del self._owed[next(iter(self._owed))]
        if self._now() >= self._next_s:
            self._try_again()
        if self._problem and self._run is not None:  # else these were among what was owed, or nothing takes them
            self._send(figures)

    def end(self) -> None:
        if self._run is not None:
            self._run.finish()

    def _open(self, mode: str) -> str:
        """Begin the run, or go on with it; where that fails, there is none: the reason."""
        import wandb

        try:
            trim(self._folder, KEPT_BYTES)
            self._run = wandb.init(mode=mode, **self._known)
            self._run.define_metric("*", step_metric=EPOCH.name)
        except Exception as error:  # noqa: BLE001 - of any kind
            self._drop()
            return type(error).__name__  # its text may hold the key
        return ""

    def _send(self, *figures: Mapping[str, float]) -> str:
        """Hand all over; where that fails, there is no run any more: the reason."""
        try:
            for row in figures:
                self._run.log(dict(row))
        except Exception as error:  # noqa: BLE001 - of any kind
            self._drop()
            return type(error).__name__
        return ""

    def _drop(self) -> None:
        """Whatever has begun under this identity, and is in the way of the next."""
        import wandb

        self._run = None
        try:
            wandb.teardown()
        except Exception as error:  # noqa: BLE001 - its process may be what has died
            logger.debug("wandb does not end in order reason=%s", type(error).__name__)

    def _where(self) -> str:
        return f"wandb has the figures: {f'in {self._folder}' if self._run.offline else self._run.url}"

    def _fall_back(self, what: str, reason: str) -> None:
        """To the disk, and tell a person what is wrong."""
        self._put_off()
        where = "on this disk" if self._run is not None else "in memory, as this disk takes none,"
        self._problem = f"wandb {what} ({reason}); figures are kept {where} meanwhile"
        hint = "it is tried again by itself, and gets them then; for what earlier lives left here, and this one"
        self._say(self._problem, f"{hint} when it ends before: wandb sync {self._folder / 'offline-run-*'}")

    def _put_off(self) -> None:
        """Until the next try what comes goes to the disk, if that takes it."""
        self._open("offline")
        self._next_s = self._now() + self._wait_s
        self._wait_s = min(2 * self._wait_s, MOST_AGAIN_S)

    def _try_again(self) -> None:
        """Whether it answers by now; then it gets what it has missed."""
        try:
            self.end()
        except Exception:  # noqa: BLE001 - of any kind
            self._drop()
        if self._open(self._mode) or self._send(*self._owed.values()):
            self._put_off()
            return
        self._owed.clear()
        self._say(self._where(), settles=self._problem)
        self._problem, self._wait_s = "", AGAIN_S


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
