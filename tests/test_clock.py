"""Swarm time is read off the machine's clock once; what its owner or NTP does to that later changes nothing."""

import time

from collab.clock import SystemClock, elapsed_s
from tests.fakes import NOW


class Machine:
    """A machine's two clocks, which the test sets."""

    def __init__(self) -> None:
        self.wall_s, self.elapsed_s = NOW, 7.0

    def pass_s(self, seconds: float) -> None:
        self.wall_s += seconds
        self.elapsed_s += seconds

    def clock(self, *, error_s: float = 0.0) -> SystemClock:
        return SystemClock(error_s=error_s, wall=lambda: self.wall_s, elapsed=lambda: self.elapsed_s)


def test_a_clock_that_is_set_meanwhile_changes_no_swarm_time() -> None:
    for set_by_s in (600.0, -600.0):
        machine = Machine()
        clock = machine.clock(error_s=-600.0)
        clock.correct(600.0)
        machine.pass_s(50.0)
        machine.wall_s += set_by_s
        machine.pass_s(50.0)
        assert clock.now() == NOW + 100.0
        assert clock.wall_moved_s() == set_by_s


def test_a_correction_is_no_move_of_the_machines_clock() -> None:
    clock = Machine().clock()
    clock.correct(-3.0)
    assert clock.now() == NOW - 3.0
    assert clock.wall_moved_s() == 0.0


def test_the_real_clock_starts_with_the_machines_and_counts_sleep_where_the_system_can() -> None:
    assert abs(SystemClock().now() - time.time()) < 1.0
    going_on = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
    expected_s = time.monotonic() if going_on is None else time.clock_gettime(going_on)
    assert 0 <= elapsed_s() - expected_s < 1.0
