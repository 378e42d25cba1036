"""How long somebody may be silent, on a clock that the test sets."""

from hypothesis import given, strategies as st

from collab.averaging.silence import FACTOR, LONGEST_S, REMEMBERED, SHORTEST_S, Silence

FIRST_S = 5.0


class Hand:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.at_s = 100.0

    def __call__(self) -> float:
        return self.at_s


def learned(seconds: float, *, times: int = REMEMBERED) -> tuple[Silence, Hand]:
    clock = Hand()
    silence = Silence(clock, FIRST_S)
    for _ in range(times):
        silence.ended(seconds)
    return silence, clock


def test_the_first_limit_holds_until_enough_is_known() -> None:
    assert learned(1.0, times=REMEMBERED // 4 - 1)[0].limit_s() == FIRST_S
    assert learned(1.0, times=REMEMBERED // 4)[0].limit_s() == FACTOR * 1.0


def test_the_limit_stays_between_the_shortest_and_the_longest() -> None:
    assert learned(0.001)[0].limit_s() == SHORTEST_S
    silence, _ = learned(4.9)
    for _ in range(REMEMBERED):
        silence.ended(1e9)
    assert silence.limit_s() == LONGEST_S


def test_the_longest_silence_that_ended_counts_until_it_is_forgotten() -> None:
    silence, _ = learned(0.5)
    silence.ended(1.4)
    assert silence.limit_s() == FACTOR * 1.4
    for _ in range(REMEMBERED - 1):
        silence.ended(0.5)
    assert silence.limit_s() == FACTOR * 1.4
    silence.ended(0.5)
    assert silence.limit_s() == SHORTEST_S


def test_one_that_comes_back_after_it_was_given_up_raises_the_limit_by_no_more_than_the_factor() -> None:
    silence, _ = learned(1.0)
    silence.ended(1000.0)
    assert silence.limit_s() == FACTOR * FACTOR * 1.0


@given(gaps=st.lists(st.floats(0, 1e6), max_size=100))
def test_no_silences_make_a_limit_that_is_absurd(gaps: list[float]) -> None:
    silence = Silence(Hand(), FIRST_S)
    for gap in gaps:
        silence.ended(gap)
        assert SHORTEST_S <= silence.limit_s() <= LONGEST_S


def test_who_is_heard_of_has_the_whole_limit_again() -> None:
    silence, clock = learned(1.0)
    watch = silence.watch()
    assert watch.left_s() == 3.0
    clock.at_s += 2.0
    assert watch.left_s() == 1.0
    clock.at_s += 1.5
    assert watch.left_s() == -0.5
    watch.heard()
    assert watch.left_s() == silence.limit_s() > 3.0


def test_any_other_sign_of_life_puts_the_limit_off_and_teaches_nothing() -> None:
    silence, clock = learned(1.0)
    signs_s = [-1e9]
    watch = silence.watch(other_sign_s=lambda: signs_s[0])
    clock.at_s += 2.5
    signs_s[0] = clock.at_s - 0.5
    assert watch.left_s() == 2.5
    clock.at_s += 3.0
    assert watch.left_s() == -0.5
    watch.heard()
    assert silence.limit_s() == FACTOR * FACTOR * 1.0, "it is the words that were late by as much as may be learned"


def test_what_everything_is_late_by_now_is_nobody_s_silence() -> None:
    silence, clock = learned(1.0)
    queue_s = [0.0]
    watch = silence.watch(queue_s=lambda: queue_s[0])
    clock.at_s += 3.5
    assert watch.left_s() == -0.5
    queue_s[0] = 2.0
    assert watch.left_s() == 1.5
    queue_s[0] = 1e9
    assert watch.left_s() == LONGEST_S - 0.5, "no queue is believed to be longer than that"


def test_one_that_is_watched_teaches_what_all_others_may_do() -> None:
    silence, clock = learned(0.6)
    one, other = silence.watch(), silence.watch()
    clock.at_s += 1.2
    one.heard()
    assert silence.limit_s() == FACTOR * (clock.at_s - 100.0)
    assert other.left_s() == silence.limit_s() - (clock.at_s - 100.0)


def test_whatever_somebody_says_it_is_waited_for_no_longer_than_was_said() -> None:
    silence, clock = learned(1.0)
    watch = silence.watch(at_most_s=10.0)
    for _ in range(9):
        clock.at_s += 1.0
        watch.heard()
        assert watch.left_s() > 0
    assert watch.left_s() == 1.0
    clock.at_s += 1.5
    watch.heard()
    assert watch.left_s() < 0
