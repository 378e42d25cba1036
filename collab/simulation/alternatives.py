"""What would change a swarm's pace, and which way of training suits it: forecasts of one thing after the other."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import get_args

from collab import config
from collab.averaging.contribution_plan import Policy
from collab.simulation.forecast import Forecast, Model, forecast
from collab.simulation.swarm_file import Contender, SwarmFile

TARGET = 256
"""Samples of a step, where the file has no dedloc that says it."""
DOUBLINGS = 3
"""Of the target batch that a suggestion may make."""
INNER_STEPS = (30, 100, 300)
"""Of each trainer in a phase of diloco."""

# What a sample is worth beside one of large-batch training with the file's own target batch. These are rules of thumb,
# said in docs/simulator.md: what they are for a model is found out by training it.
NOISE = 8.0
"""Target batches at which a step of large-batch training is as long as noise allows: n samples in a step are worth
1 / (1 + n / noise) each. Source: McCandlish et al., "An Empirical Model of Large-Batch Training" (2018)."""
WORTH_OF_DELAY = 0.97
WORTH_OF_PHASES, SHORT_PHASE, WORTH_OF_LONGER_PHASES = 0.92, 30, 0.96
"""Of diloco's with so many inner steps, and for each doubling of these."""
WORTH_OF_CODEC: dict[str, float] = {"exact": 1.0, "half": 1.0, "auto": 0.99, "int8": 0.99, "int4": 0.97}


POLICIES: tuple[Policy, ...] = tuple(policy for policy in get_args(Policy) if policy in WORTH_OF_CODEC)
"""Those with a worth; ``sparse`` has other rules for what travels."""


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
    base: int
    """Samples behind a step with which the worth of a sample is compared."""

    def worth(self, samples: float) -> float:
        """Of a sample, 0 to 1.

        Args:
            samples: in a step: rounds that take longer than a batch make it more than the target.
        """
        found = WORTH_OF_CODEC[self.codec] * WORTH_OF_DELAY**self.delay
        more = max(samples / self.base, 1.0)
        if isinstance(self.contender.strategy, config.Diloco):
            return float(found * WORTH_OF_PHASES * WORTH_OF_LONGER_PHASES ** math.log2(more))
        return found * (1.0 + 1.0 / NOISE) / (1.0 + more / NOISE)

    def score(self, samples_per_s: float, step_s: float) -> float:
        """Samples per second, each by what it is worth."""
        return self.worth(max(samples_per_s * step_s, 1.0)) * samples_per_s


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
        found += [
            _change(f"compression: {policy}", swarm, with_codec(swarm, contender, policy), model)
            for policy in POLICIES
            if policy != present
        ]
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
    given = [c.strategy.target_batch_size for c in swarm.strategies if isinstance(c.strategy, config.Dedloc)]
    base = given[0] if given else TARGET
    trainers = sum(group.count for group in swarm.groups if group.role == "trainer")
    for policy in POLICIES:
        if policy == "exact":
            continue  # half is as good for training, and half as long
        for delay in (0, 1):
            for doublings in range(DOUBLINGS + 1):
                rule: config.Strategy = config.Dedloc(
                    name="dedloc", target_batch_size=base << doublings, delay=0 if delay == 0 else 1
                )
                yield _candidate(swarm, rule, policy, delay, base)
            for inner in INNER_STEPS:
                rule = config.Diloco(
                    name="diloco",
                    target_batch_size=inner * trainers * swarm.microbatch_size,
                    delay=0 if delay == 0 else 1,
                )
                yield _candidate(swarm, rule, policy, delay, SHORT_PHASE * trainers * swarm.microbatch_size)


def _candidate(swarm: SwarmFile, rule: config.Strategy, policy: Policy, delay: int, base: int) -> Candidate:
    averaging = swarm.averaging.model_copy(update={"compression": policy})
    return Candidate(
        contender=Contender(
            label=f"{rule.name} {rule.target_batch_size} {policy} delay {delay}", strategy=rule, averaging=averaging
        ),
        codec=policy,
        delay=delay,
        base=base,
    )


def suggest(swarm: SwarmFile, model: Model) -> Suggestion:
    """The candidate that trains most samples a second, each by its worth; of equals the plainest, which comes first."""
    tried = [(candidate, forecast(swarm, candidate.contender, model)) for candidate in candidates(swarm)]

    def score(one: tuple[Candidate, Forecast]) -> float:
        return one[0].score(one[1].samples_per_s, one[1].step_s)

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


