"""What is asked of every strategy of a single trainer: plain SGD, a state that goes round, and rounds that are lost.

The same of whole swarms is in ``test_contract.py``.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from collab import config
from collab.averaging.base import Aborted, Contribution, Outcome, Superseded
from collab.strategies.base import OutOfStep, Ready, Stepped, Waiting
from collab.swarm.snapshots import unpack
from collab.training.optimizers import build_optimizer
from collab.types import PeerId, Vector
from tests.fakes import run
from tests.strategies.alone import ME, MICROBATCH, MOST_NORM, SAMPLES, WINDOW, Trainer
from tests.strategies.rule_from_docs import installed
from tests.training.toy import Plain, Toy, batch, loss, seeded

STEPS = 6
SHARDS = 4
"""Of a pass: the last steps are in the second one."""
CLIPPED = f"target_batch_size: {SAMPLES}, max_gradient_norm: {MOST_NORM}"
UNITS = f"vc_asgd, shards: {SHARDS}, max_gradient_norm: {MOST_NORM}"
Plainly = Callable[[torch.nn.Module, config.Optimizer, torch.optim.Optimizer, int], None]
"""One step of the swarm, or one unit, on one machine: model, its optimiser as a section and as it is, number."""


def on_all(model: torch.nn.Module, _: config.Optimizer, optimizer: torch.optim.Optimizer, number: int) -> None:
    """Large-batch SGD."""
    gradient(model, SAMPLES * number, SAMPLES)
    torch.nn.utils.clip_grad_norm_(model.parameters(), MOST_NORM)
    optimizer.step()


def on_signs(model: torch.nn.Module, _: config.Optimizer, optimizer: torch.optim.Optimizer, number: int) -> None:
    """What the worked example of the documents is."""
    gradient(model, SAMPLES * number, SAMPLES)
    largest = max(float(parameter.grad.abs().max()) for parameter in model.parameters() if parameter.grad is not None)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad = parameter.grad.sign() * (parameter.grad.abs() >= 0.01 * largest)
    optimizer.step()


def one_by_one(model: torch.nn.Module, _: config.Optimizer, optimizer: torch.optim.Optimizer, number: int) -> None:
    """Plain SGD, microbatch by microbatch."""
    for turn in range(WINDOW):
        gradient(model, SAMPLES * number + MICROBATCH * turn, MICROBATCH)
        torch.nn.utils.clip_grad_norm_(model.parameters(), MOST_NORM)
        optimizer.step()


def phase_by_phase(model: torch.nn.Module, _: config.Optimizer, optimizer: torch.optim.Optimizer, number: int) -> None:
    """Plain SGD, and after each phase an outer step of Nesterov's along all that it has moved."""
    before = vector_of(model)
    one_by_one(model, _, optimizer, number)
    moved = vector_of(model) - before
    velocity = 0.9 * (np.zeros_like(moved) if number == 0 else optimizer.outer) + moved  # type: ignore[attr-defined]
    optimizer.outer = velocity  # type: ignore[attr-defined]
    after = torch.from_numpy(before + 0.7 * (moved + 0.9 * velocity))
    torch.nn.utils.vector_to_parameters(after, model.parameters())


def unit_by_unit(alpha: float | None) -> Plainly:
    """Plain SGD with an optimiser that begins anew, and so much of what was there before kept; None: e/(e+1)."""

    def mixed(model: torch.nn.Module, inner: config.Optimizer, _: torch.optim.Optimizer, number: int) -> None:
        before = vector_of(model)
        one_by_one(model, inner, build_optimizer(inner, model), number)
        passed = number // SHARDS + 1
        kept = passed / (passed + 1) if alpha is None else alpha
        mean = torch.from_numpy(kept * before + (1 - kept) * vector_of(model))
        torch.nn.utils.vector_to_parameters(mean, model.parameters())

    return mixed


def gradient(model: torch.nn.Module, first: int, count: int) -> None:
    model.zero_grad()
    loss(model, batch(first, count).tensors).backward()  # type: ignore[no-untyped-call]


def vector_of(model: torch.nn.Module) -> Vector:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).numpy()


@dataclass(frozen=True, slots=True)
class Kind:
    """A strategy, as a run file asks for it, and what theory says it is on one machine."""

    name: str
    section: str
    plainly: Plainly
    has_rounds: bool = True
    is_optimizer_private: bool = False
    """Whether who takes over a state begins with an optimiser of its own."""


KINDS = [
    Kind("dedloc", f"dedloc, {CLIPPED}", on_all),
    Kind("dedloc-delay", f"dedloc, delay: 1, {CLIPPED}", on_all),
    Kind("dts", f"dts, {CLIPPED}", one_by_one, is_optimizer_private=True),
    Kind("diloco", f"diloco, {CLIPPED}", phase_by_phase, is_optimizer_private=True),
    Kind("diloco-delay", f"diloco, delay: 1, {CLIPPED}", phase_by_phase, is_optimizer_private=True),
    Kind("vc_asgd", f"{UNITS}, alpha: 0.0", unit_by_unit(0.0), has_rounds=False),
    Kind("vc_asgd-0.7", f"{UNITS}, alpha: 0.7", unit_by_unit(0.7), has_rounds=False),
    Kind("vc_asgd-pass", f"{UNITS}, alpha: pass", unit_by_unit(None), has_rounds=False),
    Kind("solo", f"solo, {CLIPPED}", on_all, has_rounds=False),
    Kind("own", "", on_signs),
]
INNER = [
    config.Optimizer(name="sgd", learning_rate=0.1),
    config.Optimizer(name="sgd", learning_rate=0.05, momentum=0.9),
    config.Optimizer(name="adamw", learning_rate=0.01),
]
by_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
by_rounds = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.has_rounds], ids=lambda kind: kind.name)
by_inner = pytest.mark.parametrize("inner", INNER, ids=["sgd", "momentum", "adamw"])
MOMENTUM = INNER[1]


@pytest.fixture
def rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A strategy of one's own, as the documents teach it."""
    with installed(tmp_path, monkeypatch) as section:
        yield f"{section}, target_batch_size: {SAMPLES}"


def trainer_of(
    kind: Kind, rule: str, inner: config.Optimizer, model: type[torch.nn.Module] = Plain, seed: int = 0
) -> Trainer:
    return Trainer(kind.section or rule, inner, model, seed)


def assert_close(found: Vector, expected: Vector) -> None:
    """To float32 rounding of the whole vector."""
    assert np.linalg.norm(found - expected) < 1e-5 * np.linalg.norm(expected)


def plainly(kind: Kind, inner: config.Optimizer, numbers: range) -> Vector:
    """The same steps on one machine."""
    model = seeded(Plain)
    optimizer = build_optimizer(inner, model)
    for number in numbers:
        kind.plainly(model, inner, optimizer, number)
    return vector_of(model)


# -- one trainer -------------------------------------------------------------------------------------------------------


@by_kind
@by_inner
def test_one_trainer_is_plain_sgd(rule: str, kind: Kind, inner: config.Optimizer) -> None:
    async def main() -> None:
        trainer = trainer_of(kind, rule, inner)
        for number in range(STEPS):
            decision = await trainer.step(number)
            assert decision == Stepped(contributors=1, swarm_samples=float(SAMPLES), was_ours_used=True)
            assert trainer.replica.samples == 0
        assert_close(trainer.result, plainly(kind, inner, range(STEPS)))

    run(main())


@by_inner
def test_one_trainer_that_steps_beside_its_rounds_is_plain_sgd_too_and_its_anchor_after_the_last_one(
    rule: str, inner: config.Optimizer
) -> None:
    """Of strategies whose steps go on meanwhile: what is on its way comes back as it left."""

    async def main() -> None:
        kind = next(kind for kind in KINDS if kind.name == "dts")
        trainer = trainer_of(kind, rule, inner)
        trainer.compute(0, 0)
        for number in range(STEPS):
            under_way = asyncio.create_task(trainer.strategy.contribute(trainer.replica, trainer.swarm))
            await asyncio.sleep(0)
            trainer.compute(number, 1)
            if number + 1 < STEPS:
                trainer.compute(number + 1, 0)
            assert isinstance(
                await trainer.strategy.take(trainer.replica, trainer.swarm, await under_way), Stepped
            )
        expected = plainly(kind, inner, range(STEPS))
        assert_close(trainer.parameters, expected)
        last = await trainer.strategy.contribute(trainer.replica, trainer.swarm)
        assert isinstance(await trainer.strategy.take(trainer.replica, trainer.swarm, last), Stepped)
        trainer.replica.rest()
        assert_close(trainer.parameters, expected)
        anchor = [trainer.replica.snapshot().tensors[f"model.{slot.name}"].reshape(-1)
                  for slot in trainer.replica.layout.slots]  # fmt: skip
        assert np.concatenate(anchor).tobytes() == trainer.parameters.tobytes()

    run(main())


# -- a state that goes round -------------------------------------------------------------------------------------------


@by_kind
@by_inner
def test_who_takes_over_a_state_holds_the_same_bytes_and_takes_the_same_next_step(
    rule: str, kind: Kind, inner: config.Optimizer
) -> None:
    """The model has statistics of its own, tied weights, a frozen parameter and one that is never used."""

    async def main() -> None:
        gives, takes = (trainer_of(kind, rule, inner, Toy, seed) for seed in (0, 9))
        for number in range(STEPS):
            await gives.step(number)
        takes.replica.load(unpack(gives.packed()))
        assert takes.packed().manifest == gives.packed().manifest
        assert (takes.replica.epoch, takes.replica.lineage) == (gives.replica.epoch, gives.replica.lineage)
        if kind.has_rounds:
            gradient = np.random.default_rng(3).normal(size=gives.replica.layout.num_elements).astype(np.float32)
            outcome = gives.rounds.committed(
                Contribution(epoch=STEPS, lineage=gives.replica.lineage, vector=gradient, weight=float(SAMPLES))
            )
            for trainer in (gives, takes):
                trainer.strategy.apply(trainer.replica, outcome)
            assert takes.packed().manifest == gives.packed().manifest
        if gives.units is not None and takes.units is not None:
            takes.units.store.__init__()  # type: ignore[misc]  # empty, as at the beginning
            kept = gives.units.store.keep()
            assert kept is not None
            assert takes.units.store.begin(kept)
        if not kind.is_optimizer_private or inner is INNER[0]:
            for trainer in (gives, takes):
                await trainer.step(STEPS)
            assert takes.result.tobytes() == gives.result.tobytes()
            assert takes.packed().manifest == gives.packed().manifest

    run(main())


# -- lost answers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "vc_asgd" in kind.name], ids=lambda kind: kind.name)
@pytest.mark.parametrize("times", [1, 3])
def test_a_push_whose_answers_are_lost_counts_once(rule: str, kind: Kind, times: int) -> None:
    async def main() -> None:
        trainer = trainer_of(kind, rule, MOMENTUM)
        assert trainer.units is not None
        for number in range(STEPS):
            trainer.units.answers_lost = times * (number % 2)
            assert isinstance(await trainer.step(number), Stepped)
        assert trainer.units.store.version() == STEPS
        assert_close(trainer.result, plainly(kind, MOMENTUM, range(STEPS)))

    run(main())


# -- lost rounds -------------------------------------------------------------------------------------------------------


def lost(reason: Aborted | Superseded) -> Callable[[Contribution], Outcome]:
    return lambda _: reason


@by_rounds
@by_inner
@pytest.mark.parametrize("times", [1, 3])
def test_an_aborted_round_changes_nothing_and_the_next_one_has_all_of_it(
    rule: str, kind: Kind, inner: config.Optimizer, times: int
) -> None:
    async def main() -> None:
        trainer, undisturbed = trainer_of(kind, rule, inner), trainer_of(kind, rule, inner)
        for each in (trainer, undisturbed):
            await each.step(0)
        before = trainer.packed().manifest
        trainer.compute(1, 0)
        trainer.compute(1, 1)
        own = trainer.parameters
        trainer.rounds.comes_to = lost(Aborted(reason="no_quorum", text="only one is here"))
        for _ in range(times):
            assert await decided(trainer) == Waiting("only one is here")
            assert trainer.packed().manifest == before
            assert trainer.replica.samples == SAMPLES
            assert trainer.parameters.tobytes() == own.tobytes()
        trainer.rounds.comes_to = trainer.rounds.committed
        assert isinstance(await decided(trainer), Stepped)
        await undisturbed.step(1)
        assert_close(trainer.parameters, undisturbed.parameters)
        assert trainer.replica.samples == 0
        assert trainer.replica.epoch == 2

    run(main())


@by_rounds
@pytest.mark.parametrize("has_used_us", [False, True])
def test_a_round_in_doubt_counts_once_whatever_has_become_of_it(rule: str, kind: Kind, has_used_us: bool) -> None:
    """It committed after all: what it has used is not brought again; or it did not: everything is."""

    async def main() -> None:
        trainer = trainer_of(kind, rule, MOMENTUM)
        trainer.compute(0, 0)
        trainer.compute(0, 1)
        doubtful: list[Contribution] = []

        def in_doubt(contribution: Contribution) -> Outcome:
            doubtful.append(contribution)
            return Aborted(reason="in_doubt", text="its end is not known", rounds=frozenset({"round 0-1"}))

        trainer.rounds.comes_to = in_doubt
        assert await decided(trainer) == Waiting("its end is not known")
        trainer.compute(1, 0)
        assert trainer.replica.samples == SAMPLES + MICROBATCH
        if has_used_us:
            committed = trainer.rounds.committed(doubtful[0])
            trainer.strategy.apply(trainer.replica, committed)
            trainer.replica.disown(committed.record.used_of(ME), "round 0-1")
            assert trainer.replica.samples == MICROBATCH
            assert trainer.replica.take_used().weight == SAMPLES
        trainer.rounds.comes_to = trainer.rounds.committed
        trainer.compute(1, 1)
        assert isinstance(await decided(trainer), Stepped)
        last = trainer.rounds.brought[-1]
        assert last.weight == (SAMPLES if has_used_us else 2 * SAMPLES)
        assert trainer.replica.samples == 0
        assert trainer.replica.take_used().weight == last.weight

    run(main())


@by_rounds
@pytest.mark.parametrize("what", ["nothing", "everything", "half"])
def test_a_step_that_was_taken_without_us_leaves_what_it_has_not_used_for_the_next(
    rule: str, kind: Kind, what: str
) -> None:
    async def main() -> None:
        trainer = trainer_of(kind, rule, MOMENTUM)
        before = trainer.packed().manifest
        trainer.compute(0, 0)
        trainer.compute(0, 1)
        size = trainer.replica.layout.num_elements

        def superseded(contribution: Contribution) -> Outcome:
            record = trainer.rounds.committed(contribution).record
            if what == "nothing":
                record = replace(record, contributors=((PeerId("b"), 1.0),))
            elif what == "half":
                record = replace(record, gaps=((ME, 0, size // 2),))
            return Superseded(text="the swarm has gone on", record=record)

        trainer.rounds.comes_to = superseded
        assert await decided(trainer) == OutOfStep("the swarm has gone on")
        assert trainer.packed().manifest == before, "the swarm's state is still to be taken over"
        assert trainer.replica.samples == (0 if what == "everything" else SAMPLES)
        trainer.rounds.comes_to = trainer.rounds.committed
        trainer.compute(1, 0)
        trainer.compute(1, 1)
        assert isinstance(await decided(trainer), Stepped)
        last = trainer.rounds.brought[-1]
        assert last.weight == (SAMPLES if what == "everything" else 2 * SAMPLES)
        if what == "half":
            assert last.weights is not None
            assert set(last.weights.dense(0, size // 2)) == {2 * SAMPLES}
            assert set(last.weights.dense(size // 2, size)) == {SAMPLES}
        assert trainer.replica.samples == 0

    run(main())


async def decided(trainer: Trainer) -> object:
    """The round that is due, as ``decide`` does it."""
    decision = await trainer.strategy.after_microbatch(trainer.replica, trainer.swarm)
    assert isinstance(decision, Ready)
    outcome = await trainer.strategy.contribute(trainer.replica, trainer.swarm)
    return await trainer.strategy.take(trainer.replica, trainer.swarm, outcome)
