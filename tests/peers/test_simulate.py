"""``collab-peer simulate``: strategies on described swarms, in virtual time."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from collab.simulation.swarm_file import parse_swarm
from peers.cli import app
from peers.figures import Figures
from peers.trying import simulate

SMALL: dict[str, Any] = {
    "seed": 3,
    "minutes": 1,
    "target_loss": 2.2,
    "task": {"name": "image_classification", "hidden_sizes": [16]},
    "optimizer": {"name": "sgd", "learning_rate": 0.2},
    "averaging": {"reduction": "mean"},
    "strategies": [{"strategy": {"name": "dedloc", "target_batch_size": 128}}],
    "groups": [
        {"name": "backbone", "role": "backbone", "up_mbit_per_s": 200, "down_mbit_per_s": 200, "price_per_hour": 0.6},
        {"name": "homes", "count": 3, "seconds_per_microbatch": 0.5, "price_per_hour": 1.2},
    ],
}
SYNTHETIC: dict[str, Any] = {
    **{name: value for name, value in SMALL.items() if name != "target_loss"},
    "task": {"name": "none", "num_elements": 1_000_000, "thinned": 4, "samples": 4000},
    "optimizer": {"name": "sgd", "learning_rate": 1e-6},
    "averaging": {"compression": "half", "reduction": "mean"},
}


def figures_of(content: dict[str, Any]) -> list[Figures]:
    return [outcome.figures for outcome in simulate(parse_swarm(json.dumps(content), origin="the test"))]


def test_the_command_answers_with_one_object_and_pictures_and_the_same_digest_again(tmp_path: Path) -> None:
    file = tmp_path / "swarm.yaml"
    strategies = [*SMALL["strategies"], {"label": "alone", "strategy": {"name": "solo", "target_batch_size": 32}}]
    file.write_text(json.dumps({**SMALL, "strategies": strategies}))
    results = [
        CliRunner().invoke(app, ["simulate", str(file), "--json", *more])
        for more in (["--out", str(tmp_path / "out")], [])
    ]
    assert [result.exit_code for result in results] == [0, 0]
    first, second = (json.loads(result.stdout) for result in results)
    assert first == second
    assert len(first["digest"]) == 64
    assert first["seed"] == first["setup"]["seed"] == 3
    dedloc, alone = first["strategies"]
    assert (dedloc["title"], alone["title"]) == ("dedloc", "alone")
    assert dedloc["steps"] > 10
    losses = [look["loss"] for look in dedloc["looks"] if look["loss"] is not None]
    assert dedloc["held_out_loss"] == losses[-1] < losses[0]
    assert 0 < dedloc["seconds_to_loss"] <= 60
    assert dedloc["lost_share"] == 0
    assert dedloc["money"] == pytest.approx((0.6 + 3 * 1.2) / 60)
    assert alone["sent_bytes"] < dedloc["sent_bytes"]
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"report.json", "loss_by_time.svg", "loss_by_samples.svg", "loss_by_bytes.svg"}
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == first


def test_the_table_has_a_line_for_each_strategy_that_was_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "swarm.yaml"
    strategies = [*SYNTHETIC["strategies"], {"strategy": {"name": "dts", "target_batch_size": 128}}]
    file.write_text(json.dumps({**SYNTHETIC, "strategies": strategies}))
    result = CliRunner().invoke(app, ["simulate", str(file), "--strategies", "dts"])
    assert result.exit_code == 0
    head, line, digest = result.stdout.splitlines()
    assert "held out" not in head, "nothing is learnt"
    assert line.split()[0] == "dts"
    assert digest.startswith("seed 3, digest ")
    refused = CliRunner().invoke(app, ["simulate", str(file), "--strategies", "solo"])
    assert refused.exit_code == 1
    assert "it has dedloc, dts" in refused.stderr


def test_calculated_rounds_are_asked_for_by_one_word_and_said(tmp_path: Path) -> None:
    file = tmp_path / "swarm.yaml"
    file.write_text(json.dumps(SMALL))
    out = CliRunner().invoke(app, ["simulate", str(file), "--calculated", "--json", "--out", str(tmp_path / "out")])
    assert out.exit_code == 0
    found = json.loads(out.stdout)
    assert found["rounds"] == "calculated"
    assert found == json.loads((tmp_path / "out" / "report.json").read_text())
    assert found["strategies"][0]["held_out_loss"] < found["strategies"][0]["looks"][0]["loss"]
    table = CliRunner().invoke(app, ["simulate", str(file), "--calculated"])
    assert table.stdout.splitlines()[-1].startswith("seed 3, rounds calculated, digest ")
    several = {**SMALL, "strategies": [{"strategy": {"name": "dts", "target_batch_size": 128, "windows": 4}}]}
    file.write_text(json.dumps(several))
    refused = CliRunner().invoke(app, ["simulate", str(file), "--calculated"])
    assert refused.exit_code == 1
    assert "rounds of several windows cannot be calculated" in refused.stderr
    assert "simulate without --calculated" in refused.stderr


def test_bytes_of_a_thinned_vector_weigh_as_those_of_the_whole_one() -> None:
    """A round of 4 trainers in float16 over 20 Mbit/s: each sends its vector's 2 MB to a fast backbone, in 0.8 s."""
    groups = [SMALL["groups"][0], {**SMALL["groups"][1], "count": 4, "down_mbit_per_s": 20}]
    (found,) = figures_of({**SYNTHETIC, "groups": groups})
    assert 0.8 < found.round_s < 1.6
    each = found.sent_bytes_of_a_trainer / found.steps
    assert 1.9e6 < each < 3e6, "its vector, and now and then a state"


def test_who_comes_and_goes_is_counted_while_it_is_there_and_nothing_is_lost_by_leaving() -> None:
    happenings = [
        {"peer": 0, "at_s": 20, "what": "leave"},
        {"peer": 0, "at_s": 35, "what": "join"},
        {"peer": 1, "at_s": 30, "what": "join"},
    ]
    part_time = {**SMALL["groups"][1], "name": "part-time", "count": 2}
    churn = {"kind": "trace", "happenings": happenings}
    (found,) = figures_of({**SMALL, "groups": [*SMALL["groups"], {**part_time, "churn": churn}]})
    assert found.money == pytest.approx((0.6 + 3 * 1.2 + (45 + 30) / 60 * 1.2) / 60)
    assert found.lost_share < 0.01
    assert found.committed_samples + found.held_samples <= found.computed_samples, "nothing counts twice"
    assert 0.4 < found.compute_use < 1.0


def test_epochs_end_a_simulation_before_its_minutes() -> None:
    (found,) = figures_of({**SMALL, "minutes": 30, "epochs": 6})
    assert found.steps == 6
    assert found.virtual_s < 120


def test_equal_shares_make_rounds_longer_where_one_link_is_thin() -> None:
    """Not by as much as an all-reduce would: what a slow reducer has not done is taken over by others."""
    thin = {**SMALL["groups"][1], "name": "thin", "count": 1, "up_mbit_per_s": 4, "down_mbit_per_s": 4}
    fast = {**SMALL["groups"][1], "up_mbit_per_s": 100}
    rule = SYNTHETIC["strategies"][0]
    strategies = [{**rule, "label": "equal", "equal_shares": True}, {**rule, "label": "by links"}]
    equal, by_links = figures_of({**SYNTHETIC, "strategies": strategies, "groups": [SMALL["groups"][0], fast, thin]})
    assert equal.round_s > 1.2 * by_links.round_s
