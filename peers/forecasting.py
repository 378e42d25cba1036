"""``collab-peer plan SWARM.yaml``: what a swarm will do with each strategy, in words and numbers."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from collab.errors import ConfigError
from collab.simulation.alternatives import Change, Suggestion, changes, suggest
from collab.simulation.forecast import Forecast, Model, forecast
from collab.simulation.swarm_file import NoTask, SwarmFile, load_swarm
from peers.simulation_report import number, percent


def model_of(swarm: SwarmFile, base_dir: Path) -> Model:
    """How long the vector is, and the data; a real task is built for that, and its text is read."""
    if isinstance(swarm.task, NoTask):
        return Model(num_elements=swarm.task.num_elements, num_samples=swarm.task.samples)
    from collab.training.layout import VectorLayout
    from peers.trying import learnt

    task, _ = learnt(swarm, base_dir)
    return Model(num_elements=VectorLayout(task.build_model()).num_elements, num_samples=task.num_samples)


def run_forecast(file: Path, *, with_suggestion: bool, as_json: bool) -> None:
    """Forecast every strategy of a swarm file, and say what came of it.

    Raises:
        ConfigError: the file cannot be used.
        DataError: the data cannot be read.
    """
    swarm = load_swarm(file)
    model = model_of(swarm, file.parent)
    try:
        found = {c.title: (forecast(swarm, c, model), changes(swarm, c, model)) for c in swarm.strategies}
    except ValueError as error:
        raise ConfigError(f"{file}: {error}", hint="add trainers, or let them stay longer") from error
    proposed = suggest(swarm, model) if with_suggestion else None
    text = _for_programs(model, found, proposed) if as_json else _for_people(model, found, proposed)
    sys.stdout.write(text + "\n")


Found = dict[str, tuple[Forecast, tuple[Change, ...]]]


def _for_programs(model: Model, found: Found, proposed: Suggestion | None) -> str:
    result: dict[str, Any] = {
        "model": asdict(model),
        "strategies": [
            {"title": title, **asdict(one), "changes": [asdict(change) for change in others]}
            for title, (one, others) in found.items()
        ],
    }
    if proposed is not None:
        contender = proposed.candidate.contender
        result["suggestion"] = {
            "strategy": contender.strategy.model_dump(),
            "compression": proposed.candidate.codec,
            "score": proposed.candidate.score(proposed.forecast.samples_per_s, proposed.forecast.step_s),
            "forecast": asdict(proposed.forecast),
            "reasons": list(proposed.reasons),
        }
    return json.dumps(result)


def _for_people(model: Model, found: Found, proposed: Suggestion | None) -> str:
    lines = [f"a vector of {model.num_elements} elements, {model.num_samples} samples in a pass"]
    for title, (one, others) in found.items():
        lines += ["", title, *_in_words(one)]
        for change in others:
            more = change.samples_per_s / one.samples_per_s - 1.0
            lines.append(f"  {change.what}: a step in {number(change.step_s)} s, {more:+.0%} samples/s")
    if proposed is not None:
        strategy = proposed.candidate.contender.strategy
        fields = ", ".join(f"{name}: {json.dumps(value)}" for name, value in strategy.model_dump().items())
        lines += ["", "suggested", f"  strategy: {{{fields}}}"]
        lines.append(f"  averaging: {{compression: {proposed.candidate.codec}}}")
        lines += [f"  {reason}" for reason in proposed.reasons]
    return "\n".join(lines)


def _in_words(one: Forecast) -> list[str]:
    parts = f"batch {number(one.batch_s)} s, waiting {number(one.wait_s)} s, round {number(one.round_s)} s"
    lines = [
        f"  a step in {number(one.step_s)} s ({parts}), {number(one.samples_per_s)} samples/s",
        f"  what holds it up: {one.bottleneck}",
        f"  in use: compute {percent(one.compute_use)}, uplinks {percent(one.uplink_use)}",
    ]
    if one.codecs:
        *sent, result = one.codecs
        lines.append(f"  encodings: {', '.join(sent)}; of the result {result}")
    if (turnover := one.turnover) is not None:
        there = f"{number(turnover.trainers)} trainers compute, {number(turnover.joining)} fetch the state"
        gone = f"{percent(turnover.lost_share)} of what is computed is lost with those who go"
        lines.append(f"  comings and goings: on average {there}; {gone}")
        missing = "rounds that are disturbed or lost, steps that newcomers miss, standstills when most go at once"
        lines.append(f"  not in it: {missing}")
    if one.left_out:
        lines.append(f"  not in every round, since their uplinks would hold up all: {', '.join(one.left_out)}")
    return lines
