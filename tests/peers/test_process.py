"""What a peer does for its own process."""

import asyncio
import gc
import logging
import subprocess
import sys

import pytest

from peers.process import run_peer

RINGS = """\
import gc, sys, weakref

from peers.process import settle_heap

kept = [[number] for number in range(400_000)]  # as much as is imported
settle_heap()


class Ring:
    def __init__(self):
        self.me = self


dead, later = [], []
for number in range(2000):
    ring = Ring()
    dead.append(weakref.ref(ring))
    gc.collect(1)  # it has lived for long
    del ring
    later += [[number] for _ in range(20)]
for number in range(20_000):
    later.append([number])
print(sum(ring() is not None for ring in dead))
"""


def test_dead_rings_are_found_after_the_heap_was_settled() -> None:
    """Without being asked for: of 2,000 that had lived for long, next to all."""
    result = subprocess.run([sys.executable, "-c", RINGS], capture_output=True, text=True, timeout=280, check=True)
    assert int(result.stdout) < 500


SCATTERED = """\
import asyncio
import resource

from peers.process import keep_heap_small

KIB = 1024


def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()


async def main():
    busiest = [bytes(8 * KIB) for _ in range(16 * KIB)]
    kept = busiest[::64]
    busiest.clear()  # what is kept lies between what is free
    before = resident()
    trimming = asyncio.create_task(keep_heap_small(0.01))
    for _ in range(1000):
        await asyncio.sleep(0.01)
        if resident() <= before - 64 * KIB * KIB:
            break
    print(before - resident(), len(kept))
    trimming.cancel()


asyncio.run(main())
"""


def test_what_the_allocator_holds_free_goes_back_to_the_system() -> None:
    """Of 128 MiB, of which 2 MiB are still in use, all over the place, more than half."""
    result = subprocess.run([sys.executable, "-c", SCATTERED], capture_output=True, text=True, timeout=280, check=True)
    given_back, _ = map(int, result.stdout.split())
    assert given_back > 64 << 20


def test_waits_that_a_library_gives_up_are_no_errors_and_other_tasks_are(caplog: pytest.LogCaptureFixture) -> None:
    async def give_up(task: asyncio.Task[object]) -> None:
        await asyncio.sleep(0.01)
        del task
        gc.collect()

    async def stand_still() -> None:
        await asyncio.get_running_loop().create_future()

    async def main(_: asyncio.Event) -> None:
        for _ in range(3):
            await give_up(asyncio.create_task(asyncio.Event().wait()))
        assert not caplog.records
        await give_up(asyncio.create_task(stand_still()))

    with caplog.at_level(logging.ERROR, "asyncio"):
        assert run_peer(main) == 0
    assert "stand_still" in caplog.text
    assert "Event.wait" not in caplog.text
