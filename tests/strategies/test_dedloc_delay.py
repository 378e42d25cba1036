"""DeDLOC with a delay of one round: its step by hand, and what becomes of rounds that are lost meanwhile."""

import asyncio
import copy
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from collab import config
from collab.averaging.base import Aborted, Committed, Outcome, Superseded
from collab.strategies.base import OutOfStep, Stepped, Swarm, Waiting
from collab.strategies.dedloc import Dedloc
from collab.training.optimizers import build_optimizer
from collab.training.replica import Replica
from collab.types import PeerId
from tests.fakes import FakeCompute, run
from tests.strategies.test_strategies import FakeAverager, FakeProgress, committed
from tests.training.toy import CONSTANT, Plain, batch, loss, seeded

Exact = NDArray[np.float64]
RATE, MOMENTUM, MOST_NORM = 0.1, 0.9, 0.2
"""The first mean gradient's norm is 0.3: clipping is part of every step here."""
HEAVY_BALL = config.Optimizer(name="sgd", learning_rate=RATE, momentum=MOMENTUM)
MICROBATCH = 6


class Peer:
    """A replica and its strategy; it knows by hand what it has accumulated."""

    def __init__(self, number: int, averager: FakeAverager) -> None:
        model = seeded(Plain)
        self.replica = Replica(model, build_optimizer(HEAVY_BALL, model), CONSTANT, device=torch.device("cpu"))
        self.strategy = Dedloc(target=lambda _: 1, max_gradient_norm=MOST_NORM, delay=1)
        self.name, self._number, self._done = PeerId("abc"[number]), number, 0
        self.swarm = Swarm(peer_id=self.name, progress=FakeProgress(1000), averager=averager, worker=FakeCompute())

    @property
    def parameters(self) -> Exact:
        return self.replica.layout.parameters_vector().astype(np.float64)

    def compute(self, microbatches: int = 1) -> Exact:
        """Microbatches of samples that nobody else has; the sum of their gradients at the parameters of now."""
        total = np.zeros(self.replica.num_elements)
        for _ in range(microbatches):
            first = 1000 * self._number + MICROBATCH * self._done
            total += gradient_at(self.replica.model, first)
            assert not self.replica.accumulate(batch(first, MICROBATCH), loss).skipped
            self._done += 1
        return total

    async def contribute(self) -> Outcome:
        return await self.strategy.contribute(self.replica, self.swarm)

    async def take(self, outcome: Outcome) -> object:
        return await self.strategy.take(self.replica, self.swarm, outcome)


def gradient_at(model: torch.nn.Module, first: int) -> Exact:
    """Of one microbatch, in float64 and on a copy."""
    exact = copy.deepcopy(model).double()
    exact.zero_grad()
    tensors = batch(first, MICROBATCH).tensors
    loss(exact, tensors | {"x": tensors["x"].double()}).backward()  # type: ignore[no-untyped-call]
    return torch.cat([p.grad.reshape(-1) for p in exact.parameters() if p.grad is not None]).numpy()


class ByHand:
    """Parameters and velocity: v <- 0.9 v + clip(g), w <- w - 0.1 v."""

    def __init__(self, parameters: Exact) -> None:
        self.parameters, self._velocity = parameters, np.zeros_like(parameters)

    def step(self, gradient: Exact) -> None:
        clipped = gradient * min(1.0, MOST_NORM / float(np.linalg.norm(gradient)))
        self._velocity = MOMENTUM * self._velocity + clipped
        self.parameters = self.parameters - RATE * self._velocity


def peers(count: int) -> tuple[list[Peer], FakeAverager]:
    averager = FakeAverager("abc"[:count])
    return [Peer(number, averager) for number in range(count)], averager


async def means_of(swarm: Sequence[Peer], averager: FakeAverager) -> list[Outcome]:
    """What the round of all comes to."""
    averager.contributions.clear()
    averager._everybody.clear()
    return list(await asyncio.gather(*(peer.contribute() for peer in swarm)))


def test_a_delay_of_one_is_not_waited_for_and_none_is() -> None:
    assert not Dedloc(target=lambda _: 1, max_gradient_norm=None, delay=1).is_synchronous
    assert Dedloc(target=lambda _: 1, max_gradient_norm=None).is_synchronous


def test_every_gradient_is_one_step_stale() -> None:
    """w_(k+1) <- optimiser(w_k, clip(g(w_(k-1)))), by samples: peers compute 1 and 3, 2 and 1, ... microbatches."""

    async def main() -> None:
        swarm, averager = peers(2)
        by_hand = ByHand(swarm[0].parameters)
        counts = [(1, 3), (2, 1), (1, 1), (3, 2)]
        sums = [peer.compute(count) for peer, count in zip(swarm, counts[0], strict=True)]
        for now, beside in zip(counts, [*counts[1:], (0, 0)], strict=True):
            outcomes = await means_of(swarm, averager)
            gradient = (sums[0] + sums[1]) / sum(now)
            sums = [peer.compute(count) for peer, count in zip(swarm, beside, strict=True)]
            for peer, outcome in zip(swarm, outcomes, strict=True):
                np.testing.assert_allclose(peer.parameters, by_hand.parameters, atol=1e-6)
                assert await peer.take(outcome) == Stepped(
                    contributors=2, swarm_samples=float(MICROBATCH * sum(now)), was_ours_used=True
                )
            by_hand.step(gradient)
            for peer, count in zip(swarm, beside, strict=True):
                np.testing.assert_allclose(peer.parameters, by_hand.parameters, atol=1e-6)
                assert peer.replica.samples == MICROBATCH * count
        assert swarm[0].parameters.tobytes() == swarm[1].parameters.tobytes()

    run(main())


@pytest.mark.parametrize(
    ("outcome", "decided"),
    [
        (Aborted(reason="no_quorum", text="lost"), Waiting("lost")),
        (Superseded(text="without us"), OutOfStep("without us")),
    ],
)
@pytest.mark.parametrize("times", [1, 3])
def test_what_a_lost_round_had_and_what_was_computed_beside_it_are_one_gradient_of_the_next(
    outcome: Outcome, decided: object, times: int
) -> None:
    async def main() -> None:
        (peer,), averager = peers(1)
        by_hand = ByHand(peer.parameters)
        whole = peer.compute(2)
        averager._answer = outcome
        for _ in range(times):
            lost = await peer.contribute()
            whole += peer.compute(3)
            assert await peer.take(lost) == decided
            np.testing.assert_allclose(peer.parameters, by_hand.parameters, atol=1e-6)
        averager._answer = None
        (mean,) = await means_of([peer], averager)
        beside = peer.compute()
        assert isinstance(await peer.take(mean), Stepped)
        by_hand.step(whole / (2 + 3 * times))
        np.testing.assert_allclose(peer.parameters, by_hand.parameters, atol=1e-6)
        (mean,) = await means_of([peer], averager)
        assert isinstance(await peer.take(mean), Stepped)
        by_hand.step(beside)
        np.testing.assert_allclose(peer.parameters, by_hand.parameters, atol=1e-6)

    run(main())


@pytest.mark.parametrize("has_used_us", [False, True])
def test_a_round_in_doubt_counts_once_with_what_was_computed_beside_it(has_used_us: bool) -> None:
    """It committed after all, and is taken late: what it used is not brought again; or it did not: everything is."""

    async def main() -> None:
        (peer,), averager = peers(1)
        by_hand = ByHand(peer.parameters)
        first = peer.compute(2)
        (outcome,) = await means_of([peer], averager)
        assert isinstance(outcome, Committed)
        round_id = outcome.record.round_id
        second = peer.compute(3)
        doubt = Aborted(reason="in_doubt", text="its end is not known", rounds=frozenset({round_id}))
        assert await peer.take(doubt) == Waiting("its end is not known")
        if has_used_us:
            peer.strategy.apply(peer.replica, outcome)
            peer.replica.disown(outcome.record.used_of(peer.name), round_id)
            by_hand.step(first / 2)
        (mean,) = await means_of([peer], averager)
        assert isinstance(mean, Committed)
        assert averager.contributions[-1].weight == MICROBATCH * (3 if has_used_us else 5)
        another = replace(mean, record=replace(mean.record, round_id="another"))
        assert isinstance(await peer.take(another), Stepped)
        by_hand.step(second / 3 if has_used_us else (first + second) / 5)
        np.testing.assert_allclose(peer.parameters, by_hand.parameters, atol=1e-6)
        assert peer.replica.samples == 0

    run(main())


def test_of_what_a_round_has_used_in_places_the_rest_comes_with_the_samples_behind_each_element() -> None:
    async def main() -> None:
        (peer,), averager = peers(1)
        by_hand, size = ByHand(peer.parameters), peer.replica.num_elements
        first = peer.compute(2)
        (outcome,) = await means_of([peer], averager)
        assert isinstance(outcome, Committed)
        second = peer.compute(3)
        in_places = replace(outcome, record=replace(outcome.record, gaps=((peer.name, 0, 5),)))
        assert isinstance(await peer.take(in_places), Stepped)
        by_hand.step(first / 2)
        np.testing.assert_allclose(peer.parameters, by_hand.parameters, atol=1e-6)
        await means_of([peer], averager)
        (brought,) = averager.contributions
        assert brought.weights is not None
        assert set(brought.weights.dense(0, 5)) == {5 * MICROBATCH}
        assert set(brought.weights.dense(5, size)) == {3 * MICROBATCH}
        np.testing.assert_allclose(brought.vector[:5], (first + second)[:5] / 5, atol=1e-6)
        np.testing.assert_allclose(brought.vector[5:], second[5:] / 3, atol=1e-6)

    run(main())


def test_a_step_without_us_is_taken_and_ours_comes_with_the_next_one() -> None:
    async def main() -> None:
        (peer,), averager = peers(1)
        by_hand, generator = ByHand(peer.parameters), np.random.default_rng(2)
        first = peer.compute(2)
        theirs = generator.normal(size=peer.replica.num_elements)
        averager._answer = committed(theirs, {PeerId("b"): 7.0})
        outcome = await peer.contribute()
        second = peer.compute()
        assert await peer.take(outcome) == Stepped(contributors=1, swarm_samples=7.0, was_ours_used=False)
        by_hand.step(theirs)
        np.testing.assert_allclose(peer.parameters, by_hand.parameters, atol=1e-6)
        averager._answer = None
        (mean,) = await means_of([peer], averager)
        assert isinstance(await peer.take(mean), Stepped)
        by_hand.step((first + second) / 3)
        np.testing.assert_allclose(peer.parameters, by_hand.parameters, atol=1e-6)

    run(main())
