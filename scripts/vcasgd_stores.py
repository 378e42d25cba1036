"""How many pushes a second each parameter store takes, and how many of them are in the parameters in the end.

Each of several servers mixes one vector after the other into one store: threads over the store in memory, processes of
their own over SQLite and Redis. The push of number j is zero but for its own element, so that the element tells
afterwards whether that push was overwritten.
"""

import itertools
import multiprocessing
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from collab.data.work_units import Unit
from collab.errors import StateError
from collab.swarm.parameter_store.base import Kept, ParameterStore, Push, Verdict
from collab.swarm.parameter_store.in_process import InProcessStore
from collab.swarm.parameter_store.redis import RedisStore
from collab.swarm.parameter_store.sqlite import SqliteStore

ALPHA = 0.999
STARTS_S = 20.0
"""For the Redis server."""


def open_store(kind: str, where: str, *, is_strong: bool) -> ParameterStore:
    """One server's view of a store that processes share."""
    if kind == "redis":
        return RedisStore(where, "bench", is_strong=is_strong)
    return SqliteStore(Path(where), is_strong=is_strong)


def push_for(store: ParameterStore, server: int, elements: int, seconds: float) -> list[int]:
    """Push until the time is over; the numbers of the pushes that were taken."""
    taken: list[int] = []
    end_s = time.monotonic() + seconds
    for count in itertools.count():
        if time.monotonic() >= end_s:
            return taken
        number = count * 8 + server
        if number >= elements:
            return taken
        values = np.zeros(elements, np.float32)
        values[number] = 1.0
        version = store.version() or 0
        push = Push(unit=Unit(1, number), lease=f"{number}", values=values, based_on=version, alpha=ALPHA)
        if store.assimilate(push).verdict is Verdict.TAKEN:
            taken.append(number)
    return taken


def _serve(kind: str, where: str, *, is_strong: bool, work: tuple[int, int, float], start: Any, found: Any) -> None:
    store = open_store(kind, where, is_strong=is_strong)
    start.wait()
    found.put(push_for(store, *work))
    store.close()


def measure(kind: str, *, servers: int, elements: int, seconds: float, is_strong: bool) -> dict[str, Any]:
    """Pushes a second of all servers together, and the share of them that is overwritten."""
    with _place(kind) as where:
        store = InProcessStore() if kind == "memory" else open_store(kind, where, is_strong=is_strong)
        store.begin(Kept.at_first(np.zeros(elements, np.float32)))
        began_s = time.monotonic()
        if kind == "memory":
            taken = _in_threads(store, servers, elements, seconds)
            took_s = time.monotonic() - began_s
        else:
            taken, took_s = _in_processes(kind, where, servers, elements, seconds, is_strong=is_strong)
        stored = store.read()
        store.close()
    if stored is None:
        raise ValueError("the store is empty")
    lost = sum(stored.values[number] == 0.0 for number in taken)
    return {
        "store": kind,
        "consistency": "strong" if is_strong else "eventual",
        "servers": servers,
        "megabytes": round(elements * 4 / 1e6, 2),
        "pushes": len(taken),
        "pushes_per_s": round(len(taken) / took_s, 1),
        "lost_share": round(float(lost) / max(len(taken), 1), 4),
    }


def _in_threads(store: ParameterStore, servers: int, elements: int, seconds: float) -> list[int]:
    found: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda each=each: found.append(push_for(store, each, elements, seconds)))
        for each in range(servers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [number for taken in found for number in taken]


def _in_processes(
    kind: str, where: str, servers: int, elements: int, seconds: float, *, is_strong: bool
) -> tuple[list[int], float]:
    context = multiprocessing.get_context("spawn")
    start, found = context.Barrier(servers + 1), context.Queue()
    workers = [
        context.Process(
            target=_serve,
            args=(kind, where),
            kwargs={"is_strong": is_strong, "work": (each, elements, seconds), "start": start, "found": found},
        )
        for each in range(servers)
    ]
    for worker in workers:
        worker.start()
    start.wait()
    began_s = time.monotonic()
    taken = [number for _ in workers for number in found.get()]
    took_s = time.monotonic() - began_s
    for worker in workers:
        worker.join()
    return taken, took_s


@contextmanager
def _place(kind: str) -> Iterator[str]:
    """Where such a store can be: a file, or a Redis server of our own that keeps everything on the disk."""
    with tempfile.TemporaryDirectory(prefix="collab-store-") as folder:
        if kind != "redis":
            yield str(Path(folder) / "parameters.sqlite")
            return
        with redis_server(Path(folder)) as url:
            yield url


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """The address of a Redis server that keeps everything in ``folder``.

    Raises:
        StateError: it is not installed, or does not start.
    """
    program = shutil.which("redis-server")
    if program is None:
        raise StateError("there is no redis-server here", hint="apt-get install redis-server")
    url = f"unix://{folder / 'socket'}"
    durable = ["--appendonly", "yes", "--save", "", "--dir", str(folder)]
    command = [program, "--port", "0", "--unixsocket", str(folder / "socket"), *durable]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            _wait_for(url)
            yield url
        finally:
            process.kill()


def _wait_for(url: str) -> None:
    give_up_s = time.monotonic() + STARTS_S
    while True:
        try:
            RedisStore(url, "nobody").close()
        except StateError:
            if time.monotonic() >= give_up_s:
                raise
            time.sleep(0.05)
        else:
            return
