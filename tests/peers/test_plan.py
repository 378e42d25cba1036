"""``collab-peer plan --cost``."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from peers.cli import app

FLEET = ["plan", "--cost", "--units", "2000", "--clients", "5", "--at-once", "2", "--unit-s", "144", "--lost-s", "300"]
PRICES = ["--price", "1", "--preemptible-price", "0.2", "--servers", "0"]


def test_it_says_what_preemptions_cost_and_what_is_saved() -> None:
    result = CliRunner().invoke(app, [*FLEET, *PRICES, "--preemption", "0.2"])
    assert result.exit_code == 0
    assert "preemptions add 250 min" in result.output
    assert "200 min if no unit were taken twice" in result.output
    assert "saved: 80% of a machine's hour, 70% of what the run costs" in result.output


def test_the_same_for_programs() -> None:
    found = json.loads(CliRunner().invoke(app, [*FLEET, *PRICES, "--preemption", "0.05", "--json"]).output)
    assert found["staying"] == {"seconds": 28800.0, "money": 40.0}
    assert found["extra_once_s"] == pytest.approx(3000)
    assert found["gross_saving"] == pytest.approx(0.8)
    assert found["net_saving"] == pytest.approx(1 - 0.2 * (28800 + found["extra_s"]) / 28800)
    assert found["fleet"]["at_once"] == 2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["plan"], "--cost"),
        ([*FLEET, "--preemption", "0.1"], "needs --price, --preemptible-price, too"),
        ([*FLEET, *PRICES, "--preemption", "1"], "below 1"),
        ([*FLEET, *PRICES, "--preemption", "0.1", "--price", "0"], "above 0"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_a_reason(arguments: list[str], complaint: str) -> None:
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert complaint in result.output


# -- plan SWARM.yaml -------------------------------------------------------------------------------------------------

SWARM = """\
minutes: 10
task: {name: none, num_elements: 5000000}
averaging: {compression: half}
strategies:
  - strategy: {name: dedloc, target_batch_size: 256}
  - strategy: {name: vc_asgd}
groups:
  - {name: backbone, role: backbone, up_mbit_per_s: 40, down_mbit_per_s: 40}
  - {name: homes, count: 6, samples_per_s: 16, up_mbit_per_s: 20, down_mbit_per_s: 100}
"""


def test_a_swarm_is_forecast_in_words_with_what_holds_it_up(tmp_path: Path) -> None:
    file = tmp_path / "swarm.yaml"
    file.write_text(SWARM)
    result = CliRunner().invoke(app, ["plan", str(file), "--suggest"])
    assert result.exit_code == 0
    assert "what holds it up: the round, by the uplink of homes" in result.output
    assert "one more backbone: a step in" in result.output
    assert "compression: auto: a step in" in result.output
    assert "delay 1: with 0 it would train" in result.output


def test_the_same_forecast_for_programs(tmp_path: Path) -> None:
    file = tmp_path / "swarm.yaml"
    file.write_text(SWARM)
    found = json.loads(CliRunner().invoke(app, ["plan", str(file), "--suggest", "--json"]).output)
    dedloc, vc_asgd = found["strategies"]
    assert found["model"] == {"num_elements": 5_000_000, "num_samples": 100_000}
    assert dedloc["step_s"] == pytest.approx(dedloc["batch_s"] + dedloc["wait_s"] + dedloc["round_s"])
    assert 0 < dedloc["compute_use"] < 1
    more_backbones = dedloc["changes"][0]
    assert more_backbones["what"] == "one more backbone"
    assert more_backbones["samples_per_s"] > 1.05 * dedloc["samples_per_s"], "it reduces for homes"
    assert vc_asgd["round_s"] == 0
    assert found["suggestion"]["strategy"]["delay"] == 1
    assert len(found["suggestion"]["reasons"]) == 4


def test_what_comings_and_goings_cost_is_said_and_what_is_not_in_it(tmp_path: Path) -> None:
    file = tmp_path / "swarm.yaml"
    churn = "churn: {kind: sessions, mean_session_s: 100, mean_absence_s: 50, killed: 1}"
    file.write_text(SWARM.replace("down_mbit_per_s: 100}", f"down_mbit_per_s: 100, {churn}}}"))
    result = CliRunner().invoke(app, ["plan", str(file)])
    assert result.exit_code == 0
    assert "comings and goings: on average" in result.output
    assert "of what is computed is lost with those who go" in result.output
    assert "not in it: rounds that are disturbed or lost" in result.output
    found = json.loads(CliRunner().invoke(app, ["plan", str(file), "--json"]).output)
    for one in found["strategies"]:
        assert 0 < one["turnover"]["lost_share"] < 1
        assert 0 < one["turnover"]["trainers"] < 6
    file.write_text(SWARM)
    assert "comings and goings" not in CliRunner().invoke(app, ["plan", str(file)]).output


def test_a_swarm_and_a_fleet_are_not_planned_at_once(tmp_path: Path) -> None:
    file = tmp_path / "swarm.yaml"
    file.write_text(SWARM)
    result = CliRunner().invoke(app, ["plan", str(file), "--cost"])
    assert result.exit_code == 2
    file.write_text(SWARM.replace("minutes", "hours"))
    result = CliRunner().invoke(app, ["plan", str(file)])
    assert result.exit_code == 1
    assert "hours: unknown field" in result.stderr
