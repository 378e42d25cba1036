#!/usr/bin/env python3
"""How near forecasts come to simulations, on random swarms, and suggestions to the best of a grid.

    python scripts/bench_forecast.py [--swarms 20] [--first 0] [--grids 4,18] [--calculated-grids 0,1,2] [--links 1]
        [--churn] [--seed 0] [--json]

Each swarm is drawn: its machines, their speeds and links, the length of the vector, and how it trains. It is forecast,
simulated with calculated rounds (``collab-peer simulate --calculated``), and simulated: the roles of a real run in
virtual time, with vectors in which nothing is learnt. Compared are samples committed per second, and the time of a
step, after the first quarter of the steps. With ``--churn`` its homes come and go, each for some steps, and it is
simulated for more steps. For some of the swarms a grid of what ``collab-peer plan --suggest`` chooses from is
simulated, too, by its roles or with calculated rounds: dedloc with 1 and 4 times the target batch, diloco with
phases of 30 and 100 steps, half and auto, with and without delay. How good is what is suggested beside the best of
them? The score is samples committed per second, times what a sample is worth
(``collab/simulation/alternatives.py``).
"""

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from collab import config
from collab.config import Averaging, Optimizer
from collab.simulation.alternatives import Candidate, candidates, suggest
from collab.simulation.forecast import Model, forecast
from collab.simulation.residents import link_of
from collab.simulation.swarm_file import Contender, Group, NoTask, PartTime, SwarmFile
from peers.figures import Figures
from peers.trying import simulate

STEPS, STEPS_IN_GRID, STEPS_OF_CHURN = 20, 8, 40
"""That each simulation has time for."""
MICROBATCH = 8
OPTIMIZER = Optimizer(name="sgd", learning_rate=1e-6)
"""Parameters stay near zero: nothing is learnt."""


def random_swarm(number: int, *, seed: int) -> SwarmFile:
    """One swarm, and how it trains."""
    rng = random.Random(f"forecast {seed} {number}")
    groups = [
        Group(name="backbone", role="backbone", up_mbit_per_s=rng.choice((20, 50, 200)),
              down_mbit_per_s=rng.choice((50, 200)), latency_ms=rng.uniform(2, 30))
    ]  # fmt: skip
    if rng.random() < 0.3:
        groups.append(Group(name="auxiliary", role="auxiliary", up_mbit_per_s=50, down_mbit_per_s=50, latency_ms=10))
    microbatch_s = math.exp(rng.uniform(math.log(0.3), math.log(5.0)))
    for index in range(rng.randint(1, 3)):
        up = math.exp(rng.uniform(math.log(2), math.log(40)))
        groups.append(
            Group(
                name=f"homes {index}",
                count=rng.randint(2, 6),
                seconds_per_microbatch=microbatch_s * rng.uniform(0.6, 1.8),
                spread=rng.choice((0.0, 0.1, 0.3)),
                up_mbit_per_s=up,
                down_mbit_per_s=up * rng.choice((1, 2, 5)),
                latency_ms=rng.uniform(5, 60),
                client_mode=index > 0 and rng.random() < 0.2,
            )
        )
    trainers = sum(group.count for group in groups if group.role == "trainer")
    elements = int(math.exp(rng.uniform(math.log(1e5), math.log(6e5))))
    task = NoTask(name="none", num_elements=elements, samples=4000)
    swarm = SwarmFile(
        seed=number,
        minutes=1.0,
        microbatch_size=MICROBATCH,
        task=task,
        optimizer=OPTIMIZER,
        averaging=Averaging(compression=rng.choice(("half", "auto")), reduction="mean"),
        strategies=(Contender(strategy=_rule(rng, trainers)),),
        groups=tuple(groups),
    )
    return long_enough(swarm, swarm.strategies[0])


def with_links(swarm: SwarmFile, factor: float) -> SwarmFile:
    """The same swarm with all links so many times as fast."""
    groups = tuple(
        group.model_copy(
            update={"up_mbit_per_s": factor * group.up_mbit_per_s, "down_mbit_per_s": factor * group.down_mbit_per_s}
        )
        for group in swarm.groups
    )
    return swarm.model_copy(update={"groups": groups})


def with_churn(swarm: SwarmFile, *, seed: int) -> SwarmFile:
    """The same swarm with homes that come and go; a session is 5 to 25 of its steps, and at least a minute."""
    rng = random.Random(f"churn {seed} {swarm.seed}")
    step_s = forecast(swarm, swarm.strategies[0], model_of(swarm)).step_s
    if isinstance(swarm.strategies[0].strategy, config.VcAsgd):
        step_s *= sum(group.count for group in swarm.groups if group.role == "trainer")
    groups = []
    for group in swarm.groups:
        session_s = max(step_s * rng.uniform(5, 25), 60.0)
        churn = PartTime(
            kind="sessions",
            mean_session_s=session_s,
            mean_absence_s=session_s * rng.uniform(0.2, 1.0),
            killed=rng.choice((0.0, 0.5, 1.0)),
        )
        groups.append(group.model_copy(update={"churn": churn}) if group.role == "trainer" else group)
    found = swarm.model_copy(update={"groups": tuple(groups)})
    return long_enough(found, found.strategies[0], STEPS_OF_CHURN)


def _rule(rng: random.Random, trainers: int) -> config.Strategy:
    target, delay = trainers * MICROBATCH * rng.randint(2, 16), rng.choice((0, 1))
    if (name := rng.choice(("dedloc", "dedloc", "dts", "diloco", "vc_asgd"))) == "dedloc":
        return config.Dedloc(name="dedloc", target_batch_size=target, delay=1 if delay else 0)
    if name == "dts":
        return config.Dts(name="dts", target_batch_size=target)
    if name == "diloco":
        return config.Diloco(name="diloco", target_batch_size=4 * target, delay=1 if delay else 0)
    return config.VcAsgd(name="vc_asgd", shards=rng.choice((50, 100)))


def long_enough(swarm: SwarmFile, contender: Contender, steps: int = STEPS, joining_s: float = 30.0) -> SwarmFile:
    """The same swarm, for as long as so many steps of one contender take; at least some minutes, to settle."""
    step_s = forecast(swarm, contender, model_of(swarm)).step_s
    if isinstance(contender.strategy, config.VcAsgd):
        step_s *= sum(group.count for group in swarm.groups if group.role == "trainer")
    return swarm.model_copy(update={"minutes": max((steps * step_s + joining_s) / 60.0, 2.0)})


def model_of(swarm: SwarmFile) -> Model:
    """Of the vector that is meant."""
    assert isinstance(swarm.task, NoTask)  # noqa: S101 - made above
    return Model(num_elements=swarm.task.num_elements, num_samples=swarm.task.samples)


def simulated(swarm: SwarmFile, *, is_calculated: bool = False) -> Figures:
    """Of the swarm's one contender.

    Args:
        is_calculated: only trainers are played.
    """
    (outcome,) = simulate(swarm, is_calculated=is_calculated)
    return outcome.figures


def compare(swarm: SwarmFile) -> dict[str, Any]:
    """Forecast, simulation with calculated rounds, and simulation of one swarm."""
    began_s = time.monotonic()
    calculated = simulated(swarm, is_calculated=True)
    calculated_s, began_s = time.monotonic() - began_s, time.monotonic()
    contender = swarm.strategies[0]
    expected, found = forecast(swarm, contender, model_of(swarm)), simulated(swarm)
    rule, turnover = contender.strategy, expected.turnover
    return {
        "strategy": rule.name, "delay": getattr(rule, "delay", 0), "target": rule.target_batch_size,
        "trainers": sum(group.count for group in swarm.groups if group.role == "trainer"),
        "elements": model_of(swarm).num_elements, "minutes": round(swarm.minutes or 0.0, 1), "steps": found.steps,
        **{
            name: {
                "forecast": getattr(expected, name), "calculated": getattr(calculated, name),
                "simulation": getattr(found, name),
            }
            for name in ("samples_per_s", "step_s", "round_s", "compute_use")
        },
        "off": off(expected.samples_per_s, found.samples_per_s), "step_off": off(expected.step_s, found.step_s),
        "calculated_off": off(calculated.samples_per_s, found.samples_per_s),
        "calculated_step_off": off(calculated.step_s, found.step_s),
        "lost_share": {
            "forecast": turnover.lost_share if turnover else 0.0, "calculated": calculated.lost_share,
            "simulation": found.lost_share,
        },
        "rounds_lost": found.rounds_lost, "rounds_committed": found.rounds_committed,
        "bottleneck": expected.bottleneck, "seconds": round(time.monotonic() - began_s, 1),
        "calculated_seconds": round(calculated_s, 1),
    }  # fmt: skip


def off(expected: float, found: float) -> float:
    """By what part of the simulation the forecast is too high; negative: too low."""
    return expected / found - 1.0


def in_grid(candidate: Candidate) -> bool:
    """Whether it is simulated in any case."""
    target = candidate.contender.strategy.target_batch_size / candidate.base
    is_chosen = target < 4 if candidate.contender.strategy.name == "diloco" else target in (1, 4)
    return is_chosen and candidate.codec in ("half", "auto")


def joining_s(swarm: SwarmFile) -> float:
    """Until everybody has fetched the state, at the latest."""
    links = [link_of(group) for group in swarm.groups]
    slowest = min(min(link.up_bytes_per_s, link.down_bytes_per_s) for link in links)
    return 30.0 + 4.0 * model_of(swarm).num_elements / slowest


def grid(swarm: SwarmFile, *, is_calculated: bool = False) -> dict[str, Any]:
    """The suggestion for one swarm beside a grid of candidates, all simulated."""
    began_s, proposed, scores = time.monotonic(), suggest(swarm, model_of(swarm)), {}
    for candidate in candidates(swarm):
        if not (in_grid(candidate) or candidate.contender == proposed.candidate.contender):
            continue
        one = swarm.model_copy(update={"strategies": (candidate.contender,)})
        long = long_enough(one, candidate.contender, STEPS_IN_GRID, joining_s(swarm))
        found = simulated(long, is_calculated=is_calculated)
        score = candidate.score(found.samples_per_s, found.step_s)
        scores[candidate.contender.title] = 0.0 if math.isnan(score) else score  # too few steps in the time
    title = proposed.candidate.contender.title
    best = max(scores, key=lambda name: scores[name])
    return {
        "suggested": title, "score": scores[title], "best": best, "best_score": scores[best],
        "of_best": scores[title] / scores[best], "candidates": len(scores), "reasons": proposed.reasons,
        "seconds": round(time.monotonic() - began_s, 1),
    }  # fmt: skip


def summary(found: Sequence[dict[str, Any]], kind: str = "") -> dict[str, float]:
    """How far off forecasts are, or what has only its trainers played (``kind="calculated_"``)."""
    worst = [max(abs(one[f"{kind}off"]), abs(one[f"{kind}step_off"])) for one in found]
    return {
        "worst": max(worst), "median": statistics.median(worst), "within_15_percent": sum(w <= 0.15 for w in worst),
        "swarms": len(worst),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--swarms", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="number of the first swarm")
    parser.add_argument("--grids", default="4,18", help="numbers of the swarms whose grid is simulated")
    parser.add_argument("--calculated-grids", default="", help="the same with calculated rounds")
    parser.add_argument("--links", type=float, default=1.0, help="rates of all links, times as much as drawn")
    parser.add_argument("--churn", action="store_true", help="homes come and go")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="only the JSON object")
    options = parser.parse_args()

    def tell(what: dict[str, Any]) -> None:
        if not options.json:
            print(json.dumps(what), file=sys.stderr, flush=True)

    def swarm(number: int) -> SwarmFile:
        drawn = random_swarm(number, seed=options.seed)
        found = long_enough(with_links(drawn, options.links), drawn.strategies[0])
        return with_churn(found, seed=options.seed) if options.churn else found

    compared, grids = [], []
    for number in range(options.first, options.first + options.swarms):
        compared.append({"swarm": number, **compare(swarm(number))})
        tell(compared[-1])
    for number in (int(text) for text in options.grids.split(",") if text):
        grids.append({"swarm": number, **grid(swarm(number))})
        tell(grids[-1])
    for number in (int(text) for text in options.calculated_grids.split(",") if text):
        grids.append({"swarm": number, "rounds": "calculated", **grid(swarm(number), is_calculated=True)})
        tell(grids[-1])
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    setup = {"date": date, "seed": options.seed, "links": options.links, "churn": options.churn, "steps": STEPS}
    result = {"setup": setup, "compared": compared, "grids": grids}
    if compared:
        result["summary"] = {"forecast": summary(compared), "calculated": summary(compared, "calculated_")}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
