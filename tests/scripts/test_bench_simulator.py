"""What a simulation costs, in short: the program that says so."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from bench_simulator import measured

from collab.simulation.swarm_file import load_swarm

HOMES = Path(__file__).resolve().parents[2] / "docs" / "swarms" / "homes.yaml"


def test_both_ways_are_measured_and_calculated_rounds_repeat() -> None:
    swarm = load_swarm(HOMES).model_copy(update={"minutes": 0.5})
    found = measured(swarm, "dedloc", repeat=2, roles_minutes=0.5)
    json.dumps(found, allow_nan=False)
    assert found["same_digest"]
    first, again = found["calculated"]
    assert first["digest"] == again["digest"] != found["roles"]["digest"]
    assert first["processor_s"] > 0
    assert found["calculated_beside"]["steps"] >= found["roles"]["steps"] > 1
    assert found["roles"]["virtual_minutes"] == 0.5
