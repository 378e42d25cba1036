"""Where a peer keeps its things, one directory for one process."""

import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from collab.errors import ConfigError
from peers.disk_remedy import remedy
from peers.pausable import note_pausable
from peers.upgrading import bring_up_to_date

RUN_FILE = "run.yaml"
OWNER_KEY = "owner.key"
ORDERS = "orders"
"""The organiser's orders: beside the run file, and in the directory of each peer."""
ADDRESSES = "backbone/addresses.json"
"""Of the backbone of a run directory, as it last started."""
INVITES = "invites.jsonl"
"""Whom the organiser has invited; no secrets."""
ELSEWHERE = "name another --data-dir"
"""That of a peer which has this option."""
LOCK = ".lock"
NEVER_PAUSES = "never pauses"
"""In the lock of a directory whose process does not look for the owner's mark."""


@dataclass(frozen=True, slots=True)
class DataDir:
    """A directory that this process has to itself."""

    path: Path
    lock: int = field(default=-1, compare=False)
    """Descriptor of the lock that says so; -1: it is looked at from outside."""

    @property
    def identity(self) -> Path:
        """libp2p key file."""
        return self.path / "identity.key"

    @property
    def metrics(self) -> Path:
        """Events as JSON lines."""
        return self.path / "metrics.jsonl"

    @property
    def history(self) -> Path:
        """The metrics of a backbone, as its dashboard shows them."""
        return self.path / "metrics.sqlite"

    @property
    def credits(self) -> Path:
        """Who has given how much, as a backbone has heard."""
        return self.path / "credits.sqlite"

    @property
    def state(self) -> Path:
        """What a trainer has of the run's state, for its next life."""
        return self.path / "state"

    @property
    def pause_mark(self) -> Path:
        """There while the owner of the machine wants this peer to pause."""
        return self.path / "paused"

    @property
    def condition(self) -> Path:
        """What the peer is doing, for ``collab-peer pause`` and ``resume``."""
        return self.path / "condition.json"

    @property
    def agreed(self) -> Path:
        """To which run this machine's owner has agreed."""
        return self.path / "agreed.json"

    @property
    def traffic(self) -> Path:
        """Bytes of this month."""
        return self.path / "traffic.json"

    @property
    def backbones(self) -> Path:
        """Where backbones of the run were when this peer last looked."""
        return self.path / "backbones.json"

    @property
    def run(self) -> Path:
        """The run as it travels, kept by a backbone that has joined: it may be the first that comes back."""
        return self.path / "run"

    @property
    def parameters(self) -> Path:
        """The parameters of a run with parameter servers."""
        return self.path / "parameters.sqlite"

    @property
    def coverage(self) -> Path:
        """What of the data was trained, as a backbone knows it."""
        return self.path / "coverage.json"

    @property
    def fingerprint(self) -> Path:
        """Of the run that the organiser's backbone serves, or has served last."""
        return self.path / "fingerprint"

    @property
    def last_seen(self) -> Path:
        """How far the swarm was when a backbone saw it last."""
        return self.path / "last-seen.json"

    @property
    def hub_history(self) -> Path:
        """Curves and contributors that came from the Hub with a checkpoint."""
        return self.path / "hub-history.json"

    @property
    def begins_with(self) -> Path:
        """Whose state a new owner's run is to begin with, as its first start was told."""
        return self.path / "begins-with"

    @property
    def orders(self) -> Path:
        """The organiser's, as a backbone has heard them."""
        return self.path / ORDERS

    @property
    def checkpoints(self) -> Path:
        """Root of the checkpoints of a backbone."""
        return self.path / "checkpoints"


def cache_dir() -> Path:
    """Encoded data, shared by all peers of this user."""
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "collab"


def data_home() -> Path:
    """Where the directories of this user's peers are, by run, unless they were named."""
    return Path(os.environ.get("XDG_DATA_HOME", "~/.local/share")).expanduser() / "collab"


def is_in_use(path: Path) -> bool:
    """Whether a process has this directory to itself now."""
    try:
        with _at_the_door(path, fcntl.LOCK_SH), (path / LOCK).open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def never_pauses(path: Path) -> bool:
    """Whether the process that has this directory to itself is one that does not pause, such as a backbone."""
    try:
        return (path / LOCK).read_text(encoding="utf-8") == NEVER_PAUSES
    except (OSError, UnicodeDecodeError):
        return False


@contextmanager
def claim_data_dir(
    chosen: Path | None, run_id: str, kind: str = "peer", *, pauses: bool = False, elsewhere: str = ELSEWHERE
) -> Iterator[DataDir]:
    """The directory of this process: ``chosen``, or the first one under the user's data that nobody uses. One of an
    earlier version of this program is brought up to date.

    Args:
        kind: of the directories to look at; a guest's key is no peer's.
        pauses: whether the process does so at its owner's word; it is then found by ``collab-peer pause``.
        elsewhere: what can be done instead of mending the directory; empty: nothing.

    Raises:
        ConfigError: ``chosen`` cannot be written, or another process uses it; the directory is of a later version.
    """
    if chosen is not None:
        with _claimed(chosen, pauses=pauses, elsewhere=elsewhere) as claimed:
            if claimed is None:
                hint = "stop it, or use another directory: each peer has one of its own"
                raise ConfigError(f"another peer uses {chosen}", hint=hint)
            bring_up_to_date(claimed.path, elsewhere=elsewhere)
            yield claimed
        return
    for number in count(1):
        with _claimed(data_home() / run_id / f"{kind}-{number}", pauses=pauses, elsewhere=elsewhere) as claimed:
            if claimed is not None:
                bring_up_to_date(claimed.path, elsewhere=elsewhere)
                yield claimed
                return


def place_of_next(chosen: Path | None, run_id: str) -> DataDir:
    """Which directory ``claim_data_dir`` would give a peer now; it is not made."""
    usual = (data_home() / run_id / f"peer-{number}" for number in count(1))
    return DataDir(chosen if chosen is not None else next(path for path in usual if not is_in_use(path)))


@contextmanager
def _at_the_door(path: Path, how: int) -> Iterator[None]:
    """With a lock of the directory itself, for as long as the one within is tried: who only looks whether it is in use
    holds that for a moment, and a peer that starts then would take it for another peer.
    """
    try:
        door = os.open(path, os.O_RDONLY)
    except OSError:  # there is none, or it is another user's
        yield
        return
    try:
        with suppress(OSError):  # a network's file system may lock files only
            fcntl.flock(door, how)
        yield
    finally:
        os.close(door)


@contextmanager
def _claimed(path: Path, *, pauses: bool, elsewhere: str) -> Iterator[DataDir | None]:
    """``path`` under a lock that ends with the process; None when another process holds it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = (path / LOCK).open("ab", buffering=0)  # what the holder has written stays until it is ours
    except OSError as error:
        hint = "; or ".join(filter(None, (remedy(path, error), elsewhere)))
        raise ConfigError(f"cannot write to {path}: {error.strerror}", hint=hint) from error
    with lock:
        try:
            with _at_the_door(path, fcntl.LOCK_EX):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        with suppress(OSError):  # a full disk: whoever asks a backbone to pause waits for an answer then
            lock.truncate(0)
            lock.write(b"" if pauses else NEVER_PAUSES.encode())
        if pauses:
            note_pausable(path)
        yield DataDir(path, lock.fileno())


def command_name() -> str:
    """What to type for ``collab-peer`` here: in a checkout it lies in the environment, which may not be active."""
    if shutil.which("collab-peer"):
        return "collab-peer"
    return os.path.relpath(Path(sys.executable).with_name("collab-peer"))
