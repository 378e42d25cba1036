"""What a link carries is measured while it is full, and nothing else changes what is believed of it."""

import random

import pytest

from collab.swarm.bandwidth import (
    BASE_SLOT_S,
    BASE_SLOTS,
    CROWDED_S,
    KEPT_PERIODS,
    LONG_S,
    RECENT_S,
    SHORTEST_S,
    SMALLEST_BYTES,
    Downlink,
    PathDelay,
    Rate,
    RateMeter,
    shared_queue_s,
)

MBIT = 125_000.0
PART_BYTES = (64 << 10) + 64
QUEUE_S = 2 * CROWDED_S
TRIP_S = 0.03
"""Of the first message of an exchange."""


class Incoming:
    """A downlink, and what comes in by it in one exchange after the other."""

    def __init__(self, num_sources: int = 4, clocks_differ_s: tuple[float, ...] = (0.0,)) -> None:
        self.now_s = 1000.0
        self.downlink = Downlink(lambda: self.now_s)
        self._differ_s = [clocks_differ_s[number % len(clocks_differ_s)] for number in range(num_sources)]

    def exchange(self, *phases: tuple[float, float, float], jitter: float = 0.0, sender_queue_s: float = 0.0) -> None:
        """Parts of all sources in turn.

        Args:
            phases: bytes/s, seconds and the queue in which each part stood, in seconds.
        """
        generator, number = random.Random(5), 0
        self.downlink.begin()
        self.now_s += TRIP_S
        for source in range(len(self._differ_s)):
            self._arrive(source, 64, 0.0, 0.0)
        for bytes_per_s, seconds, queue_s in phases:
            end_s = self.now_s + seconds
            while self.now_s < end_s:
                self.now_s += PART_BYTES / bytes_per_s * generator.uniform(1 - jitter, 1 + jitter)
                self._arrive(number % len(self._differ_s), PART_BYTES, queue_s, sender_queue_s)
                number += 1
        self.downlink.end()
        self.now_s += 7.0

    def _arrive(self, number: int, num_bytes: int, queue_s: float, sender_queue_s: float) -> None:
        self.downlink.arrived(f"peer{number}", num_bytes, 0.02 + queue_s + self._differ_s[number], sender_queue_s)

    @property
    def rate(self) -> Rate:
        rate = self.downlink.rate()
        assert rate is not None
        return rate


# -- the downlink ------------------------------------------------------------------------------------------------------


def test_nothing_is_known_of_a_link_that_was_never_used() -> None:
    assert Incoming().downlink.rate() is None
    assert RateMeter().rate() is None


@pytest.mark.parametrize(
    ("mbit_per_s", "num_sources"), [(2, 2), (10, 2), (10, 7), (100, 2), (100, 7), (900, 2), (900, 7)]
)
def test_the_rate_of_a_full_downlink_is_measured_to_within_5_percent(mbit_per_s: int, num_sources: int) -> None:
    incoming = Incoming(num_sources)
    incoming.exchange((mbit_per_s * MBIT, 15.0, QUEUE_S), jitter=0.3)
    assert incoming.rate.is_limit
    assert incoming.rate.bytes_per_s == pytest.approx(mbit_per_s * MBIT, rel=0.05)


def test_pauses_between_exchanges_change_nothing() -> None:
    incoming = Incoming()
    for _ in range(20):
        incoming.exchange((20 * MBIT, 1.0, QUEUE_S))
    assert incoming.rate.is_limit
    assert incoming.rate.bytes_per_s == pytest.approx(20 * MBIT, rel=0.05)


def test_exchanges_that_overlap_are_one_busy_time() -> None:
    incoming = Incoming()
    incoming.downlink.begin()
    incoming.exchange((20 * MBIT, 2.0, QUEUE_S))
    assert incoming.downlink.rate() is None
    incoming.downlink.end()
    assert incoming.rate.bytes_per_s == pytest.approx(20 * MBIT, rel=0.05)


@pytest.mark.parametrize("seconds", [1.0, 5.0, 60.0])
def test_a_link_that_is_little_used_is_not_a_slow_one(seconds: float) -> None:
    incoming = Incoming()
    for _ in range(KEPT_PERIODS):
        incoming.exchange((100 * MBIT, 1.0, QUEUE_S))
    for _ in range(2 * KEPT_PERIODS):
        incoming.exchange((10 * MBIT, seconds, 0.0))
    assert incoming.rate.is_limit
    assert incoming.rate.bytes_per_s == pytest.approx(100 * MBIT, rel=0.05)


def test_little_use_at_the_end_of_an_exchange_does_not_lower_the_rate() -> None:
    incoming = Incoming()
    incoming.exchange((100 * MBIT, 1.0, QUEUE_S), (10 * MBIT, 5.0, 0.0))
    assert incoming.rate.is_limit
    assert incoming.rate.bytes_per_s == pytest.approx(100 * MBIT, rel=0.05)


def test_a_link_that_was_never_full_carries_at_least_what_it_carried() -> None:
    incoming = Incoming()
    incoming.exchange((30 * MBIT, 3.0, 0.0))
    assert not incoming.rate.is_limit
    assert incoming.rate.bytes_per_s == pytest.approx(30 * MBIT, rel=0.05)


def test_a_link_that_carries_more_than_its_limit_has_another_limit() -> None:
    incoming = Incoming()
    incoming.exchange((20 * MBIT, 3.0, QUEUE_S))
    incoming.exchange((60 * MBIT, 1.0, 0.0))
    assert not incoming.rate.is_limit
    assert incoming.rate.bytes_per_s == pytest.approx(60 * MBIT, rel=0.05)


@pytest.mark.parametrize(("before", "after"), [(20, 200), (25, 100), (50, 100)])
def test_a_link_that_became_faster_is_known_after_one_exchange_in_which_it_was_full(before: int, after: int) -> None:
    incoming = Incoming()
    for _ in range(KEPT_PERIODS):
        incoming.exchange((before * MBIT, 3.0, QUEUE_S))
    incoming.exchange((after * MBIT, 3.0, QUEUE_S))
    assert incoming.rate.is_limit
    assert incoming.rate.bytes_per_s == pytest.approx(after * MBIT, rel=0.05)


@pytest.mark.parametrize(("before", "after"), [(200, 20), (100, 50), (100, 75)])
def test_a_link_that_became_slower_is_known_when_its_faster_exchanges_are_forgotten(before: int, after: int) -> None:
    incoming = Incoming()
    for _ in range(KEPT_PERIODS):
        incoming.exchange((before * MBIT, 3.0, QUEUE_S))
    for _ in range(KEPT_PERIODS):
        incoming.exchange((after * MBIT, 3.0, QUEUE_S))
    assert incoming.rate.is_limit
    assert incoming.rate.bytes_per_s == pytest.approx(after * MBIT, rel=0.05)


def test_clocks_that_differ_by_any_constant_do_not_matter() -> None:
    rates = []
    for differ_s in [(0.0,), (1e6, -3.0, 0.25, -1e8)]:
        incoming = Incoming(4, differ_s)
        incoming.exchange((40 * MBIT, 4.0, QUEUE_S))
        rates.append(incoming.rate)
    assert rates[0] == rates[1]
    assert rates[0].is_limit


def test_one_source_that_queues_at_its_own_end_is_no_limit_of_ours() -> None:
    incoming = Incoming(2)
    incoming.downlink.begin()
    for queue_s in (0.0, *[QUEUE_S] * 200):
        incoming.now_s += 0.02
        incoming.downlink.arrived("peer0", PART_BYTES, 0.02 + queue_s, 0.0)
        incoming.downlink.arrived("peer1", PART_BYTES, 0.02, 0.0)
    incoming.downlink.end()
    assert not incoming.rate.is_limit


def test_what_queues_at_the_senders_own_links_is_no_limit_of_ours() -> None:
    incoming = Incoming()
    incoming.exchange((20 * MBIT, 5.0, QUEUE_S), sender_queue_s=QUEUE_S)
    assert not incoming.rate.is_limit


def test_a_queue_of_a_single_source_is_not_known_to_be_ours() -> None:
    incoming = Incoming(1)
    incoming.exchange((20 * MBIT, 5.0, QUEUE_S))
    assert not incoming.rate.is_limit
    assert incoming.rate.bytes_per_s == pytest.approx(20 * MBIT, rel=0.05)


def test_what_senders_know_only_roughly_of_their_own_queues_makes_no_full_link() -> None:
    incoming = Incoming()
    incoming.exchange((20 * MBIT, 5.0, 0.9 * CROWDED_S))
    assert not incoming.rate.is_limit


# -- one direction -----------------------------------------------------------------------------------------------------


def metered(meter: RateMeter, *arrivals: tuple[float, int], is_full: bool = True) -> None:
    """One busy time that begins at 0 s, with bytes at so many seconds."""
    meter.resume(0.0)
    for at_s, num_bytes in arrivals:
        meter.add(at_s, num_bytes, is_full=is_full)
    meter.pause()


def test_bytes_that_arrive_in_bunches_never_look_like_more_than_the_link_carries() -> None:
    meter = RateMeter()
    metered(meter, (1.0, 2 << 20), (1.0, 2 << 20), (2.0, 4 << 20), (2.0, 0))
    assert meter.rate() == Rate(4 << 20, is_limit=True)


def test_a_time_too_short_or_with_too_few_bytes_measures_nothing() -> None:
    meter = RateMeter()
    metered(meter, (0.9 * SHORTEST_S, 100 << 20))
    metered(meter, (0.9 * LONG_S, SMALLEST_BYTES - 1))
    metered(meter, (60.0, SMALLEST_BYTES - 1), is_full=False)
    assert meter.rate() is None
    metered(meter, (SHORTEST_S, SMALLEST_BYTES))
    assert meter.rate() == Rate(SMALLEST_BYTES / SHORTEST_S, is_limit=True)


def test_a_link_that_was_full_for_long_is_measured_by_few_bytes_too() -> None:
    meter = RateMeter()
    metered(meter, (LONG_S, SMALLEST_BYTES // 4))
    assert meter.rate() == Rate(SMALLEST_BYTES / 4 / LONG_S, is_limit=True)


def test_bytes_outside_a_busy_time_measure_nothing() -> None:
    meter = RateMeter()
    meter.add(5.0, 100 << 20, is_full=True)
    meter.pause()
    assert meter.rate() is None


def test_a_link_that_was_full_for_less_than_half_of_the_time_was_not_full() -> None:
    for full_of_10, is_limit in ((4, False), (6, True)):
        meter = RateMeter()
        meter.resume(0.0)
        for second in range(1, 11):
            meter.add(float(second), second << 20, is_full=second <= full_of_10)
        meter.pause()
        assert meter.rate() == Rate((55 << 20) / 10, is_limit=is_limit)


def test_the_rate_is_the_mean_of_the_newest_busy_times_by_their_length() -> None:
    meter = RateMeter()
    metered(meter, (1.0, 9 << 20))
    metered(meter, (1.0, 8 << 20))
    metered(meter, (3.0, 30 << 20))
    assert meter.rate() == Rate((47 << 20) / 5, is_limit=True)
    for _ in range(KEPT_PERIODS):
        metered(meter, (1.0, 10 << 20))
    assert meter.rate() == Rate(10 << 20, is_limit=True)


# -- the delay of a path -----------------------------------------------------------------------------------------------


def test_a_queue_is_what_a_message_waits_beyond_the_quickest_one() -> None:
    delay = PathDelay()
    for now_s, delay_s, queue_s in [(0.0, 5.0, 0.0), (1.0, 5.2, 0.2), (2.0, 4.9, 0.0), (3.0, 5.0, 0.1)]:
        delay.add(now_s, delay_s)
        assert delay.queue_s == pytest.approx(queue_s)
    assert delay.heard_s == 3.0


def test_the_quickest_message_is_forgotten_after_a_minute_so_that_a_longer_route_is_no_queue() -> None:
    delay = PathDelay()
    delay.add(0.0, 0.1)
    for second in range(1, int(BASE_SLOT_S * (BASE_SLOTS + 1))):
        delay.add(float(second), 0.4)
        assert delay.queue_s == pytest.approx(0.3 if second < BASE_SLOT_S * BASE_SLOTS else 0.0)


def path(now_s: float, queue_s: float) -> PathDelay:
    delay = PathDelay()
    delay.add(now_s - 1.0, 7.0)
    delay.add(now_s, 7.0 + queue_s)
    return delay


def test_a_queue_is_shared_as_far_as_every_path_that_was_heard_lately_has_it() -> None:
    assert shared_queue_s([path(50.0, 0.3), path(50.1, 0.2), path(49.9, 0.5)], 50.2) == pytest.approx(0.2)
    assert shared_queue_s([path(50.0, 0.3), path(50.0, 0.0)], 50.0) == 0.0
    many = iter([path(50.0, 0.3), path(50.0, 0.0), path(50.0, 0.4)])
    assert shared_queue_s(many, 50.0) == 0.0
    assert next(many).standing_s == pytest.approx(0.4), "none was looked at after one without a queue"
    stale = path(50.0 - 2 * RECENT_S, 0.0)
    assert shared_queue_s([path(50.0, 0.3), path(50.0, 0.4), stale], 50.0) == pytest.approx(0.3)
    assert shared_queue_s([path(50.0, 0.3), stale], 50.0) is None
    assert shared_queue_s([], 50.0) is None


def test_sources_that_have_gone_are_forgotten() -> None:
    now = [0.0]
    downlink = Downlink(lambda: now[0])
    for number in range(100):
        now[0] = 60.0 * number
        downlink.arrived(f"stranger {number}", 100, 1.0, 0.0)
        downlink.arrived("always here", 100, 1.0, 0.0)
    assert len(downlink._paths) <= 12
    assert "always here" in downlink._paths
