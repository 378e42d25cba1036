"""A program that begins anew in its own process: what it takes along, and what it hears meanwhile."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from peers.anew import HANDED_ON, HandedOn, handed_on
from tests.live.processes import LIMIT_S

PROGRAM = """
import asyncio
import fcntl
import json
import os
import signal
import sys
import threading
from collab.compute import WORKER
from peers import anew
from peers.process import run_peer

lock, signum, is_early = sys.argv[1], signal.Signals(int(sys.argv[2])), sys.argv[3] == "early"

def tell(**what):
    print(json.dumps({"pid": os.getpid(), **what}), flush=True)

async def until_asked(stop):
    if signum in ignored:
        await asyncio.sleep(1.0)
    else:
        await stop.wait()
    tell(is_asked=stop.is_set())

ignored = anew.ignored_signals()

if (life := anew.handed_on()) is None:
    held = open(lock, "w")
    fcntl.flock(held, fcntl.LOCK_EX)
    os.set_inheritable(os.open(lock, os.O_RDONLY), True)
    tell()
    ordinary = os.execv
    threading.Thread(target=threading.Event().wait, name=WORKER, daemon=True).start()

    def execv(*words):
        if not is_early:
            signal.pthread_kill(threading.get_ident(), signum)
        ordinary(*words)

    async def live(stop):
        if is_early:
            os.kill(os.getpid(), signum)
            if signum not in ignored:
                await stop.wait()
        tell(filler="x" * 500_000)  # more than a pipe takes: some of it is still to be written
        life = anew.HandedOn(
            invite="word", data_dir="/d", lock=held.fileno(), asked_s=1.5, kind=0, counts={"samples": 3}
        )
        anew.begin_anew(life, ignored, is_to_leave=stop.is_set())

    os.execv = execv
    run_peer(live)
probe = open(lock)
held_files = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd") if int(name) > 2]
kept = sum(os.path.realpath(path) == os.path.realpath(lock) for path in held_files)
try:
    fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
    is_held = False
except BlockingIOError:
    is_held = True
where = str(life.let_go())
fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
tell(counts=life.counts, is_held=is_held, where=where, kept=kept, asks=anew.HANDED_ON in os.environ)
raise SystemExit(run_peer(until_asked))
"""


@pytest.mark.parametrize("when", ["early", "late"])
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_it_keeps_its_process_and_its_directory_and_hears_who_asks_to_leave_meanwhile(
    tmp_path: Path, signum: signal.Signals, when: str
) -> None:
    """Before it goes on, or amid that, and with a worker that is in the middle of something."""
    lock = tmp_path / "lock"
    words = [sys.executable, "-c", PROGRAM, str(lock), str(int(signum)), when]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ended.returncode == 0, ended.stderr
    before, filler, after, end = (json.loads(line) for line in ended.stdout.splitlines())
    assert len(filler["filler"]) == 500_000
    assert before["pid"] == after["pid"] == end["pid"]
    assert (after["counts"], after["where"], after["asks"]) == ({"samples": 3}, "/d", False)
    assert after["is_held"], "nobody else could have taken the directory"
    assert after["kept"] == 2, "its own look and the lock; what else was open is closed, inheritable or not"
    assert end["is_asked"], ended.stderr


@pytest.mark.parametrize("when", ["early", "late"])
def test_what_nohup_has_it_not_hear_it_does_not_hear_afterwards_either(tmp_path: Path, when: str) -> None:
    words = ["nohup", sys.executable, "-c", PROGRAM, str(tmp_path / "lock"), str(int(signal.SIGHUP)), when]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ended.returncode == 0, ended.stderr
    assert not json.loads(ended.stdout.splitlines()[-1])["is_asked"]


def test_a_python_that_is_gone_is_an_error_with_a_next_step() -> None:
    program = "import sys; from peers.anew import *; sys.executable = '/nowhere/python'\n"
    program += "life = HandedOn(invite='w', data_dir='d', lock=-1, asked_s=0.0, kind=0)\n"
    program += "begin_anew(life, frozenset(), is_to_leave=False)"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert ended.returncode == 1
    assert "error: /nowhere/python cannot be started again" in ended.stderr
    assert "start this peer again with the same command" in ended.stderr


def test_what_was_handed_on_is_taken_once_and_what_is_none_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    assert handed_on() is None
    fields = {"invite": "word", "data_dir": "/d", "lock": -1, "asked_s": 1.5, "kind": 2}
    monkeypatch.setenv(HANDED_ON, json.dumps(fields))
    assert handed_on() == HandedOn(invite="word", data_dir="/d", lock=-1, asked_s=1.5, kind=2)
    assert handed_on() is None
    held = os.open(os.devnull, os.O_RDONLY)
    for text in ("{", "[]", "[1]", json.dumps({**fields, "lock": held, "of": "another version"})):
        monkeypatch.setenv(HANDED_ON, text)
        assert handed_on() is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(held)
