"""What becomes of the demo when its processes end before their time."""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from peers.demo_processes import Child, DemoFailed, until_done

STAYS, ENDS, FAILS = "import time; time.sleep(600)", "pass", "import sys; sys.exit('no more memory')"
LIMIT_S = 120.0


async def _child(name: str, code: str, directory: Path) -> Child:
    log = directory / f"{name}.log"
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stderr=errors)
    return Child(name, process, log)


def _watch(tmp_path: Path, codes: list[str], during: Callable[[list[Child]], Awaitable[None]]) -> None:
    """Watch a backbone that stays and trainers with these programs; end all of them."""

    async def whole() -> None:
        backbone = await _child("backbone", STAYS, tmp_path)
        trainers = [await _child(f"trainer-{number}", code, tmp_path) for number, code in enumerate(codes, 1)]
        try:
            watching = asyncio.create_task(until_done(trainers, backbone, asyncio.Event()))
            await during([backbone, *trainers])
            await asyncio.wait_for(watching, LIMIT_S)
        finally:
            for child in (backbone, *trainers):
                if child.process.returncode is None:
                    child.process.kill()
                await child.process.wait()

    asyncio.run(whole())


async def _nothing(children: list[Child]) -> None:
    """Let them be."""


def test_trainers_that_reach_the_end_end_the_demo(tmp_path: Path) -> None:
    _watch(tmp_path, [ENDS, ENDS], _nothing)


def test_the_others_go_on_when_a_trainer_is_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def kill_one(children: list[Child]) -> None:
        children[1].process.send_signal(signal.SIGKILL)

    _watch(tmp_path, [STAYS, ENDS], kill_one)
    told = capsys.readouterr().err
    assert "trainer-1 was killed by SIGKILL; the others go on" in told
    assert "count it for some 15 s more" in told, "and so do the demo's lines"


def test_it_fails_when_nobody_is_left(tmp_path: Path) -> None:
    async def kill_all(children: list[Child]) -> None:
        for child in children[1:]:
            child.process.send_signal(signal.SIGKILL)

    with pytest.raises(DemoFailed, match="ended with code -9"):
        _watch(tmp_path, [STAYS, STAYS], kill_all)


def test_a_trainer_that_fails_by_itself_fails_the_demo_in_its_words(tmp_path: Path) -> None:
    with pytest.raises(DemoFailed, match="no more memory"):
        _watch(tmp_path, [STAYS, FAILS], _nothing)


def test_it_fails_with_its_backbone(tmp_path: Path) -> None:
    async def kill_backbone(children: list[Child]) -> None:
        children[0].process.send_signal(signal.SIGKILL)

    with pytest.raises(DemoFailed, match="backbone ended"):
        _watch(tmp_path, [STAYS], kill_backbone)
