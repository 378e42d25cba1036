"""The accumulated gradient: handed over, settled, and added to meanwhile."""

import threading

import numpy as np
import pytest
import torch

from collab.strategies.base import NOTHING
from collab.training.accumulator import Accumulator
from collab.training.sums import GradientSum

LENGTH = 5
ALL = ((0, LENGTH),)


def microbatch(ours: Accumulator, value: float, *ids: int, epoch: int = 0, loss: float = 1.0) -> GradientSum:
    """Of samples that all have a gradient of ``value``."""
    total = ours.buffer().fill_(value * len(ids))
    return GradientSum(total, ids, (epoch,) * len(ids), loss * len(ids))


def accumulator(*values: float) -> Accumulator:
    """One sample for each value."""
    ours = Accumulator(LENGTH, torch.device("cpu"))
    for index, value in enumerate(values):
        assert ours.add(microbatch(ours, value, index), is_sound=True)
    return ours


def held(ours: Accumulator) -> float:
    """Mean of all that is held; it stays."""
    mean = ours.hand_over().mean
    ours.settle(NOTHING)
    assert (mean == mean[0]).all()
    return float(mean[0])


def test_what_comes_while_a_gradient_is_handed_over_goes_into_the_next() -> None:
    ours = accumulator(1.0, 3.0)
    first = ours.hand_over()
    ours.add(microbatch(ours, 7.0, 2, 3, epoch=1, loss=5.0), is_sound=True)
    assert (first.samples, first.mean.tolist()) == (2, [2.0] * LENGTH)
    assert ours.sample_ids == (0, 1, 2, 3)
    assert ours.is_handed_over
    ours.settle(ALL)
    used = ours.take_used()
    assert (used.sample_ids, used.sample_epochs, used.loss) == ((0, 1), (0, 0), 1.0)
    assert not ours.is_handed_over
    second = ours.hand_over()
    ours.settle(ALL)
    assert (second.samples, second.mean.tolist()) == (2, [7.0] * LENGTH)
    used = ours.take_used()
    assert (used.sample_ids, used.sample_epochs, used.loss) == ((2, 3), (1, 1), 5.0)
    assert ours.sample_ids == ()


def test_what_was_not_used_is_ours_again_beside_what_came_meanwhile() -> None:
    ours = accumulator(1.0, 3.0)
    ours.hand_over()
    ours.add(microbatch(ours, 8.0, 2, epoch=1), is_sound=True)
    ours.settle(NOTHING)
    assert ours.sample_ids == (0, 1, 2)
    assert held(ours) == 4.0
    ours.hand_over()
    ours.settle(ALL)
    assert ours.take_used().sample_epochs == (0, 0, 1)


def test_what_was_handed_over_and_never_settled_is_handed_over_again() -> None:
    ours = accumulator(1.0)
    ours.hand_over()
    ours.add(microbatch(ours, 3.0, 1), is_sound=True)
    again = ours.hand_over()
    assert (again.samples, again.mean.tolist()) == (2, [2.0] * LENGTH)


def in_doubt(*rounds: str) -> Accumulator:
    """1 and 3 were brought to ``rounds``; 8 came later."""
    ours = accumulator(1.0, 3.0)
    ours.hand_over()
    ours.doubt(frozenset(rounds))
    ours.add(microbatch(ours, 8.0, 2, epoch=1), is_sound=True)
    return ours


def test_what_is_in_doubt_is_brought_again_with_what_came_later() -> None:
    ours = in_doubt("r1")
    assert ours.sample_ids == (0, 1, 2)
    again = ours.hand_over()
    assert (again.samples, again.mean.tolist()) == (3, [4.0] * LENGTH)
    ours.settle(ALL, "r2")
    assert ours.take_used().sample_ids == (0, 1, 2)
    assert ours.sample_ids == ()


@pytest.mark.parametrize("is_under_way", [False, True])
def test_a_round_in_doubt_that_turns_out_to_be_history_takes_what_was_brought_to_it_and_no_more(
    is_under_way: bool,
) -> None:
    ours = in_doubt("r0", "r1")
    assert ours.is_in_doubt("r1")
    if is_under_way:
        ours.hand_over()
        ours.add(microbatch(ours, 10.0, 3, epoch=1), is_sound=True)
    ours.settle(ALL, "r1")
    used = ours.take_used()
    assert (used.sample_ids, used.sample_epochs) == ((0, 1), (0, 0))
    assert ours.sample_ids == ((2, 3) if is_under_way else (2,))
    assert held(ours) == (9.0 if is_under_way else 8.0)
    assert not ours.is_in_doubt("r1")


def test_what_was_used_says_by_which_rounds() -> None:
    ours = in_doubt("r1")
    ours.hand_over()
    ours.settle(((0, 2),), "r1")
    ours.hand_over()
    ours.settle(NOTHING, "r2")
    ours.hand_over()
    ours.settle(ALL, "r3")
    assert ours.take_used().rounds == ("r1", "r3")
    assert ours.take_used().rounds == ()


def test_of_what_is_in_doubt_a_part_can_be_used() -> None:
    ours = in_doubt("r1")
    ours.settle(((0, 2),), "r1")
    assert ours.sample_ids == (0, 1, 2)
    assert ours.take_used().sample_ids == ()
    again = ours.hand_over()
    assert again.mean.tolist() == [8.0] * 2 + [4.0] * (LENGTH - 2)
    assert again.weights is not None
    assert [again.weights.at(0), again.weights.at(LENGTH - 1)] == [1, 3]


def test_rounds_in_doubt_add_up_and_a_round_that_never_was_adds_none() -> None:
    ours = in_doubt("r1")
    ours.hand_over()
    ours.doubt(frozenset())
    ours.hand_over()
    ours.doubt(frozenset({"r2"}))
    ours.settle(ALL, "r1")
    assert ours.take_used().sample_ids == (0, 1, 2), "nobody can tell any more which round got what"
    assert ours.sample_ids == ()


def test_that_nothing_of_ours_was_used_ends_all_doubt() -> None:
    ours = in_doubt("r1")
    ours.settle(NOTHING, "r1")
    assert not ours.is_in_doubt("r1")
    ours.hand_over()
    ours.settle(ALL, "r1")
    assert ours.take_used().sample_ids == (0, 1, 2)


def test_a_microbatch_that_is_not_finite_does_not_touch_what_is_held() -> None:
    ours = accumulator(1.0)
    ours.hand_over()
    assert not ours.add(microbatch(ours, float("nan"), 1), is_sound=True)
    assert not ours.add(microbatch(ours, 1.0, 1), is_sound=False)
    assert ours.sample_ids == (0,)
    ours.settle(NOTHING)
    assert not ours.add(microbatch(ours, float("inf"), 1), is_sound=True)
    assert held(ours) == 1.0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("length", [1, 67, 40_000])  # less than a register of the processor, several, several threads
def test_one_element_that_is_not_finite_is_found_wherever_it_is(value: float, length: int) -> None:
    ours = Accumulator(length, torch.device("cpu"))
    for place in {0, length // 2, length - 2, length - 1} & set(range(length)):
        total = ours.buffer().fill_(1.0)
        total[place] = value
        assert not ours.add(GradientSum(total, (0,), (0,), 1.0), is_sound=True)
    largest = torch.finfo(torch.float32).max
    assert ours.add(GradientSum(ours.buffer().fill_(largest), (0,), (0,), 1.0), is_sound=True)
    assert (ours.hand_over().mean == largest).all()


def test_settling_nothing_changes_nothing_and_handing_over_nothing_is_an_error() -> None:
    ours = accumulator()
    ours.settle(ALL)
    ours.settle(NOTHING)
    assert ours.take_used().sample_ids == ()
    with pytest.raises(ValueError, match="first microbatch"):
        ours.hand_over()


def test_the_handed_over_mean_is_a_copy() -> None:
    ours = accumulator(2.0)
    ours.hand_over().mean[:] = 99
    ours.settle(NOTHING)
    assert held(ours) == 2.0


def test_handing_over_from_another_thread_never_tears_or_counts_twice() -> None:
    ours = Accumulator(20_000, torch.device("cpu"))
    handed, is_over = list[tuple[float, int]](), threading.Event()

    def take() -> None:
        while not is_over.is_set() or ours.sample_ids:
            if not ours.sample_ids:
                continue
            gradient = ours.hand_over()
            assert np.ptp(gradient.mean) == 0.0
            handed.append((float(gradient.mean[0]), gradient.samples))
            ours.settle(gradient.everything)

    taking = threading.Thread(target=take)
    taking.start()
    for index in range(400):
        ours.add(microbatch(ours, float(index % 16), index), is_sound=True)
    is_over.set()
    taking.join(timeout=30.0)
    assert not taking.is_alive()
    assert sum(samples for _, samples in handed) == 400
    assert sum(mean * samples for mean, samples in handed) == pytest.approx(sum(index % 16 for index in range(400)))


def test_what_a_step_has_used_of_some_elements_is_never_brought_again_and_the_rest_is() -> None:
    ours = accumulator(3.0, 5.0)
    ours.hand_over()
    assert ours.add(microbatch(ours, 10.0, 2, 3), is_sound=True)
    ours.settle(((1, 3), (4, 5)))
    assert ours.sample_ids == (0, 1, 2, 3)
    again = ours.hand_over()
    assert again.samples == 4
    assert again.weights is not None
    assert again.weights.dense(0, LENGTH).tolist() == [4, 2, 2, 4, 2]
    assert again.mean.tolist() == [7, 10, 10, 7, 10]
    ours.settle(((0, 1), (3, 4)))
    assert ours.hand_over().mean.tolist() == [0, 10, 10, 0, 10]
    assert ours.take_used().sample_ids == ()
    ours.settle(((1, 5),))
    assert ours.take_used().sample_ids == (0, 1, 2, 3)
    assert ours.sample_ids == ()


def test_samples_of_which_one_step_used_one_half_and_a_second_step_the_other_are_used_once() -> None:
    ours = accumulator(2.0)
    ours.hand_over()
    ours.settle(((0, 2),))
    first = ours.take_used()
    assert (first.sample_ids, first.weight) == ((), pytest.approx(2 / LENGTH))
    ours.hand_over()
    ours.settle(((2, LENGTH),))
    second = ours.take_used()
    assert (second.sample_ids, second.weight) == ((0,), pytest.approx(1 - 2 / LENGTH))
    with pytest.raises(ValueError, match="first microbatch"):
        ours.hand_over()


def test_what_several_steps_have_used_is_told_together_and_once() -> None:
    ours = in_doubt("r1")
    ours.settle(ALL, "r1")
    ours.hand_over()
    ours.settle(ALL, "r2")
    used = ours.take_used()
    assert (used.sample_ids, used.sample_epochs) == ((0, 1, 2), (0, 0, 1))
    assert ours.take_used().sample_ids == ()
