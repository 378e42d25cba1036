"""How fast a link delivers is taken from the time in which it had something to deliver."""

import pytest

from collab.averaging.uplink import REMEMBERED_SAMPLES, SAMPLE_S, SAMPLES_A_PACE, DeliveryRate
from collab.swarm.bandwidth import QUEUEING_S

QUEUE_S = 2 * QUEUEING_S
STEP_S = SAMPLE_S / 4


class Deliveries:
    """Parts that are delivered one after the other."""

    def __init__(self) -> None:
        self.rate, self.now_s = DeliveryRate(), 100.0
        self.rate.add(self.now_s, 10**9, QUEUE_S)  # the first one began before anybody looked

    def deliver(self, bytes_per_s: float, seconds: float, *, queue_s: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.now_s += STEP_S
            self.rate.add(self.now_s, int(bytes_per_s * STEP_S), queue_s)


def test_nothing_is_said_before_the_first_sample_is_whole() -> None:
    deliveries = Deliveries()
    deliveries.deliver(1e6, 0.8 * SAMPLE_S, queue_s=QUEUE_S)
    assert deliveries.rate.bytes_per_s is None
    deliveries.deliver(1e6, SAMPLE_S, queue_s=QUEUE_S)
    assert deliveries.rate.bytes_per_s == pytest.approx(1e6)


def test_a_link_with_little_to_deliver_keeps_its_rate_and_one_that_delivers_more_has_another() -> None:
    deliveries = Deliveries()
    deliveries.deliver(1e6, 3.0, queue_s=QUEUE_S)
    deliveries.deliver(1e5, 30.0, queue_s=0.0)
    assert deliveries.rate.bytes_per_s == pytest.approx(1e6)
    deliveries.deliver(3e6, 1.5, queue_s=0.0)
    assert deliveries.rate.bytes_per_s == pytest.approx(3e6)


def test_time_in_which_nothing_is_under_way_does_not_count() -> None:
    deliveries = Deliveries()
    for _ in range(10):
        deliveries.deliver(1e6, 2 * SAMPLE_S, queue_s=QUEUE_S)
        deliveries.rate.pause()
        deliveries.now_s += 7.0
        deliveries.rate.add(deliveries.now_s, 10**9, QUEUE_S)
    assert deliveries.rate.bytes_per_s == pytest.approx(1e6)


def test_what_a_full_link_no_longer_delivers_is_forgotten_after_some_samples_and_not_before() -> None:
    deliveries = Deliveries()
    deliveries.deliver(1e6, 3.0, queue_s=QUEUE_S)
    kept = REMEMBERED_SAMPLES - SAMPLES_A_PACE
    deliveries.deliver(1e5, kept * SAMPLE_S, queue_s=QUEUE_S)
    assert deliveries.rate.bytes_per_s == pytest.approx(1e6)
    deliveries.deliver(1e5, SAMPLES_A_PACE * SAMPLE_S, queue_s=QUEUE_S)
    assert deliveries.rate.bytes_per_s == pytest.approx(1e5)
