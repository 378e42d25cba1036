"""What a peer sends instead of its gradient, and that each contribution becomes its momentum once or not at all."""

import weakref

import numpy as np
import pytest
import torch

from collab import config
from collab.strategies.base import NOTHING, HandedOver
from collab.training.momentum import PlainGradient, WorkerMomentum, outgoing
from collab.training.replica import Replica
from tests.training.toy import CONSTANT

LENGTH = 4
ALL = ((0, LENGTH),)
HALF = 0.5
"""The beta of all examples: their numbers are exact."""


class Line(torch.nn.Module):
    """One parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Parameter(torch.zeros(LENGTH))


def peer(beta: float = HALF) -> Replica:
    model = Line()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return Replica(model, optimizer, CONSTANT, device=torch.device("cpu"), outgoing=outgoing(beta))


def compute(ours: Replica, value: float, samples: int = 1) -> None:
    """A microbatch whose gradient is ``value`` in all elements."""
    assert isinstance(ours.model, Line)
    ours.model.line.grad = torch.full((LENGTH,), value)
    first = ours.samples
    assert not ours.take_gradients(tuple(range(first, first + samples)), None).skipped


def sent(ours: Replica, *values: float) -> list[float]:
    """What is handed over after a microbatch of each value."""
    for value in values:
        compute(ours, value)
    return [float(element) for element in ours.hand_over().mean]


def commit(ours: Replica, used: tuple[tuple[int, int], ...], round_id: str) -> None:
    """A round that we were in."""
    ours.settle(used, round_id)
    ours.epoch += 1


def veteran() -> Replica:
    """A peer with momentum 8 after one epoch."""
    ours = peer()
    assert sent(ours, 8.0) == [8.0] * LENGTH
    commit(ours, ALL, "r0")
    return ours


# -- the rule ----------------------------------------------------------------------------------------------------------


def test_the_first_contribution_is_the_gradient_and_later_ones_are_its_running_mean() -> None:
    ours = veteran()
    assert sent(ours, 4.0) == [6.0] * LENGTH
    commit(ours, ALL, "r1")
    assert sent(ours, 1.0, 3.0) == [4.0] * LENGTH, "0.5 x 6 + 0.5 x 2, the mean over what is accumulated"


def test_two_peers_by_hand() -> None:
    """3 samples against 1: means of momenta, by samples, as they stand on paper."""
    ours, theirs, means = peer(), peer(), []
    for epoch, (mine, others) in enumerate([(4.0, 8.0), (0.0, 16.0), (2.0, 0.0)]):
        compute(ours, mine, samples=3)
        compute(theirs, others, samples=1)
        first, second = ours.hand_over(), theirs.hand_over()
        assert (first.samples, second.samples) == (3, 1)
        means.append(float((3 * first.mean + second.mean)[0]) / 4)
        for each in (ours, theirs):
            commit(each, ALL, f"r{epoch}")
    # ours: 4, 2, 2; theirs: 8, 12, 6
    assert means == [5.0, 4.5, 3.0]


def test_who_brings_something_every_third_epoch_forgets_three_epochs_worth() -> None:
    ours = veteran()
    for epoch in (1, 2):
        ours.disown(NOTHING, f"r{epoch}")
        ours.epoch += 1
    assert sent(ours, 0.0) == [1.0] * LENGTH, "8 x 0.5 ^ 3"


@pytest.mark.parametrize(("epoch", "left"), [(1001, 0.0), (12, 2.0), (10, 4.0), (7, 1.0)])
def test_a_state_from_elsewhere_leaves_of_the_momentum_what_its_distance_in_epochs_does(
    epoch: int, left: float
) -> None:
    ours, other = peer(), peer()
    ours.epoch, other.epoch = 10, epoch
    assert sent(ours, 8.0) == [8.0] * LENGTH
    commit(ours, ALL, "r10")
    ours.load(other.snapshot())
    assert sent(ours, 0.0) == [left] * LENGTH


def test_without_momentum_nothing_is_kept_and_the_bytes_are_those_of_the_gradient() -> None:
    ours, gradient = outgoing(0.0), HandedOver(np.array([1, 2, 3], np.float32), 2)
    assert isinstance(ours, PlainGradient)
    assert not vars(ours)
    assert ours.bring(gradient, 7) is gradient
    plain = peer(0.0)
    assert sent(plain, 8.0) == [8.0] * LENGTH
    commit(plain, ALL, "r0")
    assert sent(plain, 4.0) == [4.0] * LENGTH


@pytest.mark.parametrize("beta", [-0.1, 0.0, 1.0])
def test_a_memory_of_nothing_or_for_ever_is_refused(beta: float) -> None:
    with pytest.raises(ValueError, match="beta"):
        WorkerMomentum(beta)


def test_momentum_is_private() -> None:
    ours, plain = veteran(), peer(0.0)
    plain.epoch = ours.epoch
    mine, theirs = ours.snapshot(), plain.snapshot()
    assert mine.tensors.keys() == theirs.tensors.keys()
    assert mine.scalars == theirs.scalars
    assert not any(tensor.any() for tensor in mine.tensors.values())


# -- exactly once ------------------------------------------------------------------------------------------------------


def test_a_step_that_used_some_elements_moves_the_momentum_there_and_nowhere_else() -> None:
    ours = veteran()
    assert sent(ours, 4.0) == [6.0] * LENGTH
    commit(ours, ((1, 3),), "r1")
    # used: 0.5 x 6 + 0.5 x 2; elsewhere, two epochs after 8 was used: 0.25 x 8 + 0.75 x (4 + 2) / 2
    assert sent(ours, 2.0) == [4.25, 4.0, 4.0, 4.25]
    commit(ours, ALL, "r2")
    assert sent(ours, 0.0) == [2.125, 2.0, 2.0, 2.125]


def test_what_a_first_step_did_not_use_begins_with_a_gradient_later() -> None:
    ours = peer()
    assert sent(ours, 8.0) == [8.0] * LENGTH
    commit(ours, ((0, 2),), "r0")
    assert sent(ours, 4.0) == [6.0, 6.0, 6.0, 6.0], "0.5 x 8 + 0.5 x 4, and (8 + 4) / 2"
    commit(ours, ALL, "r1")
    assert sent(ours, 0.0) == [3.0] * LENGTH


def test_a_lost_round_leaves_the_momentum_and_the_next_brings_everything_anew() -> None:
    ours = veteran()
    assert sent(ours, 4.0) == [6.0] * LENGTH
    ours.doubt(frozenset())
    assert sent(ours, 2.0) == [5.5] * LENGTH, "0.5 x 8 + 0.5 x (4 + 2) / 2"


def test_a_step_without_a_round_takes_what_was_handed_over() -> None:
    ours = veteran()
    assert sent(ours, 4.0) == [6.0] * LENGTH
    ours.settle(ALL)  # as ``Solo`` does
    ours.epoch += 1
    assert sent(ours, 2.0) == [4.0] * LENGTH


def test_handing_over_twice_makes_one_contribution() -> None:
    ours = veteran()
    assert sent(ours, 4.0) == sent(ours) == [6.0] * LENGTH


def in_doubt() -> Replica:
    """6 was sent to "r1", 8 before it; of later microbatches 2 is there."""
    ours = veteran()
    assert sent(ours, 4.0) == [6.0] * LENGTH
    ours.doubt(frozenset({"r1", "r1-again"}))
    compute(ours, 2.0)
    return ours


@pytest.mark.parametrize("is_under_way", [False, True])
def test_a_round_in_doubt_that_has_used_us_makes_the_momentum_what_was_sent_then(is_under_way: bool) -> None:
    ours = in_doubt()
    if is_under_way:
        assert sent(ours) == [5.5] * LENGTH
    ours.disown(ALL, "r1-again")
    ours.epoch += 1
    assert sent(ours) == [4.0] * LENGTH, "0.5 x 6 + 0.5 x 2"


def test_of_a_round_in_doubt_a_part_can_be_in_the_momentum() -> None:
    ours = in_doubt()
    ours.disown(((0, 1),), "r1")
    ours.epoch += 1
    assert sent(ours) == [4.0, 4.25, 4.25, 4.25], "0.5 x 6 + 0.5 x 2; 0.25 x 8 + 0.75 x (4 + 2) / 2"


def test_a_round_in_doubt_that_has_not_used_us_leaves_the_momentum() -> None:
    ours = in_doubt()
    ours.disown(NOTHING, "r1")
    ours.epoch += 1
    assert sent(ours) == [4.25] * LENGTH


def test_a_later_round_that_used_us_ends_the_doubt() -> None:
    ours = in_doubt()
    assert sent(ours) == [5.5] * LENGTH
    commit(ours, ALL, "r2")
    ours.disown(NOTHING, "r1")
    assert sent(ours, 0.5) == [3.0] * LENGTH, "0.5 x 5.5 + 0.5 x 0.5"


def test_of_two_rounds_in_doubt_each_has_its_own_contribution() -> None:
    for used, momentum in (("r1", 6.0), ("r2", 5.5)):
        ours = in_doubt()
        assert sent(ours) == [5.5] * LENGTH
        ours.doubt(frozenset({"r2"}))
        ours.disown(ALL, used)
        ours.epoch += 1
        assert sent(ours, 0.0) == [momentum / 2] * LENGTH


def test_of_very_many_rounds_in_doubt_the_newest_contribution_stands_for_the_oldest() -> None:
    ours, last = in_doubt(), 0.0
    for index in range(2, 8):
        last = sent(ours, 2.0)[0]
        ours.doubt(frozenset({f"r{index}"}))
    ours.disown(ALL, "r1")
    ours.epoch += 1
    assert sent(ours, 0.0) == [last / 2] * LENGTH


def test_a_round_that_nobody_doubted_takes_what_was_sent_last() -> None:
    ours = veteran()
    assert sent(ours, 4.0) == [6.0] * LENGTH
    ours.doubt(frozenset())
    ours.disown(ALL, "r1")
    ours.epoch += 1
    assert sent(ours, 2.0) == [4.0] * LENGTH


def test_out_of_step_without_a_word_of_what_was_used_everything_stays() -> None:
    ours = veteran()
    assert sent(ours, 4.0) == [6.0] * LENGTH
    ours.settle(NOTHING)
    assert sent(ours) == [6.0] * LENGTH
    ours.settle(NOTHING)
    ours.disown(ALL, "r1")
    ours.epoch += 1
    assert sent(ours, 2.0) == [4.0] * LENGTH, "what was sent then, once it is known"


def test_a_round_that_is_told_of_twice_is_taken_once() -> None:
    ours = veteran()
    assert sent(ours, 4.0) == [6.0] * LENGTH
    commit(ours, ALL, "r1")
    assert sent(ours, 2.0) == [4.0] * LENGTH
    ours.disown(ALL, "r1")
    assert sent(ours) == [4.0] * LENGTH


def test_a_round_under_way_that_ends_with_the_word_of_a_round_in_doubt_takes_nothing_more() -> None:
    ours = in_doubt()
    assert sent(ours) == [5.5] * LENGTH
    ours.disown(ALL, "r1")
    ours.settle(ALL, "r1")
    ours.epoch += 1
    assert sent(ours) == [4.0] * LENGTH, "0.5 x 6 + 0.5 x 2"


def test_what_was_sent_is_let_go_of_when_it_is_known_what_became_of_it() -> None:
    ours, vectors = WorkerMomentum(HALF), []
    for epoch, used in enumerate([NOTHING, ALL]):
        for rounds in (frozenset({f"doubted-{epoch}"}), frozenset[str]()):
            vectors.append(weakref.ref(ours.bring(HandedOver(np.ones(LENGTH, np.float32), 1), epoch).mean))
            ours.doubt(rounds)
        assert vectors[-1]() is not None
        assert vectors[-2]() is not None
        ours.settle(used, f"r{epoch}")
    assert [vector() is None for vector in vectors] == [True, True, True, False], "the last one is the momentum"


def test_where_there_are_no_samples_nothing_is_sent_and_nothing_taken() -> None:
    ours = veteran()
    assert sent(ours, 4.0) == [6.0] * LENGTH
    commit(ours, ((0, 2),), "r1")
    brought = ours.hand_over()
    assert brought.weights is not None
    assert brought.weights.dense(0, LENGTH).tolist() == [0, 0, 1, 1]
    assert brought.mean.tolist() == [0, 0, 5, 5], "0.25 x 8 + 0.75 x 4"
    commit(ours, ALL, "r2")  # the record names whole parts, with what we brought to them
    # last used two epochs ago: 0.25 x 6; one ago: 0.5 x 5
    assert sent(ours, 0.0) == [1.5, 1.5, 2.5, 2.5]


def test_what_was_sent_never_changes_in_the_hands_of_the_round() -> None:
    ours, brought = peer(), list[HandedOver]()
    for epoch, used in enumerate([ALL, ((0, 2),), ((1, 3),), ALL]):
        compute(ours, 1.0 + epoch)
        brought.append(ours.hand_over())
        copies = [each.mean.copy() for each in brought]
        commit(ours, used, f"r{epoch}")
        assert all(np.array_equal(each.mean, copy) for each, copy in zip(brought, copies, strict=True))


def test_alone_it_is_torch_s_dampened_momentum() -> None:
    section = config.Optimizer(name="sgd", learning_rate=0.3)
    ours, model = peer(0.9), Line()
    alone = torch.optim.SGD(model.parameters(), lr=section.learning_rate, momentum=0.9, dampening=0.9)
    rng, weights = np.random.default_rng(3), np.zeros(LENGTH, np.float32)
    for epoch in range(30):
        gradient = torch.from_numpy(rng.normal(size=LENGTH).astype(np.float32))
        assert isinstance(ours.model, Line)
        ours.model.line.grad, model.line.grad = gradient.clone(), gradient.clone()
        ours.take_gradients((epoch,), None)
        weights -= np.float32(section.learning_rate) * ours.hand_over().mean
        commit(ours, ALL, f"r{epoch}")
        alone.step()
    assert np.allclose(weights, model.line.detach().numpy(), rtol=1e-5, atol=1e-6)
