"""What would change a swarm's pace, and which way of training suits it: forecasts of one thing after the other."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import get_args

from collab import config
from collab.averaging.contribution_plan import Policy
from collab.simulation.forecast import Forecast, Model, forecast
from collab.simulation.swarm_file import Contender, SwarmFile

POLICIES: tuple[Policy, ...] = get_args(Policy)
TARGET = 256
"""Samples of a step, where the file has no dedloc that says it."""
DOUBLINGS = 3
"""Of the target batch that a suggestion may make."""
INNER_STEPS = (30, 100, 300)
"""Of each trainer in a phase of diloco."""

# What a sample is worth beside one of large-batch training with the file's own target batch. These are rules of thumb,
# said in docs/simulator.md: what they are for a model is found out by training it.
WORTH_OF_DOUBLING = 0.95
WORTH_OF_DELAY = 0.97
WORTH_OF_DILOCO = {30: 0.92, 100: 0.87, 300: 0.80}
WORTH_OF_CODEC: dict[str, float] = {"exact": 1.0, "half": 1.0, "auto": 0.99, "int8": 0.99, "int4": 0.97}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that could be otherwise."""

    what: str
    step_s: float
    samples_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way of training that could be proposed."""

    contender: Contender
    codec: Policy
    delay: int
    inner_steps: int
    """Of a trainer, between two exchanges; 0: it takes none of its own."""
    doublings: int
    """Of the target batch."""

    @property
    def worth(self) -> float:
        """Of a sample, 0 to 1."""
        found = WORTH_OF_CODEC[self.codec] * WORTH_OF_DELAY**self.delay * WORTH_OF_DOUBLING**self.doublings
        return found * WORTH_OF_DILOCO[self.inner_steps] if self.inner_steps else found


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """What suits a swarm best, as far as can be calculated."""

    candidate: Candidate
    forecast: Forecast
    reasons: tuple[str, ...]
    """One for the strategy, the codec, the target batch and the delay each."""


# -- one thing changed -----------------------------------------------------------------------------------------------


def changes(swarm: SwarmFile, contender: Contender, model: Model) -> tuple[Change, ...]:
    """What one more backbone, or another codec, would make of a contender."""
    found = [_change("one more backbone", with_backbone(swarm), contender, model)]
    if not isinstance(contender.strategy, config.Solo | config.VcAsgd):
        present = (contender.averaging or swarm.averaging).compression
        for policy in POLICIES:
            if policy != present:
                found.append(_change(f"compression: {policy}", swarm, with_codec(swarm, contender, policy), model))
    return tuple(found)


def _change(what: str, swarm: SwarmFile, contender: Contender, model: Model) -> Change:
    found = forecast(swarm, contender, model)
    return Change(what=what, step_s=found.step_s, samples_per_s=found.samples_per_s)


def with_backbone(swarm: SwarmFile) -> SwarmFile:
    """The same swarm with one more of its first backbones."""
    first = next(index for index, group in enumerate(swarm.groups) if group.role == "backbone")
    groups = list(swarm.groups)
    groups[first] = groups[first].model_copy(update={"count": groups[first].count + 1})
    return swarm.model_copy(update={"groups": tuple(groups)})


def with_codec(swarm: SwarmFile, contender: Contender, policy: Policy) -> Contender:
    """The same contender with another compression."""
    averaging = (contender.averaging or swarm.averaging).model_copy(update={"compression": policy})
    return contender.model_copy(update={"averaging": averaging})


# -- everything ------------------------------------------------------------------------------------------------------


def candidates(swarm: SwarmFile) -> Iterator[Candidate]:
    """All ways of training among which a suggestion chooses."""
    base = next((c.strategy.target_batch_size for c in swarm.strategies if isinstance(c.strategy, config.Dedloc)), TARGET)
    trainers = sum(group.count for group in swarm.groups if group.role == "trainer")
    for policy in POLICIES:
        if policy == "exact":
            continue  # half is as good for training, and half as long
        for delay in (0, 1):
            for doublings in range(DOUBLINGS + 1):
                rule: config.Strategy = config.Dedloc(
                    name="dedloc", target_batch_size=base << doublings, delay=0 if delay == 0 else 1
                )
                yield _candidate(swarm, rule, policy, delay, doublings=doublings)
            for inner in INNER_STEPS:
                rule = config.Diloco(
                    name="diloco",
                    target_batch_size=inner * trainers * swarm.microbatch_size,
                    delay=0 if delay == 0 else 1,
                )
                yield _candidate(swarm, rule, policy, delay, inner_steps=inner)


def _candidate(
    swarm: SwarmFile, rule: config.Strategy, policy: Policy, delay: int, *, inner_steps: int = 0, doublings: int = 0
) -> Candidate:
    averaging = swarm.averaging.model_copy(update={"compression": policy})
    return Candidate(
        contender=Contender(
            label=f"{rule.name} {rule.target_batch_size} {policy} delay {delay}", strategy=rule, averaging=averaging
        ),
        codec=policy,
        delay=delay,
        inner_steps=inner_steps,
        doublings=doublings,
    )


def suggest(swarm: SwarmFile, model: Model) -> Suggestion:
    """The candidate that trains most samples a second, each by its worth; of equals the first, which is the plainest."""
    tried = [(candidate, forecast(swarm, candidate.contender, model)) for candidate in candidates(swarm)]

    def score(one: tuple[Candidate, Forecast]) -> float:
        return one[0].worth * one[1].samples_per_s

    best = max(tried, key=score)
    chosen, found = best

    def reason(what: str, value: Callable[[Candidate], object]) -> str:
        others = [one for one in tried if value(one[0]) != value(chosen)]
        second = max(others, key=score)
        text = f"{what} {value(chosen)}: with {value(second[0])} it would train {_times(score(second), score(best))}"
        raw = f"{second[1].samples_per_s:.3g} samples/s instead of {found.samples_per_s:.3g}"
        return f"{text} as fast ({raw}, each by what it is worth)."

    return Suggestion(
        candidate=chosen,
        forecast=found,
        reasons=(
            reason("strategy", lambda c: c.contender.strategy.name),
            reason("compression", lambda c: c.codec),
            reason("target_batch_size", lambda c: c.contender.strategy.target_batch_size),
            reason("delay", lambda c: c.delay),
        ),
    )


def _times(one: float, other: float) -> str:
    return f"{one / other:.0%}" if math.isfinite(one) and other > 0 else "?"


