"""The race to the same loss, without its processes: what each engine is given, and what is made of its curve."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import bench_time_to_loss
from bench_processes import BenchFailed
from bench_time_to_loss import parse_arguments, race, report, tries_of
from race_lap import Churn, Lap, Race
from race_setup import ENGINES, HIVEMIND, Engine, Work

TUNED = ["--rates", "0.001,0.004", "--delays", "0,1", "--tune-seconds", "5"]


def lap(engine: Engine, *losses: float) -> Lap:
    """Judged each second."""
    curve = [(float(second), loss) for second, loss in enumerate(losses, start=1)]
    return Lap(
        engine=engine, curve=curve, wire_bytes=900, microbatches=9, epochs=3, in_steps_s=1.0, num_elements=7,
        computing_s=4.5,
    )


def test_every_engine_is_tried_at_every_rate_and_those_with_a_delay_at_each() -> None:
    options = parse_arguments(TUNED)
    tried = {name: [(each.learning_rate, each.delay) for each in tries_of(name, options)] for name in ENGINES}
    grid = [(0.001, 0), (0.001, 1), (0.004, 0), (0.004, 1)]
    assert {name for name in ENGINES if tried[name] == grid} == {"torchft", "dedloc", "diloco"}
    assert all(tried[name] == [(0.001, 0), (0.004, 0)] for name in (*HIVEMIND, "dts"))


def test_batches_are_tried_by_those_that_exchange_often_and_phases_by_the_others() -> None:
    options = parse_arguments(["--batches", "96,192", "--phases", "300,600", "--delays", "0"])
    tried = {name: [each.target for each in tries_of(name, options)] for name in ENGINES}
    assert {name for name in ENGINES if tried[name] == [96, 192]} == {"hivemind", "hivemind-delay", "dedloc", "dts"}
    assert all(tried[name] == [300, 600] for name in ("hivemind-local", "torchft", "diloco"))
    with pytest.raises(SystemExit):
        parse_arguments(["--phases", "300,0"])


def test_each_engines_settings_come_to_its_run_file() -> None:
    options = parse_arguments(["--delays", "1", "--outer", "0.9,0.6", "--dense", "int4", "--phases", "480"])
    runs = {}
    for name in ENGINES:
        (engine,) = tries_of(name, options)
        runs[name] = Work(
            engine=engine, index=0, trainers=6, host="", up_mbit_per_s=20.0, seconds=1.0, pace_ms=1.0, batch=8,
            layers=2, width=192, seed=0,
        )
    assert runs["dedloc"].run.strategy.delay == 1  # type: ignore[union-attr]
    diloco = runs["diloco"].run
    assert (diloco.strategy.outer_learning_rate, diloco.strategy.outer_momentum) == (0.9, 0.6)  # type: ignore[union-attr]
    assert diloco.averaging.compression == "int4"
    assert runs["dedloc"].run.averaging.compression == "auto"
    assert runs["torchft"].microbatches_between_exchanges == 10
    assert all(Work.from_json(work.to_json()) == work for work in runs.values())


def test_the_settings_that_learned_most_in_a_short_lap_run_the_whole_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def run(each: Race) -> Lap:
        ran.append((each._engine.learning_rate, each._engine.delay, each._course.seconds, each._course.churn))
        if each._engine.delay == 0 and each._course.seconds == 5:
            raise BenchFailed("nobody came")
        return lap(each._engine, 6.0, 5.0 - each._engine.learning_rate)

    monkeypatch.setattr(Race, "run", run)
    options = parse_arguments([*TUNED, "--seconds", "50", "--churn", "0.3,0.6"])
    counted, tuned = race("diloco", options)
    assert ran[-1] == (0.004, 1, 50.0, Churn(killed_at=0.3, joined_at=0.6))
    assert [short[2:] for short in ran[:-1]] == [(5.0, None)] * 4, "settings are chosen without churn"
    assert counted.engine.learning_rate == 0.004
    assert len(tuned) == 2, "two never came to an end"


def test_settings_with_which_no_step_was_taken_are_the_last_to_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = {0.001: [], 0.002: [9.0], 0.004: []}
    monkeypatch.setattr(Race, "run", lambda each: lap(each._engine, *losses[each._engine.learning_rate]))
    counted, _ = race("hivemind", parse_arguments(["--rates", "0.001,0.002,0.004", "--tune-seconds", "5"]))
    assert counted.engine.learning_rate == 0.002


def test_seconds_are_to_the_loss_that_the_slowest_engine_reaches() -> None:
    options = parse_arguments(["--engines", "hivemind,diloco", "--seconds", "9"])
    laps = {"hivemind": lap(tries_of("hivemind", options)[0], 6.0, 5.5, 5.0)}
    laps["diloco"] = lap(tries_of("diloco", options)[0], 4.9, 4.0)
    content = report(options, {name: (each, [each]) for name, each in laps.items()}, {}, 0.0)
    assert content["target_loss"] == 5.0
    assert content["seconds_to_loss"] == {"hivemind": 3.0, "diloco": 1.0}
    assert content["speedup"] == {"hivemind": 1.0, "diloco": 3.0}
    assert content["bytes_to_loss"] == {"hivemind": 300, "diloco": 100}
    assert content["steps"]["diloco"]["microbatch_s"] == 0.5


def test_an_engine_that_took_no_step_has_not_reached_the_loss_and_does_not_set_it() -> None:
    options = parse_arguments(["--engines", "hivemind,diloco", "--seconds", "9"])
    laps = {"hivemind": lap(tries_of("hivemind", options)[0]), "diloco": lap(tries_of("diloco", options)[0], 4.9, 4.0)}
    content = report(options, {name: (each, [each]) for name, each in laps.items()}, {}, 0.0)
    assert content["target_loss"] == 4.0
    assert content["seconds_to_loss"] == {"hivemind": None, "diloco": 2.0}
    assert content["bytes_to_loss"] == {"hivemind": None, "diloco": 200}
    assert content["best_loss"] == {"hivemind": None, "diloco": 4.0}
    assert content["speedup"] == {"hivemind": None, "diloco": None}, "nothing to compare with"


def test_an_engine_whose_library_is_missing_is_named_and_left_out_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_time_to_loss, "not_installed", lambda: ["torchft"])
    assert "torchft" not in parse_arguments([]).engines
    with pytest.raises(SystemExit):
        parse_arguments(["--engines", "torchft,diloco"])
    assert "torchft is not installed here: pip install torchft" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0.6,0.3", "0.5", "0.5,1.0", "-0.1,0.5"])
def test_churn_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="two parts of the time"):
        Churn.parse(text)
