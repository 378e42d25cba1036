"""What makes a peer the same one on the next machine, in a folder that outlives this one: of a mounted drive, say.

These are a few small files, and seldom written: a drive keeps for weeks what was written over or deleted, and counts
it. The run's state is none of them, since the swarm has it.
"""

import asyncio
import fcntl
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from collab.concurrency import Background
from collab.durable import replace_file
from collab.errors import ConfigError
from peers.hub_lookup import apart
from peers.places import LOCK, DataDir
from peers.process import announce

LOOK_S = 5.0
"""How soon a file is in the folder that was not there before."""
REST_S = 600.0
"""How often one is put there that changes; and until a folder that took nothing is tried again."""
PRIVATE = 0o600
"""For this user only: the key is among them."""
OTHER_PLACE = (
    "name a new directory with --data-dir to go on as the one that is kept, or leave --keep out to go on as this one"
)
ANOTHER = "name another with --keep: each peer has one of its own"


class Lasting:
    """One peer's files, in its directory on this machine and in the folder."""

    def __init__(self, folder: Path, place: DataDir, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._place, self._monotonic = folder, place, monotonic
        self._key = place.identity.name
        self._files = (place.identity, place.agreed, place.backbones, place.traffic)
        self._own_count = place.traffic
        """Of this machine's line: the folder's may be of another one's, or ten minutes older after a power cut."""
        self._kept: dict[str, bytes] = {}
        """What is in the folder, if nobody else writes there."""
        self._rests_until_s, self._fails_until_s = -math.inf, -math.inf
        self._is_shared, self._told = False, ""
        self._lock = threading.Lock()
        """At the end a thread may still be at it that nobody waits for."""

    def bring(self) -> None:
        """Be the peer that is kept, if one is: before it is made here. Blocks.

        Raises:
            ConfigError: another peer is in the directory, which would be lost; the folder cannot be read, or the
                directory not be written.
        """
        try:
            there = {path: _read(self._folder / path.name) for path in self._files}
            self._kept = {path.name: data for path, data in there.items() if data is not None}
            own = _read(self._place.identity)
            if own is not None and self._kept.get(self._key, own) != own:
                text = f"{self._folder} keeps another peer than the one in {self._place.path}, whose key would be lost"
                raise ConfigError(text, hint=OTHER_PLACE)
            for path in self._files if self._key in self._kept else ():  # without a key the rest is of nobody
                if path.name in self._kept and not (path == self._own_count and path.exists()):
                    replace_file(path, self._kept[path.name], mode=PRIVATE)
        except OSError as error:
            text = f"what is kept in {self._folder} cannot be taken from there: {error.strerror or error}"
            raise ConfigError(text, hint="mount it again, or leave --keep out and be a new peer") from error

    async def follow(self) -> None:
        """Put into the folder what comes, until cancelled."""
        while True:
            await apart(self.put)
            await asyncio.sleep(LOOK_S)

    def put(self, *, is_end: bool = False) -> None:
        """Put into the folder what is due. Blocks."""
        with self._lock:
            now_s = self._monotonic()
            if self._is_shared or (now_s < self._fails_until_s and not is_end):
                return
            try:
                due = self._due(is_all=is_end or now_s >= self._rests_until_s)
                if due and self._is_alone():
                    for name, data in due.items():
                        replace_file(self._folder / name, data, mode=PRIVATE)
                        self._kept[name] = data
                    self._rests_until_s = now_s + REST_S
            except OSError as error:
                self._fails_until_s = now_s + REST_S
                why = error.strerror or error
                text = f"what makes this peer the same one next time cannot be kept in {self._folder}: {why}"
                self._tell(text, "mount it again, or free some space there; else the next machine's peer is a new one")

    def _due(self, *, is_all: bool) -> dict[str, bytes]:
        """What the folder lacks; with ``is_all`` also what it has as it was once."""
        here = {path.name: data for path in self._files if (data := _read(path)) is not None}
        if self._key not in here:
            return {}  # there is no peer yet
        kept = self._kept
        return {name: data for name, data in here.items() if name not in kept or (is_all and data != kept[name])}

    def _is_alone(self) -> bool:
        """Whether the folder is as we left it; where somebody else writes, nothing is put any more."""
        there = {path.name: _read(self._folder / path.name) for path in self._files}
        self._is_shared = any(data not in (None, self._kept.get(name)) for name, data in there.items())
        if self._is_shared:
            text = f"another machine keeps its peer in {self._folder}; from now on this one does not"
            self._tell(text, "give each a folder of its own, and stop one of two that are the same peer")
        return not self._is_shared

    def _tell(self, text: str, hint: str) -> None:
        if text != self._told:
            self._told = text
            announce(f"problem: {text}\n  -> {hint}")


@asynccontextmanager
async def kept_in(folder: Path | None, place: DataDir) -> AsyncIterator[None]:
    """Be the peer that is kept in ``folder``, and have it kept there; None: neither.

    Raises:
        ConfigError: a peer of this machine has the folder already, or it cannot be read or written.
    """
    if folder is None:
        yield
        return
    with _claimed(folder):
        lasting = Lasting(folder, place)
        await apart(lasting.bring)
        try:
            async with Background() as tasks:
                tasks.create_task(lasting.follow())
                yield
        finally:
            await apart(lambda: lasting.put(is_end=True))


@contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """With a lock on this machine: others do not see it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("ab")
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror}", hint=ANOTHER) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another peer is kept in {folder}", hint=f"stop it, or {ANOTHER}") from None
        except OSError:
            pass  # a drive without locks
        yield


def _read(path: Path) -> bytes | None:
    """None: it is not there, or has nothing in it yet."""
    try:
        return path.read_bytes() or None
    except FileNotFoundError:
        return None
