"""What a peer does for its own process."""

import subprocess
import sys

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
    result = subprocess.run([sys.executable, "-c", RINGS], capture_output=True, text=True, timeout=60, check=True)
    assert int(result.stdout) < 500
