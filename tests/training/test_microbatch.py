"""How many samples a microbatch has: doubled while that brings more a second, halved when they do not fit."""

from collections.abc import Callable

import pytest

from collab.training.microbatch import LONGEST_S, MicrobatchSize

Cost = Callable[[int], float]
"""Seconds of so many samples."""


def found(cost: Cost, *, first: int = 8, most: int = 1024, fits: int = 10_000, grows: bool = True) -> tuple[int, int]:
    """The size that is settled on, and the largest that was tried."""
    size, largest = MicrobatchSize(first, most=most, grows=grows), 0
    for _ in range(200):
        now = size.size
        largest = max(largest, now)
        if now > fits:
            assert size.too_large(now)
        else:
            size.note(now, cost(now))
    return size.size, largest


def launch_bound(size: int) -> float:
    """Up to 64 samples take as long as one."""
    return 0.010 * max(1.0, size / 64)


def test_it_grows_while_more_samples_at_once_are_more_a_second() -> None:
    assert found(launch_bound) == (64, 128)


def test_on_a_processor_it_stays() -> None:
    assert found(launch_bound, grows=False) == (8, 8)


def test_twice_the_size_in_twice_the_time_is_no_gain() -> None:
    assert found(lambda size: 0.01 * size) == (8, 16)


def test_it_never_takes_more_than_its_part_of_a_batch() -> None:
    assert found(launch_bound, most=40) == (32, 32)
    assert found(launch_bound, first=50, most=40) == (50, 50)


def test_a_microbatch_does_not_become_long() -> None:
    size, _ = found(lambda size: 0.1 + 0.001 * size)
    assert 0.1 + 0.001 * size <= LONGEST_S


def test_what_does_not_fit_is_halved_and_not_tried_again() -> None:
    assert found(launch_bound, fits=40) == (32, 64)


def test_a_size_that_did_not_fit_at_the_beginning_is_halved_until_it_does() -> None:
    assert found(launch_bound, first=64, fits=10) == (8, 64)


def test_when_not_one_fits_there_is_nothing_left_to_try() -> None:
    size = MicrobatchSize(2, most=8, grows=True)
    assert size.too_large(2)
    assert size.size == 1
    assert not size.too_large(1)


@pytest.mark.parametrize("seconds", [0.0, 1e-12])
def test_a_clock_that_sees_nothing_pass_does_no_harm(seconds: float) -> None:
    assert found(lambda _: seconds)[0] == 1024


def test_the_first_of_each_size_and_what_is_left_of_a_piece_of_work_are_not_timed() -> None:
    size = MicrobatchSize(8, most=64, grows=True)
    size.note(8, 100.0)
    size.note(3, 100.0)
    for _ in range(3):
        size.note(8, 0.01)
    assert size.size == 16
