"""The own link is kept full and the queue in front of it short, on links that are served one part after the other."""

import pytest

from collab.averaging.uplink import CROWDED_S, TARGET_S, UNDER_WAY_S, DeliveryRate, Path, Uplink
from collab.swarm.bandwidth import QUEUEING_S
from collab.types import PeerId
from tests.averaging.link_lab import MBIT, PART_BYTES, Lab, after

STANDING_QUEUE_S = 4 * TARGET_S
"""Where a queue that never empties was taken for the length of the path."""


def short_queue_s(lab: Lab) -> float:
    """Somewhat more than what is aimed at: news of it is one part of each receiver old, and a part itself is none."""
    return 1.5 * TARGET_S + (lab.num_receivers + 3) * PART_BYTES / lab.up_bytes_per_s


# -- a link that stays as it is ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("round_trip_s", [0.0, 0.04, 0.15])
@pytest.mark.parametrize(
    ("mbit_per_s", "num_receivers"), [(2, 1), (2, 7), (10, 1), (10, 2), (10, 7), (100, 1), (100, 2), (100, 7)]
)
def test_a_link_is_full_and_no_part_queues_for_long(mbit_per_s: int, num_receivers: int, round_trip_s: float) -> None:
    lab = Lab(up_bytes_per_s=mbit_per_s * MBIT, round_trip_s=round_trip_s, num_receivers=num_receivers)
    after(lab, 10.0)
    assert lab.line.use(3.0, 10.0) >= 0.98
    assert lab.line.longest_wait_s(3.0, 10.0) <= short_queue_s(lab)


@pytest.mark.parametrize("mbit_per_s", [10, 100])
@pytest.mark.parametrize("num_receivers", [1, 7])
def test_a_sender_that_knows_nothing_fills_a_long_link_within_2_s(mbit_per_s: int, num_receivers: int) -> None:
    lab = Lab(up_bytes_per_s=mbit_per_s * MBIT, round_trip_s=0.15, num_receivers=num_receivers)
    assert after(lab, 4.0).line.use(2.0, 4.0) >= 0.95


@pytest.mark.parametrize("num_receivers", [1, 7])
def test_a_queue_that_stands_for_minutes_stays_short(num_receivers: int) -> None:
    lab = after(Lab(up_bytes_per_s=25 * MBIT, num_receivers=num_receivers), 200.0)
    assert lab.line.use(1.0, 200.0) >= 0.99
    assert lab.line.longest_wait_s(1.0, 200.0) <= STANDING_QUEUE_S


@pytest.mark.parametrize("clocks_differ_s", [-1e9, -3.0, 0.5, 1e6])
def test_clocks_that_differ_change_nothing(clocks_differ_s: float) -> None:
    lab = after(Lab(up_bytes_per_s=25 * MBIT, num_receivers=3, clocks_differ_s=clocks_differ_s), 5.0)
    same = after(Lab(up_bytes_per_s=25 * MBIT, num_receivers=3), 5.0)
    assert lab.line.use(1.0, 5.0) == pytest.approx(same.line.use(1.0, 5.0), abs=0.01)
    assert lab.line.longest_wait_s(1.0, 5.0) == pytest.approx(same.line.longest_wait_s(1.0, 5.0), abs=0.03)


@pytest.mark.parametrize("mbit_per_s", [10, 25, 100])
@pytest.mark.parametrize("num_receivers", [1, 2, 7])
def test_the_rate_of_a_full_link_is_measured_to_within_1_percent(mbit_per_s: int, num_receivers: int) -> None:
    lab = after(Lab(up_bytes_per_s=mbit_per_s * MBIT, num_receivers=num_receivers), 10.0)
    rate = lab.uplink.rate()
    assert rate is not None
    assert rate.is_limit
    assert 0.99 * lab.up_bytes_per_s <= rate.bytes_per_s <= lab.up_bytes_per_s * (1 + 1e-6)


# -- a link that changes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [2, 4, 10])
@pytest.mark.parametrize("num_receivers", [1, 7])
def test_a_link_that_becomes_slower_has_what_was_under_way_to_carry_and_no_more(
    factor: int, num_receivers: int
) -> None:
    lab = Lab(up_bytes_per_s=200 * MBIT, num_receivers=num_receivers)
    after(lab, 25.0, changes=((5.0, 200 / factor * MBIT),))
    assert lab.line.use(5.0, 25.0) >= 0.99
    assert lab.line.longest_wait_s(5.0, 25.0) <= factor * (UNDER_WAY_S + lab.round_trip_s)
    assert lab.line.longest_wait_s(20.0, 25.0) <= STANDING_QUEUE_S


@pytest.mark.parametrize("factor", [2, 4, 10])
@pytest.mark.parametrize("num_receivers", [1, 7])
def test_a_link_that_becomes_faster_is_full_again_within_3_s(factor: int, num_receivers: int) -> None:
    lab = Lab(up_bytes_per_s=200 / factor * MBIT, num_receivers=num_receivers)
    after(lab, 12.0, changes=((5.0, 200 * MBIT),))
    assert lab.line.use(8.0, 12.0) >= 0.99
    assert lab.line.longest_wait_s(5.0, 12.0) <= STANDING_QUEUE_S


# -- a receiver that is slower than the others -------------------------------------------------------------------------


@pytest.mark.parametrize("slow_mbit_per_s", [2, 10])
@pytest.mark.parametrize("round_trip_s", [0.0, 0.04, 0.15])
def test_one_slow_receiver_among_seven_leaves_the_link_to_the_others(slow_mbit_per_s: int, round_trip_s: float) -> None:
    lab = Lab(
        up_bytes_per_s=100 * MBIT,
        first_down_bytes_per_s=slow_mbit_per_s * MBIT,
        round_trip_s=round_trip_s,
        num_receivers=7,
    )
    after(lab, 20.0)
    assert lab.line.use(5.0, 20.0) >= 0.9
    assert lab.line.longest_wait_s(5.0, 20.0) <= short_queue_s(lab) + 2 * QUEUEING_S
    assert lab.down is not None
    assert lab.down.use(5.0, 20.0) >= 0.99


def busy_path(queue_s: float, *, rate: float = 1e6) -> Path:
    """A path of 0.1 s and ``rate``, whose newest message stood in queues for ``queue_s``."""
    path = Path(trip_s=0.1, under_way_bytes=1)
    for second in range(2):
        path.delivery.add(float(second), int(rate), 0.0)
    path.delay.add(0.0, 5.0)
    path.delay.add(1.0, 5.0 + queue_s)
    return path


def test_a_path_is_crowded_when_a_queue_stands_at_its_other_end_and_enough_is_under_way_to_keep_it() -> None:
    path = busy_path(2 * CROWDED_S)
    enough = 1e6 * (0.1 + CROWDED_S)
    path.under_way_bytes = int(enough)
    assert path.is_crowded(1000, own_queue_s=0.0)
    assert not path.is_crowded(1000, own_queue_s=1.5 * CROWDED_S)  # the queue is our own
    path.under_way_bytes = int(enough) - 2000
    assert not path.is_crowded(1000, own_queue_s=0.0)
    path.under_way_bytes = 0
    assert not path.is_crowded(10**9, own_queue_s=0.0)  # nothing is there that will tell us that it is free again


def test_a_path_of_which_little_is_known_is_not_crowded() -> None:
    unknown = busy_path(2 * CROWDED_S)
    unknown.delivery = DeliveryRate()
    assert not unknown.is_crowded(10**9, own_queue_s=0.0)
    assert not busy_path(0.9 * CROWDED_S).is_crowded(10**9, own_queue_s=0.0)


@pytest.mark.parametrize("num_receivers", [1, 7])
@pytest.mark.parametrize("round_trip_s", [0.005, 0.04])
def test_a_pace_that_leaves_nothing_under_way_between_two_parts_still_rises(
    num_receivers: int, round_trip_s: float
) -> None:
    lab = Lab(up_bytes_per_s=2 * MBIT, round_trip_s=round_trip_s, num_receivers=num_receivers)
    after(lab, 20.0, changes=((5.0, 200 * MBIT),))
    assert lab.line.use(15.0, 20.0) >= 0.99


def test_paths_to_those_who_have_gone_are_forgotten_but_not_while_something_is_under_way() -> None:
    now = [0.0]
    uplink = Uplink(lambda: now[0])
    busy = uplink.path(PeerId("busy"))
    busy.under_way_bytes = 1
    uplink.path(PeerId("far")).trip_s = 2.0
    assert uplink.farthest_s() == 2.0
    for number in range(100):
        now[0] = 60.0 * number
        here = uplink.path(PeerId("always here"))
        uplink.path(PeerId(f"stranger {number}"))
        assert uplink.path(PeerId("always here")) is here
    assert uplink.path(PeerId("busy")) is busy
    assert len(uplink._paths) <= 13
    assert uplink.farthest_s() == 0.0
