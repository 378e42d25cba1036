"""Swarms in which peers die: what the determinism tests run. As a program it prints the digest of each."""

import json
import sys

from collab.simulation.swarm_file import parse_swarm
from peers.trying import simulate
from tests.simulation.faulty_rounds import Fault, FaultyRounds

SCHEDULES: dict[str, list[Fault]] = {
    "a reducer and a sender die": [Fault(0, 1, "kill", "result"), Fault(0, 2, "kill", "part", nth=2)],
    "the leader dies": [Fault(0, 0, "kill", "vote", nth=2, is_to=True), Fault(1, 3, "freeze", "part")],
    "one is cut off, one lies": [Fault(0, 4, "cut", "result"), Fault(1, 2, "nan", "part")],
}
SWARM = {
    "seed": 4,
    "minutes": 0.4,
    "microbatch_size": 8,
    "task": {"name": "none", "num_elements": 200_000, "samples": 4000},
    "optimizer": {"name": "sgd", "learning_rate": 1e-6},
    "averaging": {"compression": "half", "reduction": "mean"},
    "strategies": [
        {"strategy": {"name": "dedloc", "target_batch_size": 64}},
        {"strategy": {"name": "vc_asgd", "shards": 60, "first_lease_s": 20}},
    ],
    "groups": [
        {"name": "backbone", "role": "backbone", "count": 2, "up_mbit_per_s": 100},
        {"name": "steady", "count": 2, "samples_per_s": 8},
        {
            "name": "mortal",
            "count": 4,
            "samples_per_s": 8,
            "churn": {"kind": "sessions", "mean_session_s": 12, "mean_absence_s": 6, "killed": 0.7},
        },
    ],
}


def digests() -> dict[str, str]:
    """Of rounds in which peers die, and of swarms in which they come and go."""
    found = {}
    for name, faults in SCHEDULES.items():
        rounds = FaultyRounds(faults)
        rounds.run()
        if rounds.fired != set(faults):
            raise RuntimeError(f"did nothing: {set(faults) - rounds.fired}")
        found[name] = rounds.world.digest()
    for outcome in simulate(parse_swarm(json.dumps(SWARM), origin="the test")):
        found[outcome.figures.title] = outcome.figures.digest
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(digests()))
