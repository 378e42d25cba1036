"""DiLoCo on toy models: inner steps, the outer step, delays and lost rounds."""

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from collab import config
from collab.averaging.base import Aborted, Superseded
from collab.errors import ShapeMismatch
from collab.strategies.base import OutOfStep, Stepped, Swarm, Waiting
from collab.strategies.diloco import Diloco
from collab.training.optimizers import build_optimizer
from collab.training.outer import Nesterov, OuterReplica
from collab.types import PeerId, Vector
from tests.fakes import FakeCompute, run
from tests.strategies.test_strategies import FakeAverager, FakeProgress
from tests.training.toy import CONSTANT, Plain, batch, loss, seeded

SGD = config.Optimizer(name="sgd", learning_rate=0.1)
ADAMW = config.Optimizer(name="adamw", learning_rate=0.01)
PAPER = Nesterov(learning_rate=0.7, momentum=0.9)
AVERAGE = Nesterov(learning_rate=1.0, momentum=0.0)
MICROBATCH = 6


def replica_of(section: config.Optimizer, rule: Nesterov) -> OuterReplica:
    model = seeded(Plain)
    replica = OuterReplica(model, build_optimizer(section, model), CONSTANT, device=torch.device("cpu"))
    replica.rule = rule
    return replica


class Peer:
    """A replica and its strategy."""

    def __init__(self, number: int, averager: FakeAverager, section: config.Optimizer, rule: Nesterov) -> None:
        self.replica, self.strategy = replica_of(section, rule), Diloco(target=lambda _: 1)
        self.swarm = Swarm(
            peer_id=PeerId("abc"[number]), progress=FakeProgress(1000), averager=averager, worker=FakeCompute()
        )
        self._number, self._done = number, 0

    @property
    def parameters(self) -> Vector:
        return self.replica.layout.parameters_vector()

    def compute(self, steps: int = 1) -> None:
        """Inner steps on samples that nobody else has."""
        for _ in range(steps):
            first = 1000 * self._number + MICROBATCH * self._done
            assert not self.replica.accumulate(batch(first, MICROBATCH), loss).skipped
            self._done += 1


def peers(count: int, section: config.Optimizer = SGD, rule: Nesterov = PAPER) -> tuple[list[Peer], FakeAverager]:
    averager = FakeAverager("abc"[:count])
    return [Peer(number, averager, section, rule) for number in range(count)], averager


async def round_of(swarm: list[Peer], averager: FakeAverager, steps_beside: Sequence[int] = ()) -> None:
    """All bring what they have, take so many steps meanwhile, and take the outer step."""
    averager.contributions.clear()
    averager._everybody.clear()
    outcomes = await asyncio.gather(*(peer.strategy.contribute(peer.replica, peer.swarm) for peer in swarm))
    for peer, steps in zip(swarm, steps_beside or [0] * len(swarm), strict=True):
        peer.compute(steps)
    for peer, outcome in zip(swarm, outcomes, strict=True):
        decision = await peer.strategy.take(peer.replica, peer.swarm, outcome)
        assert isinstance(decision, Stepped)
        assert decision.was_ours_used


def test_two_outer_steps_by_hand() -> None:
    """u = (s_1 u_1 + s_2 u_2) / (s_1 + s_2); v <- 0.9 v + u; W <- W + 0.7 (u + 0.9 v)."""

    async def main() -> None:
        swarm, averager = peers(2, ADAMW)
        anchor = swarm[0].parameters.astype(np.float64)
        velocity = np.zeros_like(anchor)
        for steps in ((1, 3), (4, 2)):
            for peer, count in zip(swarm, steps, strict=True):
                peer.compute(count)
            moved = [peer.parameters - anchor for peer in swarm]
            mean = (steps[0] * moved[0] + steps[1] * moved[1]) / sum(steps)
            velocity = 0.9 * velocity + mean
            anchor = anchor + 0.7 * (mean + 0.9 * velocity)
            await round_of(swarm, averager)
            for peer in swarm:
                np.testing.assert_allclose(peer.parameters, anchor, atol=1e-5)

    run(main())


def test_the_outer_step_is_torchs_nesterov_on_the_pseudo_gradient() -> None:
    generator = np.random.default_rng(3)
    parameter = torch.nn.Parameter(torch.zeros(50))
    outer = torch.optim.SGD([parameter], lr=0.7, momentum=0.9, nesterov=True)
    anchor, velocity = np.zeros(50, np.float32), np.zeros(50, np.float32)
    for _ in range(12):
        update = generator.normal(size=50).astype(np.float32)
        parameter.grad = torch.from_numpy(-update)
        outer.step()
        anchor += PAPER.step(update, velocity)
        np.testing.assert_allclose(anchor, parameter.detach().numpy(), rtol=1e-5, atol=1e-5)


def test_one_inner_step_and_plain_averaging_are_large_batch_sgd() -> None:
    """Also where peers are uneven: the mean is by samples."""

    async def main() -> None:
        swarm, averager = peers(3, SGD, AVERAGE)
        model = seeded(Plain)
        optimizer = build_optimizer(SGD, model)
        for step in range(6):
            optimizer.zero_grad()
            for number, peer in enumerate(swarm):
                peer.compute()
                tensors = batch(1000 * number + MICROBATCH * step, MICROBATCH).tensors
                (loss(model, tensors) / 3).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            await round_of(swarm, averager)
        expected = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).numpy()
        for peer in swarm:
            assert np.linalg.norm(peer.parameters - expected) < 1e-5 * np.linalg.norm(expected)

    run(main())


def test_with_a_delay_what_was_stepped_beside_the_round_stays_on_top_of_the_new_anchor() -> None:
    async def main() -> None:
        swarm, averager = peers(2, SGD)
        for peer in swarm:
            peer.compute(2)
        before = [peer.parameters for peer in swarm]
        averager._everybody.clear()
        outcomes = await asyncio.gather(*(peer.strategy.contribute(peer.replica, peer.swarm) for peer in swarm))
        for peer, steps in zip(swarm, (1, 3), strict=True):
            peer.compute(steps)
        beside = [peer.parameters - there for peer, there in zip(swarm, before, strict=True)]
        for peer, outcome in zip(swarm, outcomes, strict=True):
            await peer.strategy.take(peer.replica, peer.swarm, outcome)
        anchors = [peer.parameters - moved for peer, moved in zip(swarm, beside, strict=True)]
        np.testing.assert_allclose(anchors[0], anchors[1], atol=1e-6)
        states = [peer.replica.snapshot().tensors for peer in swarm]
        assert all(states[0][name].tobytes() == states[1][name].tobytes() for name in states[0])
        await round_of(swarm, averager)
        assert len({peer.parameters.tobytes() for peer in swarm}) == 1

    run(main())


@pytest.mark.parametrize("outcome", [Aborted(reason="x", text="lost"), Superseded(text="without us")])
def test_a_lost_round_leaves_the_displacement_to_the_next_one(outcome: Aborted | Superseded) -> None:
    async def main() -> None:
        swarm, _ = peers(1)
        peer = swarm[0]
        began = peer.parameters
        peer.compute(2)
        peer.replica.hand_over()
        peer.compute(3)
        decision = await peer.strategy.take(peer.replica, peer.swarm, outcome)
        assert isinstance(decision, Waiting | OutOfStep)
        sent = peer.strategy.sent(peer.replica.hand_over())
        np.testing.assert_allclose(sent, peer.parameters - began, atol=1e-6)

    run(main())


def test_what_some_elements_lack_is_not_in_what_is_sent_of_them() -> None:
    """Of a displacement that a round has used in places, the rest comes with the samples behind it."""

    async def main() -> None:
        swarm, _ = peers(1)
        peer = swarm[0]
        began = peer.parameters
        peer.compute(2)
        first = peer.parameters - began
        peer.replica.hand_over()
        peer.replica.settle(((0, 5),), "round")
        between = peer.parameters
        peer.compute()
        second = peer.parameters - between
        sent = peer.strategy.sent(peer.replica.hand_over())
        np.testing.assert_allclose(sent[:5], second[:5], atol=1e-6)
        np.testing.assert_allclose(sent[5:], first[5:] + second[5:], atol=1e-6)

    run(main())


def test_a_newcomer_gets_the_outer_momentum_and_takes_the_same_next_step() -> None:
    async def main() -> None:
        swarm, averager = peers(2)
        for _ in range(3):
            for peer in swarm:
                peer.compute(2)
            await round_of(swarm, averager)
        newcomer = replica_of(SGD, PAPER)
        newcomer.load(swarm[0].replica.snapshot())
        update = np.random.default_rng(1).normal(size=newcomer.layout.num_elements).astype(np.float32)
        for replica in (newcomer, swarm[0].replica):
            replica.step(update, newcomer.lineage)
        assert newcomer.layout.parameters_vector().tobytes() == swarm[0].parameters.tobytes()

    run(main())


def test_a_state_without_outer_momentum_begins_with_none_and_one_of_another_shape_changes_nothing() -> None:
    replica = replica_of(SGD, PAPER)
    update = np.ones(replica.layout.num_elements, np.float32)
    replica.step(update, replica.lineage)
    state = replica.snapshot()
    bare = {name: tensor for name, tensor in state.tensors.items() if not name.startswith("optimizer.")}
    fresh = replica_of(SGD, PAPER)
    fresh.load(type(state)(epoch=1, lineage=state.lineage, tensors=bare, scalars={}))
    before = fresh.layout.parameters_vector()
    fresh.step(update, fresh.lineage)
    np.testing.assert_allclose(fresh.layout.parameters_vector() - before, 0.7 * 1.9, rtol=1e-4)
    name = next(name for name in state.tensors if name.startswith("optimizer."))
    before = fresh.layout.parameters_vector()
    wrong = {**state.tensors, name: np.zeros((3, 3), np.float32)}
    with pytest.raises(ShapeMismatch, match="outer momentum"):
        fresh.load(type(state)(epoch=9, lineage=state.lineage, tensors=wrong, scalars={}))
    assert fresh.epoch == 2
    assert np.array_equal(fresh.layout.parameters_vector(), before)
