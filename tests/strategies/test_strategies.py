"""What the strategies decide, on swarms of fakes."""

import asyncio
import hashlib
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from collab import config
from collab.averaging.agreement import local_lineage
from collab.averaging.base import Aborted, Committed, Contribution, Outcome, Superseded
from collab.strategies.base import (
    Decision,
    HandedOver,
    OutOfStep,
    Spans,
    Stepped,
    Strategy,
    Swarm,
    Waiting,
    clip_to_norm,
    decide,
)
from collab.strategies.dedloc import Dedloc
from collab.strategies.registry import build_strategy
from collab.strategies.solo import Solo
from collab.types import Lineage, PeerId, Vector
from tests.averaging.records import make_record
from tests.fakes import FakeCompute, run
from tests.training.toy import Plain, batch, loss, replica, seeded


class FakeReplica:
    """Two weights, learning rate 1."""

    def __init__(self, gradient: Sequence[float], samples: int) -> None:
        self.epoch, self.lineage = 0, Lineage("l")
        self.weights = np.zeros(2, np.float32)
        self._gradient, self.samples, self.is_handed_over = np.array(gradient, np.float32), samples, False

    def hand_over(self) -> HandedOver:
        self.is_handed_over = True
        return HandedOver(self._gradient, self.samples)

    def doubt(self, rounds: frozenset[str]) -> None:
        self.is_handed_over = False

    def settle(self, used: Spans, round_id: str = "") -> None:
        self.is_handed_over = False
        if used:
            self.samples = 0

    def step(self, gradient: Vector, lineage: Lineage, terms: str | None = None) -> None:
        self.weights = self.weights - gradient
        self.epoch, self.lineage = self.epoch + 1, lineage


class FakeProgress:
    def __init__(self, total: int) -> None:
        self.total = total

    async def has_reached(self, target_samples: int, *, is_patient: bool = True) -> bool:
        return self.total >= target_samples


class FakeAverager:
    """Waits for a number of peers, then gives each the weighted mean; or a fixed answer."""

    def __init__(self, peers: Sequence[str] = (), answer: Outcome | None = None) -> None:
        self._peers, self._answer = peers, answer
        self.contributions: list[Contribution] = []
        self._everybody = asyncio.Event()

    async def average(self, contribution: Contribution) -> Outcome:
        self.contributions.append(contribution)
        if self._answer is not None:
            return self._answer
        if len(self.contributions) == len(self._peers):
            self._everybody.set()
        await self._everybody.wait()
        weights = np.array([each.weight for each in self.contributions])
        vectors = np.stack([each.vector for each in self.contributions]).astype(np.float64)
        names = [PeerId(name) for name in self._peers]
        return committed((weights @ vectors) / weights.sum(), dict(zip(names, weights.tolist(), strict=True)))


def committed(mean: Vector | Sequence[float], weights: dict[PeerId, float]) -> Committed:
    record = make_record(
        contributors=tuple(weights.items()), members=tuple(weights), pieces=((next(iter(weights)), 0, len(mean)),)
    )
    return Committed(mean=np.asarray(mean, np.float32), record=record)


def swarm(name: str, averager: FakeAverager, total: int = 1000) -> Swarm:
    return Swarm(peer_id=PeerId(name), progress=FakeProgress(total), averager=averager, worker=FakeCompute())


def dedloc(target: int = 10, max_norm: float | None = None) -> Dedloc:
    return Dedloc(target=lambda _: target, max_gradient_norm=max_norm)


# -- dedloc ------------------------------------------------------------------------------------------------------------


def test_two_peers_take_the_step_that_one_would_take_on_all_their_samples() -> None:
    async def main() -> None:
        averager = FakeAverager("ab")
        ours, theirs = FakeReplica([1.0, 0.0], 3), FakeReplica([0.0, 2.0], 9)
        decisions = await asyncio.gather(
            decide(dedloc(), ours, swarm("a", averager)),
            decide(dedloc(), theirs, swarm("b", averager)),
        )
        assert list(decisions) == [Stepped(contributors=2, swarm_samples=12.0, was_ours_used=True)] * 2
        for peer in (ours, theirs):
            assert np.array_equal(peer.weights, np.array([-0.25, -1.5], np.float32))
            assert peer.samples == 0
            assert peer.epoch == 1
        assert ours.lineage == theirs.lineage != "l"
        assert [(c.epoch, c.lineage, c.weight) for c in averager.contributions] == [(0, "l", 3.0), (0, "l", 9.0)]

    run(main())


@pytest.mark.parametrize(("total", "samples"), [(9, 5), (0, 0), (1000, 0)])
def test_below_the_target_or_without_samples_nobody_is_called(total: int, samples: int) -> None:
    async def main() -> None:
        averager = FakeAverager()
        ours = FakeReplica([1, 1], samples)
        assert await decide(dedloc(), ours, swarm("a", averager, total)) == Waiting()
        assert averager.contributions == []
        assert (ours.samples, ours.epoch) == (samples, 0)

    run(main())


def test_a_lost_round_applies_nothing_and_forgets_nothing() -> None:
    async def main() -> None:
        averager = FakeAverager(answer=Aborted(reason="no_quorum", text="only one is here"))
        ours = FakeReplica([1, 1], 5)
        assert await decide(dedloc(), ours, swarm("a", averager)) == Waiting("only one is here")
        assert (ours.samples, ours.epoch, ours.lineage) == (5, 0, "l")
        assert not ours.weights.any()

    run(main())


def test_a_missed_round_sends_the_peer_for_the_swarm_s_state_with_its_gradient_kept() -> None:
    async def main() -> None:
        averager = FakeAverager(answer=Superseded(text="epoch 0 is over"))
        ours = FakeReplica([1, 1], 5)
        assert await decide(dedloc(), ours, swarm("a", averager)) == OutOfStep("epoch 0 is over")
        assert (ours.samples, ours.epoch, ours.lineage) == (5, 0, "l")
        assert not ours.weights.any()

    run(main())


def test_a_step_without_our_part_leaves_our_gradient_for_the_next() -> None:
    async def main() -> None:
        averager = FakeAverager(answer=committed([1, 2], {PeerId("b"): 7.0}))
        ours = FakeReplica([5, 5], 5)
        decision = await decide(dedloc(), ours, swarm("a", averager))
        assert decision == Stepped(contributors=1, swarm_samples=7.0, was_ours_used=False)
        assert np.array_equal(ours.weights, np.array([-1, -2], np.float32))
        assert ours.samples == 5

    run(main())


def test_the_averaged_gradient_is_clipped_and_not_each_peer_s() -> None:
    async def main() -> None:
        averager = FakeAverager("ab")
        ours, theirs = FakeReplica([30.0, 40.0], 1), FakeReplica([-30.0, -40.0], 1)
        await asyncio.gather(
            decide(dedloc(max_norm=1.0), ours, swarm("a", averager)),
            decide(dedloc(max_norm=1.0), theirs, swarm("b", averager)),
        )
        assert not ours.weights.any()  # each alone would have left a unit vector behind
        assert max(np.linalg.norm(c.vector) for c in averager.contributions) == 50.0

    run(main())


@pytest.mark.parametrize(
    ("answer", "decided", "kept"),
    [
        (Aborted(reason="no_quorum", text="too few"), Waiting("too few"), 5),
        (Superseded(text="epoch 0 is over"), OutOfStep("epoch 0 is over"), 5),
    ],
)
def test_what_was_brought_while_computing_is_ours_again_when_the_round_is_lost(
    answer: Outcome, decided: Decision, kept: int
) -> None:
    async def main() -> None:
        ours, friends = FakeReplica([1, 1], 5), swarm("a", FakeAverager(answer=answer))
        outcome = await dedloc().contribute(ours, friends)
        assert ours.is_handed_over
        assert await dedloc().take(ours, friends, outcome) == decided
        assert (ours.samples, ours.epoch, ours.is_handed_over) == (kept, 0, False)

    run(main())


def test_what_was_brought_while_computing_changes_the_parameters_only_when_it_is_taken() -> None:
    async def main() -> None:
        ours = FakeReplica([1, 1], 5)
        friends = swarm("a", FakeAverager(answer=committed([1, 2], {PeerId("a"): 5.0, PeerId("b"): 7.0})))
        outcome = await dedloc().contribute(ours, friends)
        assert not ours.weights.any()
        assert ours.epoch == 0
        decision = await dedloc().take(ours, friends, outcome)
        assert decision == Stepped(contributors=2, swarm_samples=12.0, was_ours_used=True)
        assert np.array_equal(ours.weights, np.array([-1, -2], np.float32))
        assert (ours.samples, ours.epoch) == (0, 1)

    run(main())


def test_catching_up_takes_exactly_the_members_step() -> None:
    async def main() -> None:
        outcome = committed([3, 4], {PeerId("a"): 5.0})
        member, latecomer = FakeReplica([3, 4], 5), FakeReplica([9, 9], 2)
        strategy = dedloc(max_norm=1.0)
        await decide(strategy, member, swarm("a", FakeAverager(answer=outcome)))
        strategy.apply(latecomer, outcome)
        assert member.weights.tobytes() == latecomer.weights.tobytes()
        assert np.allclose(member.weights, [-0.6, -0.8])
        assert (member.epoch, member.lineage) == (latecomer.epoch, latecomer.lineage)
        assert latecomer.samples == 2

    run(main())


# -- clipping ----------------------------------------------------------------------------------------------------------


def test_a_long_gradient_is_scaled_to_the_norm_and_a_short_one_is_left_alone() -> None:
    assert np.allclose(clip_to_norm(np.array([3, 4], np.float32), 2.5), [1.5, 2])
    short = np.array([0.3, 0.4], np.float32)
    assert clip_to_norm(short, 2.5) is short
    assert clip_to_norm(short, None) is short
    exact = np.array([3, 4], np.float32)
    assert clip_to_norm(exact, 5.0) is exact
    zero = np.zeros(2, np.float32)
    assert clip_to_norm(zero, 1.0) is zero


def test_a_gradient_whose_square_overflows_float32_is_clipped_too() -> None:
    clipped = clip_to_norm(np.array([3e30, 4e30], np.float32), 1.0)
    assert clipped.dtype == np.float32
    assert np.allclose(clipped, [0.6, 0.8])


def test_clipping_agrees_with_torch() -> None:
    gradient = np.random.default_rng(1).normal(size=1000).astype(np.float32)
    parameter = torch.nn.Parameter(torch.zeros(1000))
    parameter.grad = torch.from_numpy(gradient.copy())
    torch.nn.utils.clip_grad_norm_([parameter], 2.0)
    assert np.allclose(clip_to_norm(gradient, 2.0), parameter.grad.numpy(), rtol=1e-5)
    assert math.isclose(float(np.linalg.norm(clip_to_norm(gradient, 2.0))), 2.0, rel_tol=1e-5)


# -- solo --------------------------------------------------------------------------------------------------------------


def test_training_alone_is_plain_sgd() -> None:
    async def main() -> None:
        ours, model = replica(seeded(Plain)), seeded(Plain)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        strategy = Solo(target=lambda _: 12, max_gradient_norm=0.5)
        alone = swarm("a", FakeAverager())
        for step in range(5):
            decisions = []
            for start in (0, 6):
                ours.accumulate(batch(20 * step + start, 6), loss)
                decisions.append(await decide(strategy, ours, alone))
            assert decisions == [Waiting(), Stepped(contributors=1, swarm_samples=12.0, was_ours_used=True)]
            optimizer.zero_grad()
            loss(model, batch(20 * step, 12).tensors).backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        expected = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy()
        difference = np.linalg.norm(ours.layout.parameters_vector() - expected) / np.linalg.norm(expected)
        assert difference < 1e-6
        assert (ours.epoch, ours.samples) == (5, 0)

    run(main())


def test_training_alone_makes_its_own_history_from_its_gradients() -> None:
    async def main() -> None:
        ours = FakeReplica([1, 2], 5)
        strategy = Solo(target=lambda _: 5, max_gradient_norm=None)
        await decide(strategy, ours, swarm("a", FakeAverager()))
        digest = hashlib.sha256(np.array([1, 2], np.float32).tobytes()).hexdigest()
        assert ours.lineage == local_lineage(Lineage("l"), digest)
        other = FakeReplica([1, 3], 5)
        await decide(strategy, other, swarm("b", FakeAverager()))
        assert other.lineage != ours.lineage

    run(main())


def test_training_alone_takes_part_in_no_round() -> None:
    strategy = Solo(target=lambda _: 5, max_gradient_norm=None)
    assert not strategy.follows_swarm
    with pytest.raises(ValueError, match="alone"):
        strategy.apply(FakeReplica([1, 1], 1), committed([1, 1], {PeerId("b"): 1.0}))


# -- by name -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "kind"),
    [
        (config.Dedloc(name="dedloc", target_batch_size=7, max_gradient_norm=2.0), Dedloc),
        (config.Solo(name="solo", target_batch_size=7, max_gradient_norm=2.0), Solo),
    ],
)
def test_a_run_file_s_section_makes_its_strategy_with_its_settings(
    section: config.Strategy, kind: type[Strategy]
) -> None:
    async def main() -> None:
        strategy = build_strategy(section, lambda _: section.target_batch_size)
        assert isinstance(strategy, kind)
        ours = FakeReplica([30, 40], 6)
        averager = FakeAverager(answer=committed([30, 40], {PeerId("a"): 7.0}))
        assert await decide(strategy, ours, swarm("a", averager, total=6)) == Waiting()
        ours.samples = 7
        assert isinstance(await decide(strategy, ours, swarm("a", averager, total=7)), Stepped)
        assert np.allclose(ours.weights, [-1.2, -1.6])

    run(main())
