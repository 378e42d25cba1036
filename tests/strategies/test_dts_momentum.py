"""DTS with momentum, with rates that change, and with sparse windows: what the anchor has moved by in the end."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from collab import config
from collab.averaging.encodings import Encodings
from collab.compression.base import codec_by_name
from collab.strategies.base import Stepped
from collab.training.anchored import AnchoredReplica
from collab.training.optimizers import build_optimizer
from collab.types import PeerId, Vector
from tests.fakes import run
from tests.strategies.test_dts import MICROBATCH, Peer, peers, round_of
from tests.strategies.test_strategies import committed
from tests.training.test_anchored import anchor
from tests.training.toy import CONSTANT, Plain, batch, loss, seeded

Floats = NDArray[np.float64]
MOMENTUM = 0.9
FALLING = config.Schedule(name="linear", total_epochs=12, final_factor=0.1)


class Recorded:
    """A peer of which every gradient and rate is known."""

    def __init__(self, peer: Peer, number: int, schedule: config.Schedule) -> None:
        model = seeded(Plain)
        section = config.Optimizer(name="sgd", learning_rate=0.05, momentum=MOMENTUM)
        peer.replica = AnchoredReplica(model, build_optimizer(section, model), schedule, device=torch.device("cpu"))
        self._peer, self._compute, self._number = peer, peer.compute, number
        peer.compute = self.compute  # type: ignore[method-assign]
        self.gradients: list[Floats] = []
        self.rates: list[float] = []

    def compute(self) -> None:
        """One step, and what it was made of."""
        replica, first = self._peer.replica, 1000 * self._number + MICROBATCH * len(self.gradients)
        loss(replica.model, batch(first, MICROBATCH).tensors).backward()  # type: ignore[no-untyped-call]
        found = [parameter.grad for parameter in replica.model.parameters()]
        self.gradients.append(torch.cat([g.reshape(-1) for g in found if g is not None]).numpy().astype(np.float64))
        replica.model.zero_grad(set_to_none=True)
        self._compute()
        self.rates.append(replica.optimizer.param_groups[0]["lr"])


def corrected_late(began: Vector, own: list[Floats], mean: list[Floats], rates: list[float], late: int) -> Floats:
    """Heavy ball with one's own gradients, each of which is corrected by the swarm's mean ``late`` steps later.

    Formula, for a correction c of the gradient of step j that comes t steps later: v += m^t c, and
    w -= sum_{k=0..t} m^k eta_(j+k) c. Corrections that are still on their way at the end come then.
    """
    w, v, steps = began.astype(np.float64), np.zeros(len(began)), len(own)

    def correct(j: int, t: int) -> None:
        nonlocal w, v
        difference = mean[j] - own[j]
        v = v + MOMENTUM**t * difference
        w = w - sum(MOMENTUM**k * rates[j + k] for k in range(t + 1)) * difference

    for n in range(steps):
        v = MOMENTUM * v + own[n]
        w = w - rates[n] * v
        if n >= late:
            correct(n - late, late)
    for j in range(max(0, steps - late), steps):
        correct(j, steps - 1 - j)
    return w


@pytest.mark.parametrize("schedule", [CONSTANT, FALLING], ids=["one rate", "falling rate"])
@pytest.mark.parametrize("beside", [1, 3])
def test_with_momentum_and_delay_the_anchor_is_where_late_corrections_of_the_gradients_lead(
    beside: int, schedule: config.Schedule
) -> None:
    """For the gradients that the peers really computed, whatever the delay; rates fall between a step and its mean."""

    async def main() -> None:
        swarm, averager = peers(3)
        records = [Recorded(peer, number, schedule) for number, peer in enumerate(swarm)]
        began = swarm[0].parameters
        for peer in swarm:
            for _ in range(beside):
                peer.compute()
        for _ in range(6):
            await round_of(swarm, averager, steps_beside=beside)
        await round_of(swarm, averager)
        mean = [np.mean(each, axis=0) for each in zip(*(record.gradients for record in records), strict=True)]
        assert len({peer.parameters.tobytes() for peer in swarm}) == 1
        assert (len(set(records[0].rates)) > 4) == (schedule is FALLING)
        for record in records:
            for late in (0, beside, 2 * beside - 1):
                expected = corrected_late(began, record.gradients, mean, record.rates, late)
                moved = np.linalg.norm(expected - began)
                assert np.linalg.norm(swarm[0].parameters - expected) < 1e-5 * moved

    run(main())


def test_a_rate_that_changes_while_a_window_is_on_its_way_changes_nothing_in_it() -> None:
    async def main() -> None:
        swarm, averager = peers(2)
        began = swarm[0].parameters
        for peer in swarm:
            peer.compute()
        moved = [peer.parameters - began for peer in swarm]
        for peer in swarm:
            peer.replica.rate_factor = lambda _epoch, _terms: 1e-3  # the organiser's amendment
        before = [peer.parameters for peer in swarm]
        await round_of(swarm, averager, steps_beside=1)
        mean = (moved[0] + moved[1]) / 2
        for number, peer in enumerate(swarm):
            reached = anchor(peer.replica)
            np.testing.assert_allclose(reached, began + mean, atol=1e-6)
            later = peer.parameters - reached
            assert 0 < np.linalg.norm(later) < 1e-2 * np.linalg.norm(moved[number]), "at the new rate"
            np.testing.assert_allclose(peer.parameters, before[number] - moved[number] + mean + later, atol=1e-6)

    run(main())


# -- sparse windows ----------------------------------------------------------------------------------------------------


def test_what_a_sparse_window_leaves_out_comes_to_the_anchor_later_and_once_also_after_lost_rounds() -> None:
    """Anchor + what is owed / peers = start + mean of all that everybody has moved by, whatever rounds were lost."""

    async def main() -> None:
        swarm, _ = peers(3)
        codec, count = codec_by_name("topk"), len(swarm)
        encodings = [Encodings() for _ in swarm]
        began = swarm[0].parameters.astype(np.float64)
        moved = [np.zeros(len(began)) for _ in swarm]

        def owed() -> list[Vector]:
            found = [each.part(codec_by_name("none"), 0, np.zeros(len(began), np.float32), 1.0) for each in encodings]
            for each in encodings:
                each.abort()
            return [np.frombuffer(data, np.float32).copy() for data in found]

        for number in range(32):
            for index, peer in enumerate(swarm):
                before = peer.parameters
                peer.compute()
                moved[index] += peer.parameters - before
            windows = [peer.replica.hand_over() for peer in swarm]
            for each, window in zip(encodings, windows, strict=True):
                each.begin(len(began), window.mean)
            sent = [
                codec.decode(each.part(codec, 0, window.mean, float(window.samples)), len(began))
                for each, window in zip(encodings, windows, strict=True)
            ]
            if number % 4 == 1:  # lost: the next round brings these windows, too
                for peer, each in zip(swarm, encodings, strict=True):
                    peer.replica.doubt(frozenset())
                    each.abort()
                continue
            weights = [float(window.samples) for window in windows]
            mean = sum(w * d for w, d in zip(weights, sent, strict=True)) / sum(weights)
            outcome = committed(mean, {PeerId("abc"[i]): weight for i, weight in enumerate(weights)})
            for peer, each in zip(swarm, encodings, strict=True):
                decision = await peer.strategy.take(peer.replica, peer.swarm, outcome)
                assert isinstance(decision, Stepped)
                each.commit()
        left = owed()
        assert min(np.linalg.norm(each) for each in left) > 1e-3, "some of it is still on its way"
        expected = began + sum(moved) / count - sum(each.astype(np.float64) for each in left) / count
        np.testing.assert_allclose(anchor(swarm[0].replica), expected, atol=2e-5)

    run(main())
