"""A short storm over a simulated swarm: no split, and nothing that a survivor computed is lost."""

import os
import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import storm  # noqa: E402
from storm_virtual import run_virtual  # noqa: E402

PEERS = 8


def test_survivors_of_a_virtual_storm_share_one_history_and_keep_all_their_work(tmp_path: Path) -> None:
    arguments = ["--virtual", "--peers", str(PEERS), "--faults-per-hour", "200", "--minutes", "3", "--seed", "155"]
    setup = storm.parse_arguments([*arguments, "--baseline-minutes", "1", "--pace-s", "2"]).setup
    told: list[str] = []
    ledger = run_virtual(setup, tmp_path, told.append)
    content = storm.report(ledger, setup, is_virtual=True, took_s=1.0)
    found = content["figures"]
    assert not any(found["splits"].values())
    assert found["samples"]["survivors_lost"] == 0
    assert found["samples"]["survivors_that_did_not_say"] == 0
    assert found["samples"]["survivors_committed"] > 0.9 * found["samples"]["survivors_computed"]
    assert {fault["kind"] for fault in content["faults"]} == {"kill", "stop", "partition", "slow"}
    assert found["faults"]["all"]["never_recovered"] == 0
    assert found["peers"]["fault_free"]["contributing"] == PEERS
    assert found["rounds"]["storm"]["committed"] >= 4
    assert len(told) > len(content["faults"])
    assert os.listdir(tmp_path / "backbone" / "checkpoints")
