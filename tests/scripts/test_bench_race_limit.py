"""What the race's engines could come to without a network: the two ways by hand, and what is made of their curves."""

import itertools
import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import bench_race_limit
from bench_race_limit import Trainers, curve_of, in_batches, in_phases, parse_arguments, seconds_to

SMALL = ["--microbatch", "2", "--layers", "1", "--width", "8"]


def first(steps: "itertools.chain | object", number: int) -> list[tuple[int, float]]:
    return list(itertools.islice(steps, number))  # type: ignore[call-overload]


def test_one_trainer_that_steps_with_each_microbatch_is_the_same_in_both_ways() -> None:
    options = parse_arguments([*SMALL, "--trainers", "1"])
    stepped = first(in_batches(Trainers(options), 0.01, 2), 4)
    phased = first(in_phases(Trainers(options), 0.01, 2, (1.0, 0.0)), 4)
    assert [taken for taken, _ in stepped] == [taken for taken, _ in phased] == [1, 2, 3, 4]
    assert [loss for _, loss in phased] == pytest.approx([loss for _, loss in stepped], abs=2e-5)
    assert stepped[3][1] < stepped[0][1], "it learns"


def test_a_step_of_two_trainers_is_adamw_with_the_mean_of_their_microbatches() -> None:
    options = parse_arguments([*SMALL, "--trainers", "2"])
    trainers = Trainers(options)
    model = trainers.model()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, betas=(0.9, 0.95), weight_decay=0.01)
    for sampler in trainers.samplers:
        (trainers.task.loss(model, trainers.task.batch(sampler.next(2)).tensors) / 2).backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    (taken, loss), *_ = first(in_batches(Trainers(options), 0.01, 4), 1)
    assert taken == 1
    assert loss == pytest.approx(trainers.judged(model), abs=1e-5)


def test_the_outer_momentum_of_a_phase_is_nesterovs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of one number, which a phase moves by a known step: 1 each time."""

    class Number(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = torch.nn.Parameter(torch.zeros(1))

    def moves(model: torch.nn.Module, rate: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), 1.0)

    trainers = Trainers(parse_arguments([*SMALL, "--trainers", "2"]))
    monkeypatch.setattr(trainers, "model", Number)
    monkeypatch.setattr(trainers, "judged", lambda model: float(model.x))
    monkeypatch.setattr(trainers, "backward", lambda model, index: (-model.x.sum()).backward())
    monkeypatch.setattr(bench_race_limit, "adamw", moves)
    places = [place for _, place in first(in_phases(trainers, 1.0, 4, (0.5, 0.5)), 3)]
    steps = [0.5 * (1 + 0.5 * 1), 0.5 * (1 + 0.5 * 1.5), 0.5 * (1 + 0.5 * 1.75)]
    assert places == pytest.approx([sum(steps[: n + 1]) for n in range(3)])


def test_seconds_are_microbatches_of_one_trainer_at_its_pace() -> None:
    options = parse_arguments(["--pace-ms", "250", "--seconds", "2", "--losses", "5.0,4.0"])
    endless = ((4 * number, 6.0 - number) for number in itertools.count(1))
    curve = curve_of(endless, options)
    assert curve == [(1.0, 5.0), (2.0, 4.0)]
    assert seconds_to(curve, 4.5) == 2.0
    assert seconds_to(curve, 3.9) is None
    never = ((4 * number, 9.0) for number in itertools.count(1))
    assert curve_of(never, options) == [(1.0, 9.0), (2.0, 9.0)]


def test_the_best_of_all_settings_is_told_for_each_loss(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*SMALL, "--trainers", "2", "--seconds", "1", "--rates", "0.01", "--batches", "4,8", "--phases", "8"]
    words += ["--outer", "1.0/0.0", "--losses", "99,0.5", "--json"]
    monkeypatch.setattr(sys, "argv", ["bench_race_limit.py", *words])
    assert bench_race_limit.main() == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["way"] for row in told["seconds_to_loss"]] == ["batch", "batch", "phase"]
    assert (told["best"][0]["seconds"], told["best"][0]["by"]["samples"]) == (0.25, 4)
    assert told["best"][1] == {"loss": 0.5, "seconds": None, "by": None}


def test_what_makes_no_sense_is_refused() -> None:
    for words in (["--outer", "0.9"], ["--losses", "x"], ["--trainers", "0"]):
        with pytest.raises(SystemExit):
            parse_arguments(words)
