"""DTS on toy models: what its windows, delays and lost rounds come to."""

import asyncio

import numpy as np
import pytest
import torch

from collab import config
from collab.averaging.base import Aborted, Superseded
from collab.strategies.base import OutOfStep, Ready, Replica, Stepped, Swarm, Waiting
from collab.strategies.dts import Dts
from collab.training.anchored import AnchoredReplica
from collab.training.optimizers import build_optimizer
from collab.types import PeerId, Vector
from tests.fakes import FakeCompute, run
from tests.strategies.test_strategies import FakeAverager, FakeProgress, committed
from tests.training.toy import CONSTANT, Plain, batch, loss, seeded

SGD = config.Optimizer(name="sgd", learning_rate=0.1)
HEAVY_BALL = config.Optimizer(name="sgd", learning_rate=0.05, momentum=0.9)
MICROBATCH = 6


class Peer:
    """A replica and its strategy."""

    def __init__(self, number: int, averager: FakeAverager, section: config.Optimizer, delay: int | None) -> None:
        model = seeded(Plain)
        self.replica = AnchoredReplica(model, build_optimizer(section, model), CONSTANT, device=torch.device("cpu"))
        self.strategy = Dts(target=lambda _: 1, delay=delay)
        self.swarm = Swarm(
            peer_id=PeerId("abc"[number]), progress=FakeProgress(1000), averager=averager, worker=FakeCompute()
        )
        self._number, self._done = number, 0

    @property
    def parameters(self) -> Vector:
        return self.replica.layout.parameters_vector()

    def compute(self) -> None:
        """One step on samples that nobody else has."""
        first = 1000 * self._number + MICROBATCH * self._done
        assert not self.replica.accumulate(batch(first, MICROBATCH), loss).skipped
        self._done += 1


def peers(count: int, section: config.Optimizer = SGD, delay: int | None = None) -> tuple[list[Peer], FakeAverager]:
    averager = FakeAverager("abc"[:count])
    return [Peer(number, averager, section, delay) for number in range(count)], averager


async def round_of(swarm: list[Peer], averager: FakeAverager, steps_beside: int = 0) -> None:
    """All bring what they have, take so many steps meanwhile, and take the mean."""
    averager.contributions.clear()
    averager._everybody.clear()
    rounds = [asyncio.create_task(peer.strategy.contribute(peer.replica, peer.swarm)) for peer in swarm]
    outcomes = await asyncio.gather(*rounds)
    for peer, outcome in zip(swarm, outcomes, strict=True):
        for _ in range(steps_beside):
            peer.compute()
        decision = await peer.strategy.take(peer.replica, peer.swarm, outcome)
        assert isinstance(decision, Stepped)
        assert decision.was_ours_used


def synchronous(steps: int, section: config.Optimizer, count: int) -> Vector:
    """One process on the samples of all peers."""
    model = seeded(Plain)
    optimizer = build_optimizer(section, model)
    for step in range(steps):
        optimizer.zero_grad()
        for number in range(count):
            tensors = batch(1000 * number + MICROBATCH * step, MICROBATCH).tensors
            (loss(model, tensors) / count).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).numpy()


@pytest.mark.parametrize("section", [SGD, HEAVY_BALL])
def test_without_delay_windows_of_one_step_are_synchronous_sgd(section: config.Optimizer) -> None:
    async def main() -> None:
        swarm, averager = peers(3, section)
        for _ in range(8):
            for peer in swarm:
                peer.compute()
            await round_of(swarm, averager)
        expected = synchronous(8, section, 3)
        for peer in swarm:
            assert np.linalg.norm(peer.parameters - expected) < 1e-5 * np.linalg.norm(expected)

    run(main())


def test_a_step_by_hand() -> None:
    """Window of one step, then one step beside the round: w <- w - eta (g_1 of ours + g_2 of ours - g_1 + mean g_1)."""

    async def main() -> None:
        swarm, averager = peers(2)
        began = swarm[0].parameters
        first = [began, began]
        for number, peer in enumerate(swarm):
            peer.compute()
            first[number] = peer.parameters - began
        before = [peer.parameters for peer in swarm]
        await round_of(swarm, averager, steps_beside=1)
        mean = (first[0] + first[1]) / 2
        for number, peer in enumerate(swarm):
            second = gradient_step(before[number], 1000 * number + MICROBATCH)
            np.testing.assert_allclose(peer.parameters, before[number] + second - first[number] + mean, atol=1e-6)

    run(main())


def gradient_step(at: Vector, first: int) -> Vector:
    """Displacement of one step of plain SGD from ``at``."""
    model = seeded(Plain)
    torch.nn.utils.vector_to_parameters(torch.from_numpy(at.copy()), model.parameters())
    loss(model, batch(first, MICROBATCH).tensors).backward()  # type: ignore[no-untyped-call]
    return torch.cat([-0.1 * p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]).numpy()


def test_replicas_differ_by_their_own_pending_windows_and_after_a_last_round_not_at_all() -> None:
    async def main() -> None:
        swarm, averager = peers(3, HEAVY_BALL)
        for steps in (1, 3, 2, 5):
            for peer in swarm:
                peer.compute()
            await round_of(swarm, averager, steps_beside=steps)
            anchors = [peer.replica.snapshot().tensors for peer in swarm]
            for other in anchors[1:]:
                for name, tensor in other.items():
                    assert tensor.tobytes() == anchors[0][name].tobytes()
            assert not np.array_equal(swarm[0].parameters, swarm[1].parameters)
        await round_of(swarm, averager)
        assert len({peer.parameters.tobytes() for peer in swarm}) == 1
        assert len({peer.replica.lineage for peer in swarm}) == 1
        assert all(peer.replica.samples == 0 for peer in swarm)

    run(main())


def test_who_brings_fewer_steps_counts_with_what_it_did() -> None:
    """The mean is that of the displacements, not of those by sample."""

    async def main() -> None:
        swarm, averager = peers(2)
        began = swarm[0].parameters
        swarm[0].compute()
        for _ in range(3):
            swarm[1].compute()
        moved = [peer.parameters - began for peer in swarm]
        await round_of(swarm, averager)
        for peer in swarm:
            np.testing.assert_allclose(peer.parameters, began + (moved[0] + moved[1]) / 2, atol=1e-6)

    run(main())


@pytest.mark.parametrize("outcome", [Aborted(reason="x", text="lost"), Superseded(text="without us")])
def test_a_lost_round_leaves_the_window_to_the_next_one(outcome: Aborted | Superseded) -> None:
    async def main() -> None:
        swarm, _ = peers(1)
        peer = swarm[0]
        began = peer.parameters
        peer.compute()
        peer.replica.hand_over()
        peer.compute()
        decision = await peer.strategy.take(peer.replica, peer.swarm, outcome)
        assert isinstance(decision, Waiting | OutOfStep)
        window = peer.replica.hand_over()
        np.testing.assert_allclose(window.mean * 2 * MICROBATCH, peer.parameters - began, atol=1e-6)

    run(main())


def test_elements_that_one_contributor_is_missing_in_get_what_the_others_did() -> None:
    async def main() -> None:
        swarm, _ = peers(1)
        peer = swarm[0]
        began, size = peer.parameters, len(peer.parameters)
        whole = committed(np.ones(size, np.float32), {PeerId("b"): 2.0, PeerId("c"): 4.0})
        record = type(whole.record)(
            **{name: getattr(whole.record, name) for name in whole.record.__dataclass_fields__}
            | {"gaps": ((PeerId("c"), 0, 5),)}
        )
        peer.strategy.apply(peer.replica, type(whole)(mean=whole.mean, record=record))
        moved = peer.parameters - began
        np.testing.assert_allclose(moved[:5], 1.0, atol=1e-6)  # 2 samples of 1 each, over two contributors
        np.testing.assert_allclose(moved[5:], 3.0, atol=1e-6)

    run(main())


@pytest.mark.parametrize(("delay", "beside", "waits"), [(None, 100, False), (0, 0, True), (3, 2, False), (3, 3, True)])
def test_nobody_waits_before_the_delay_is_used_up(delay: int | None, beside: int, waits: bool) -> None:
    async def main() -> None:
        swarm, _ = peers(1, delay=delay)
        peer = swarm[0]
        peer.compute()
        assert isinstance(await peer.strategy.after_microbatch(peer.replica, peer.swarm), Ready)
        peer.replica.hand_over()
        for _ in range(beside):
            peer.compute()
        replica: Replica = peer.replica
        assert (peer.strategy.patience_s(replica, 7.0) > 0) == waits

    run(main())
