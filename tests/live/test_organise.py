"""docs/organise.md, typed: its commands in their order, in real processes, and what it says is seen is looked for."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.commands import PROGRAM, REFERENCE, ROOT, words_of
from tests.docs.transcript import Shown, Typed, transcript
from tests.hub.client import use_hub
from tests.hub.standin import HubStandIn
from tests.live.forked import Forked
from tests.live.ports import own_port
from tests.live.processes import LIMIT_S, processes_about, wait_until

RUN_ON = ("backbone", "join")
"""Commands that do not end by themselves."""


class Program:
    """A command of the page in a directory of its own; what it says is read as it comes."""

    def __init__(self, typed: Typed, words: list[str], place: Path, hub: str) -> None:
        self.typed = typed
        self._log = place / f"{time.monotonic_ns()}.log"
        self._out: list[str] = []
        self._old = (0, 0)
        self.process = Forked(words, self._log, habits=Habits(str(place), hub))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with self.process.stdout as lines:
            self._out.extend(lines)

    @property
    def output(self) -> str:
        return "".join(self._out)

    def _both(self) -> tuple[str, str]:
        return self.output, self._log.read_text(errors="replace")

    @property
    def said(self) -> str:
        """On both of its outputs, since ``turn``."""
        return "".join(text[old:] for text, old in zip(self._both(), self._old, strict=True))

    def turn(self) -> None:
        """Something else is typed, somewhere: what was said before is no answer to it."""
        out, errors = self._both()
        self._old = len(out), len(errors)

    def end(self) -> int:
        code = self.process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        return code


class Habits:
    """Where a command is typed, and on which Hub."""

    def __init__(self, place: str, hub: str) -> None:
        self._place, self._hub = place, hub

    def __call__(self) -> None:
        os.chdir(self._place)
        use_hub(self._hub)


class Room:
    """The people of the page, each with a directory and a terminal or two."""

    def __init__(self, root: Path, hub: str) -> None:
        self.root, self._hub = root, hub
        self.running: list[Program] = []
        self._newest: Program | None = None
        self._port = own_port()

    def play(self, step: Typed | Shown) -> None:
        """Type it, or see it."""
        if isinstance(step, Shown):
            self._see(step)
            return
        for program in self.running:
            program.turn()
        if not step.line:
            self._newest = self._of(step.who)
            self._newest.process.send_signal(signal.SIGINT)
            assert self._newest.end() == 0, self._newest.said
            self.running.remove(self._newest)
        else:
            self._type(step)

    def _type(self, typed: Typed) -> None:
        place = self.root / typed.who
        place.mkdir(exist_ok=True)
        words, target = words_of(typed.line.replace("4000", self._port)) if "<<" not in typed.line else ([], "")
        if words[:1] != [PROGRAM]:
            subprocess.run(["bash", "-euc", typed.line], cwd=place, check=True, timeout=LIMIT_S)
            return
        program = self._newest = Program(typed, words[1:], place, self._hub)
        if words[1] in RUN_ON:
            self.running.append(program)
            return
        assert program.end() == 0, f"{typed.line}\n{program.said}"
        if target:
            (place / target).write_text(program.output)

    def _see(self, shown: Shown) -> None:
        program = self._of(shown.who) if shown.who else self._newest
        assert program is not None
        give_up_s = time.monotonic() + LIMIT_S
        while not shown.is_in(program.said):
            is_over = time.monotonic() > give_up_s or (
                program.process.poll() is not None and program.end() >= 0 and not shown.is_in(program.said)
            )
            assert not is_over, f"{program.typed.line}\nnever said\n{shown.line}\nbut\n{program.said}"
            time.sleep(0.05)

    def _of(self, who: str) -> Program:
        return next(program for program in reversed(self.running) if program.typed.who == who)

    def close(self) -> None:
        for program in self.running:
            program.process.kill()
            program.end()


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    with HubStandIn() as hub:
        people = Room(tmp_path, hub.url)
        try:
            yield people
        finally:
            people.close()
    wait_until(lambda: not processes_about(tmp_path), "every process of the page to be gone")


def test_the_page_for_organisers_can_be_typed_and_shows_what_is_seen(room: Room) -> None:
    page, _, _ = (ROOT / "docs" / "organise.md").read_text(encoding="utf-8").partition(REFERENCE)
    steps = list(transcript(page))
    typed = [step.line for step in steps if isinstance(step, Typed)]
    for command in ("invite", "join", "pause", "ban", "export", "end", "backbone carried-on"):
        assert any(line.startswith(f"{PROGRAM} {command}") for line in typed), command
    for step in steps:
        room.play(step)
    _goes_on(room.root)


def _goes_on(root: Path) -> None:
    """The next owner's run, where the first one's ended; any number would do for what the page shows."""
    ended, begun = (events_in(root / run / "backbone") for run in ("organiser/first-run", "clara/carried-on"))
    saved, later = ([one["epoch"] for one in told if one["event"] == "CheckpointSaved"] for told in (ended, begun))
    assert later[0] == saved[-1] > 0
    of_anna = [one for one in events_in(root / "anna" / "peer") if one["event"] == "EpochFinished"]
    assert of_anna[-1]["epoch"] > saved[-1]
    losses = [one["loss"] for one in of_anna]
    assert losses[-1] < (losses[0] + min(losses)) / 2, "new weights would be where the first ones were"


def events_in(directory: Path) -> list[dict[str, Any]]:
    """That a peer has written."""
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
