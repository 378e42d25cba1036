"""The processes of ``collab-peer demo``: started, listened to, watched, and ended however the demo ends."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collab.errors import CollabError
from collab.swarm.progress import RECORD_LIFE_S
from peers.process import announce, dying_with_us

START_LIMIT_S = 120.0
"""For the backbone to train the tokenizer and print its invite."""
STOP_LIMIT_S = 10.0
KILLED = f"the others go on without it, and count it for some {RECORD_LIFE_S:.0f} s more, as it said no goodbye"


class DemoFailed(CollabError):
    """A process of the demo ended before its time."""


@dataclass(slots=True)
class Child:
    """One peer process, with what it said."""

    name: str
    process: asyncio.subprocess.Process
    log: Path
    events: list[dict[str, Any]] = field(default_factory=list)

    def last(self, kind: str) -> dict[str, Any] | None:
        """Its newest event of a kind."""
        return next((event for event in reversed(self.events) if event["event"] == kind), None)


def say(text: str) -> None:
    """To the person at the terminal; standard output is kept for results."""
    announce(f"{time.strftime('%H:%M:%S')}  {text}")


@asynccontextmanager
async def demo_swarm() -> AsyncIterator[Any]:
    """Starts peers and ends all of them, however the demo ends."""
    children: list[Child] = []
    readers: list[asyncio.Task[None]] = []

    async def spawn(name: str, directory: Path, arguments: list[str]) -> Child:
        log = directory / f"{name}.log"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *dying_with_us(),
                sys.executable,
                "-m",
                "peers.cli",
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # Ctrl+C reaches the demo only, which then stops everybody in order
                env=environment,
                limit=1 << 22,
            )
        child = Child(name, process, log)
        children.append(child)
        readers.append(asyncio.create_task(_read(child)))
        return child

    try:
        yield spawn
    finally:
        await asyncio.gather(*(_end(child) for child in children))
        await asyncio.gather(*readers)


async def _read(child: Child) -> None:
    stdout = child.process.stdout
    while stdout is not None and (line := await stdout.readline()):
        try:
            child.events.append(json.loads(line))
        except ValueError:
            continue  # a library printed something


async def _end(child: Child) -> None:
    if child.process.returncode is None:
        child.process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(child.process.wait(), STOP_LIMIT_S)
        except TimeoutError:
            child.process.kill()
            await child.process.wait()


async def wait_for(invite: Path, backbone: Child, stop: asyncio.Event) -> None:
    give_up_s = time.monotonic() + START_LIMIT_S
    while not is_there(invite) and not stop.is_set():
        _check(backbone)
        if time.monotonic() > give_up_s:
            raise DemoFailed(f"the backbone made no invite within {START_LIMIT_S:.0f} s", hint=f"read {backbone.log}")
        await asyncio.sleep(0.1)


def is_there(path: Path) -> bool:
    """Whether a local file exists; one stat blocks nobody."""
    return path.exists()


async def until_done(trainers: list[Child], backbone: Child, stop: asyncio.Event) -> None:
    """Until every trainer has ended; one that somebody kills is told of, and the others go on without it."""
    expected = list(trainers)
    while expected and not stop.is_set():
        _check(backbone)
        for trainer in list(expected):
            code = trainer.process.returncode
            if code is not None:
                expected.remove(trainer)
                if code >= 0 or not _anybody_left(trainers):
                    _check(trainer)
                else:
                    say(f"{trainer.name} was killed by {signal.Signals(-code).name}; {KILLED}")
        await asyncio.sleep(0.2)


def _anybody_left(trainers: list[Child]) -> bool:
    """Whether a trainer still runs, or has reached the end."""
    return any(trainer.process.returncode in (None, 0) for trainer in trainers)


async def until_saved(backbone: Child, epochs: int) -> None:
    """The last trainer left only after the backbone had its state; this is for what the pipe still holds."""
    give_up_s = time.monotonic() + STOP_LIMIT_S
    while (backbone.last("CheckpointSaved") or {}).get("epoch") != epochs and time.monotonic() < give_up_s:
        await asyncio.sleep(0.1)


def _check(child: Child) -> None:
    if child.process.returncode not in (None, 0):
        tail = "\n".join(child.log.read_text(errors="replace").splitlines()[-12:])
        raise DemoFailed(f"{child.name} ended with code {child.process.returncode}:\n{tail}", hint=f"read {child.log}")
