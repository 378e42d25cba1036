"""A replica in a round of several windows: means in the place of own windows, and what becomes of each."""

import numpy as np
import pytest
import torch

from collab import config
from collab.averaging.rows import padded
from collab.strategies.base import OwnWindows
from collab.training.anchored import AnchoredReplica
from collab.training.optimizers import build_optimizer
from collab.types import Lineage, Vector
from tests.training.toy import CONSTANT, Plain, batch, loss, seeded

WINDOWS = 3


class Peer:
    """A replica that steps, and how far each step has moved it."""

    def __init__(self) -> None:
        model = seeded(Plain)
        section = config.Optimizer(name="sgd", learning_rate=0.1)
        self.replica = AnchoredReplica(model, build_optimizer(section, model), CONSTANT, device=torch.device("cpu"))
        self.replica.num_windows = WINDOWS
        self.size = self.replica.num_elements
        self.began = self.parameters
        self._done = 0

    @property
    def parameters(self) -> Vector:
        return self.replica.layout.parameters_vector()

    def step(self) -> Vector:
        """The displacement by one step of six samples, without what has taken the place of earlier ones."""
        held = self.replica._gradient.held()
        self.replica.accumulate(batch(6 * self._done, 6), loss)
        self._done += 1
        total = self.replica._gradient.held()
        assert total is not None
        return (total if held is None else total - held).numpy().copy()

    def spans(self, *rows: int) -> tuple[tuple[int, int], ...]:
        """The elements of these rows in the round's vector."""
        return tuple((row * padded(self.size), (row + 1) * padded(self.size)) for row in rows)

    def rows_of(self, windows: OwnWindows) -> Vector:
        return windows.vector.reshape(WINDOWS, -1)[:, : self.size]


def constant(peer: Peer, value: float) -> Vector:
    return np.full(padded(peer.size), value, np.float32)


def test_each_row_is_the_displacement_in_its_window_and_the_first_has_all_before_it() -> None:
    peer = Peer()
    first = peer.step() + peer.step()
    windows = peer.replica.begin_windows()
    first += peer.step()  # the group forms meanwhile
    windows.close(0)
    second = peer.step()
    windows.close(1)
    windows.close(2)
    later = peer.step()
    rows = peer.rows_of(windows)
    np.testing.assert_allclose(rows[0], first, atol=1e-6)
    np.testing.assert_allclose(rows[1], second, atol=1e-6)
    assert not rows[2].any(), "nothing was computed in it"
    np.testing.assert_allclose(peer.parameters, peer.began + first + second + later, atol=1e-6)
    assert peer.replica.samples == 30


def test_a_mean_takes_the_place_of_its_own_window_after_the_next_step_ahead_of_the_verdict() -> None:
    peer = Peer()
    first = peer.step()
    windows = peer.replica.begin_windows()
    windows.close(0)
    second = peer.step()
    windows.close(1)
    windows.put(0, constant(peer, 0.5))
    assert np.allclose(peer.parameters, peer.began + first + second, atol=1e-6), "not in the middle of a step"
    at = peer.parameters + constant(peer, 0.5)[: peer.size] - first
    peer.replica.catch_up()
    np.testing.assert_allclose(peer.parameters, at, atol=1e-6)
    np.testing.assert_array_equal(peer.replica._anchor.numpy(), peer.began)
    windows.put(0, constant(peer, 0.25))  # reduced again
    peer.replica.catch_up()
    np.testing.assert_allclose(peer.parameters, peer.began + 0.25 + second, atol=1e-6)
    windows.put(0, None)  # and again, without us
    peer.replica.catch_up()
    np.testing.assert_allclose(peer.parameters, peer.began + first + second, atol=1e-6)


def test_a_commit_moves_the_anchor_and_leaves_what_came_after_the_last_window() -> None:
    peer = Peer()
    peer.step()
    windows = peer.replica.begin_windows()
    for row in range(WINDOWS):
        windows.close(row)
        later = peer.step()
        if row < 2:
            windows.put(row, constant(peer, 0.5))
    peer.replica.step(np.full(peer.size, 1.5, np.float32), Lineage("1"))
    peer.replica.settle(peer.spans(0, 1, 2), "r")
    np.testing.assert_allclose(peer.parameters, peer.began + 1.5 + later, atol=1e-6)
    assert peer.replica.samples == 6
    used = peer.replica.take_used()
    assert (len(used.sample_ids), used.weight, used.rounds) == (18, 18.0, ("r",))
    assert used.sample_ids == tuple(range(18))


@pytest.mark.parametrize("rounds", [frozenset[str](), frozenset({"r"})])
def test_a_lost_round_gives_all_windows_back_for_the_first_of_the_next_one(rounds: frozenset[str]) -> None:
    peer = Peer()
    peer.step()
    windows = peer.replica.begin_windows()
    for row in range(2):
        windows.close(row)
        windows.put(row, constant(peer, 7.0))
        peer.step()
    peer.replica.doubt(rounds)
    peer.replica._level()
    np.testing.assert_allclose(peer.parameters - peer.began, _own(peer), atol=1e-6)
    again = peer.replica.begin_windows()
    again.close(0)
    np.testing.assert_allclose(peer.rows_of(again)[0], peer.parameters - peer.began, atol=1e-6)
    assert peer.replica.samples == 18
    peer.replica.step(np.zeros(peer.size, np.float32), Lineage("1"))
    peer.replica.settle(peer.spans(0, 1, 2), "other")
    assert peer.replica.samples == 0
    np.testing.assert_allclose(peer.parameters, peer.began, atol=1e-6)
    assert len(peer.replica.take_used().sample_ids) == 18


def _own(peer: Peer) -> Vector:
    held = peer.replica._gradient.held()
    assert held is not None
    return held.numpy()


def test_of_a_round_in_doubt_that_was_history_only_the_windows_that_it_used_are_gone() -> None:
    peer = Peer()
    first = peer.step()
    windows = peer.replica.begin_windows()
    windows.close(0)
    second = peer.step()
    windows.close(1)
    peer.replica.doubt(frozenset({"r"}))
    third = peer.step()
    again = peer.replica.begin_windows()
    again.close(0)
    np.testing.assert_allclose(peer.rows_of(again)[0], first + second + third, atol=1e-6)
    peer.replica.disown(peer.spans(0), "r")
    np.testing.assert_allclose(_own(peer), second + third, atol=1e-6)
    assert peer.replica.samples == 12
    assert peer.replica.take_used().sample_ids == tuple(range(6))


def test_windows_that_the_round_went_on_without_stay() -> None:
    peer = Peer()
    peer.step()
    windows = peer.replica.begin_windows()
    windows.close(0)
    left = peer.step()
    windows.close(1)
    left = left + peer.step()
    windows.close(2)
    peer.replica.step(np.ones(peer.size, np.float32), Lineage("1"))
    peer.replica.settle(peer.spans(0), "r")
    np.testing.assert_allclose(peer.parameters, peer.began + 1 + left, atol=1e-6)
    assert peer.replica.samples == 12
    assert peer.replica.take_used().sample_ids == tuple(range(6))


def test_a_window_that_was_used_in_some_elements_keeps_the_others() -> None:
    peer = Peer()
    first = peer.step()
    windows = peer.replica.begin_windows()
    windows.close(0)
    second = peer.step()
    windows.close(1)
    length = padded(peer.size)
    peer.replica.settle(((0, 10), (length, length + 20)), "r")
    own = _own(peer)
    np.testing.assert_allclose(own[20:], (first + second)[20:], atol=1e-6)
    np.testing.assert_allclose(own[10:20], first[10:20], atol=1e-6)
    assert not own[:10].any()
    assert peer.replica.samples == 12
    handed = peer.replica.hand_over()
    assert handed.weights is not None
    assert [handed.weights.at(element) for element in (0, 10, 20)] == [0, 6, 12]


def test_what_ends_after_its_round_is_over_changes_nothing() -> None:
    peer = Peer()
    peer.step()
    windows = peer.replica.begin_windows()
    peer.replica.doubt(frozenset())
    before = peer.parameters
    windows.close(0)
    windows.put(0, constant(peer, 5.0))
    peer.replica.catch_up()
    assert not windows.vector.any()
    np.testing.assert_allclose(peer.parameters, before, atol=1e-6)


def test_who_waits_counts_the_steps_since_the_oldest_window_was_over_whose_mean_is_not_here() -> None:
    peer = Peer()
    for _ in range(5):
        peer.step()
    windows = peer.replica.begin_windows()
    peer.step()
    assert peer.replica.microbatches_beside == 0
    windows.close(0)
    peer.step()
    peer.step()
    windows.close(1)
    peer.step()
    assert peer.replica.microbatches_beside == 3
    peer.replica.advanced.clear()
    windows.put(0, constant(peer, 0.0))
    assert peer.replica.advanced.is_set()
    assert peer.replica.microbatches_beside == 1
    windows.put(1, None)
    assert peer.replica.microbatches_beside == 0
    peer.replica.settle(peer.spans(0, 1), "r")
    assert peer.replica.take_paces() == [(2, 1)]
    assert peer.replica.take_paces() == []
