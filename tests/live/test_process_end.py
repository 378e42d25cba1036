"""A peer ends with its exit code whatever its worker is in the middle of."""

import subprocess
import sys
import time

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
LIMIT_S = 60.0


def test_a_peer_that_leaves_in_the_middle_of_a_microbatch_ends_at_once_and_with_its_code() -> None:
    """The interpreter aborted now and then: its end takes threads down that are in the middle of torch."""
    for _ in range(3):
        began_s = time.monotonic()
        ended = subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert (ended.returncode, ended.stdout) == (0, "all is said\n"), ended.stderr
        assert time.monotonic() - began_s < LIMIT_S / 2
