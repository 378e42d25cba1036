"""The benchmark of overlap, in short: with a delay diloco hardly loses a step to its rounds, without one it does."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from bench_overlap import measure, parsed


def test_with_a_delay_trainers_on_50_mbit_links_keep_95_of_100_steps_that_they_would_take_alone() -> None:
    """Rounds of 2 million parameters in half precision beside phases of 4 s."""
    options = "--parameters 2e6 --inner 8 --microbatch-s 0.5 --mbit 50 --compression half --rounds 6"
    ways = measure(parsed(options.split()))["ways"]
    assert ways["solo"]["steps_per_s"] > 0.97 / 0.5, "nobody waits for anybody"
    assert ways["delay 1"]["kept"] >= 0.95
    assert ways["waits"]["kept"] < 0.85, "rounds are long enough for it to matter"
    assert ways["delay 1"]["rounds_lost"] == ways["waits"]["rounds_lost"] == 0
    assert min(way["steps_of_the_swarm"] for way in ways.values()) >= 6
