"""A peer ends with its exit code whatever its worker is in the middle of."""

import signal
import subprocess
import sys

import pytest

from tests.live.processes import LIMIT_S

PROGRAM = """
import asyncio
import torch
from collab.compute import ThreadCompute
from peers.process import run_peer

def long_work():
    layers = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(40)])
    while True:
        layers(torch.randn(256, 512)).sum().backward()

async def main(stop):
    compute = ThreadCompute()
    working = asyncio.create_task(compute.run(long_work))
    await asyncio.sleep(1.0)
    working.cancel()
    compute.close()
    print("all is said", flush=True)

raise SystemExit(run_peer(main))
"""


def test_a_peer_that_leaves_in_the_middle_of_a_microbatch_ends_at_once_and_with_its_code() -> None:
    """The interpreter aborted now and then: its end takes threads down that are in the middle of torch."""
    for _ in range(3):
        ended = subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert (ended.returncode, ended.stdout) == (0, "all is said\n"), ended.stderr


READS = """
import asyncio
import threading
from collab.compute import ThreadCompute
from peers.process import run_peer

async def main(stop):
    reading = asyncio.create_task(ThreadCompute().apart(threading.Event().wait))
    await asyncio.sleep(0.1)
    reading.cancel()
    print("all is said", flush=True)

raise SystemExit(run_peer(main))
"""


def test_a_peer_that_leaves_while_something_long_is_read_does_not_wait_for_that() -> None:
    """Held-out text, a shard, what a checkpoint is worth on a backbone: minutes, or a server that does not answer."""
    ended = subprocess.run([sys.executable, "-c", READS], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (ended.returncode, ended.stdout) == (0, "all is said\n"), ended.stderr


LATE = """
import sys
import peers.process

def workers_end(limit_s):
    print("all is over", flush=True)
    sys.stdin.readline()
    return True

async def main(stop):
    pass

peers.process.workers_end = workers_end
raise SystemExit(peers.process.run_peer(main))
"""


def test_who_asks_a_peer_to_leave_that_has_just_done_so_changes_nothing() -> None:
    command = [sys.executable, "-c", LATE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
        assert peer.stdin is not None
        assert peer.stdout is not None
        assert peer.stdout.readline() == "all is over\n"
        for signum in (signal.SIGINT, signal.SIGTERM):
            peer.send_signal(signum)
        peer.stdin.write("\n")
        peer.stdin.flush()
        assert peer.wait(LIMIT_S) == 0


TOLD_AGAIN = """
import asyncio
import os
import signal
import sys
from peers.process import ONE_DEATH_S, run_peer

async def main(stop):
    os.kill(os.getpid(), signal.SIGTERM)
    await stop.wait()
    await asyncio.sleep(float(sys.argv[1]) * ONE_DEATH_S)
    os.kill(os.getpid(), getattr(signal, sys.argv[2]))
    await asyncio.sleep(0.2)
    print("left in good order", flush=True)

raise SystemExit(run_peer(main))
"""


@pytest.mark.parametrize(
    ("after", "signum", "code"), [("0.0", "SIGTERM", 0), ("1.2", "SIGTERM", 130), ("0.0", "SIGINT", 130)]
)
def test_a_parent_that_dies_asks_with_each_of_its_threads_and_means_it_once(after: str, signum: str, code: int) -> None:
    """Linux sends the signal of ``prctl(PR_SET_PDEATHSIG)`` when the thread dies that a child was handed on to, too."""
    words = [sys.executable, "-c", TOLD_AGAIN, after, signum]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ended.returncode == code, ended.stderr
    assert ("left in good order" in ended.stdout) is (code == 0)
