"""``collab-peer plan --cost``."""

import json

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
