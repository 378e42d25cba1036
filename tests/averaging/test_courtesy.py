"""A round that is due is put off for those who are behind, and not for long."""

from dataclasses import dataclass, field

import pytest

from collab.averaging.courtesy import LONGEST_S, ROUNDS, SHARE, Courtesy
from collab.averaging.standing import Word
from collab.types import Lineage, PeerId

HERE, SLOW, NEW = PeerId("here"), PeerId("slow"), PeerId("new")
ROUND_S, BATCH_S = 2.0, 1.0


def word(epoch: int, samples: float = 8.0, lineage: str = "", *, is_syncing: bool = False) -> Word:
    """A trainer's, in the history that all of these tests share."""
    return Word(epoch, Lineage(lineage or f"history {epoch}"), samples, 10.0, 0.1, is_syncing)


NOTHING_YET = Word(0, Lineage(""), 0.0, 0.0, 0.0, is_syncing=True)
"""A newcomer's."""


@dataclass
class Led:
    """A leader whose rounds all take as long, and what those who stand with it say."""

    courtesy: Courtesy = field(init=False)
    now_s: float = 100.0
    is_synchronous: bool = True
    epoch: int = 0
    words: dict[PeerId, Word] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.courtesy = Courtesy(lambda: self.now_s, is_synchronous=self.is_synchronous)
        self.step()

    def awaited(self) -> frozenset[PeerId]:
        """For whom the round that is due is put off."""
        self.words[HERE] = word(self.epoch)
        return self.courtesy.put_off_for(word(self.epoch).history, self.words)

    def wait(self, *, longest_s: float = 1000.0) -> float:
        """Until the round that is due begins; how long that took."""
        began_s = self.now_s
        while self.awaited() and self.now_s < began_s + longest_s:
            self.now_s += 0.1
        return self.now_s - began_s

    def step(self) -> None:
        """A round from its batch to the next one's."""
        self.wait()
        self.courtesy.called()
        self.now_s += ROUND_S
        self.epoch += 1
        self.courtesy.heard_of(word(self.epoch).history)
        self.now_s += BATCH_S


def test_nobody_is_waited_for_when_all_are_here() -> None:
    led = Led()
    assert not led.awaited()


@pytest.mark.parametrize("behind", [1, 2, 20])
def test_whoever_is_behind_is_waited_for_until_it_can_bring_something(behind: int) -> None:
    led = Led()
    for _ in range(20):
        led.step()
    led.words[SLOW] = word(led.epoch - behind, is_syncing=True)
    assert led.awaited() == {SLOW}
    led.now_s += 1.0
    led.words[SLOW] = word(led.epoch, samples=0.0)
    assert led.awaited() == {SLOW}, "it has nothing to bring yet"
    led.words[SLOW] = word(led.epoch)
    assert not led.awaited()


def test_a_newcomer_without_a_state_is_waited_for() -> None:
    led = Led()
    led.step()
    led.words[NEW] = NOTHING_YET
    assert led.awaited() == {NEW}


def test_whoever_does_not_come_is_waited_for_once_and_not_for_long() -> None:
    led = Led()
    led.step()
    led.words[SLOW] = word(led.epoch - 1, is_syncing=True)
    assert led.wait() == pytest.approx((ROUNDS + 1) * ROUND_S, abs=0.2)
    led.step()
    assert not led.awaited(), "it is where it was"


def test_whoever_leaves_is_not_waited_for() -> None:
    led = Led()
    led.step()
    led.words[SLOW] = word(led.epoch - 1, is_syncing=True)
    assert led.awaited()
    del led.words[SLOW]
    assert not led.awaited()


def test_many_at_once_have_longer() -> None:
    led = Led()
    led.step()
    led.words |= {PeerId(f"{number}"): NOTHING_YET for number in range(5)}
    assert led.wait() == pytest.approx((ROUNDS + 5) * ROUND_S, abs=0.2)
    led.step()
    led.words |= {PeerId(f"more {number}"): NOTHING_YET for number in range(1000)}
    assert led.wait() <= LONGEST_S, "and only what is saved"


def test_who_lags_behind_on_purpose_costs_no_more_than_a_share_of_the_time() -> None:
    led = Led()
    began_s, waited_s = led.now_s, 0.0
    for _ in range(1000):
        led.words[SLOW] = word(led.epoch - 1, lineage=f"somewhere else {led.epoch}", is_syncing=True)
        waited_s += led.wait()
        led.step()
    assert waited_s <= SHARE * (led.now_s - began_s) + (ROUNDS + 1) * ROUND_S
    assert waited_s > SHARE * (led.now_s - began_s) / 2, "the attack was made"


def test_many_who_lag_behind_on_purpose_cost_no_more_than_that_and_what_is_saved() -> None:
    led = Led()
    began_s, waited_s = led.now_s, 0.0
    for number in range(1000):
        led.words[PeerId(f"another {number}")] = word(led.epoch - 1, is_syncing=True)
        waited_s += led.wait()
        led.step()
    assert waited_s <= SHARE * (led.now_s - began_s) + LONGEST_S
    assert waited_s > LONGEST_S, "the attack was made"


def test_where_rounds_go_on_beside_microbatches_only_who_is_near_is_waited_for() -> None:
    led = Led(is_synchronous=False)
    for _ in range(3):
        led.step()
    led.words[NEW] = NOTHING_YET
    assert not led.awaited()
    led.step()
    led.words[SLOW] = word(led.epoch - 1)
    assert led.awaited() == {SLOW}
    led.now_s += 1.0
    led.words[SLOW] = word(led.epoch, samples=0.0)
    assert led.awaited() == {SLOW}, "it has nothing to bring yet"
    led.words[SLOW] = word(led.epoch)
    assert not led.awaited()


def test_who_is_near_and_has_had_its_share_is_waited_for_up_to_a_step() -> None:
    led = Led(is_synchronous=False)
    for _ in range(3):
        led.step()
    led.words[SLOW] = word(led.epoch - 1)
    assert led.wait() == pytest.approx((ROUNDS + 1) * ROUND_S, abs=0.2)
    led.step()
    assert not led.awaited(), "it is where it was"
    led.step()
    led.words[SLOW] = word(led.epoch - 1)
    assert led.wait() == pytest.approx(ROUND_S + BATCH_S, abs=0.2)
    led.step()
    led.words[NEW] = word(led.epoch - 1)
    assert led.wait() == pytest.approx((ROUNDS + 1) * ROUND_S, abs=0.2), "another one has its own"


def test_where_rounds_go_on_beside_microbatches_lagging_on_purpose_halves_them_and_costs_a_share() -> None:
    led = Led(is_synchronous=False)
    began_s, waited_s = led.now_s, 0.0
    for _ in range(1000):
        led.words[SLOW] = word(led.epoch - 1, lineage=f"somewhere else {led.epoch}")
        waited_s += led.wait()
        led.step()
    beyond_s = waited_s - 1000 * (ROUND_S + BATCH_S + 0.1)
    assert beyond_s <= SHARE * (led.now_s - began_s) + (ROUNDS + 1) * ROUND_S
    assert waited_s > 1000 * ROUND_S, "the attack was made"


def test_a_straggler_that_computes_is_not_waited_for() -> None:
    led = Led()
    led.step()
    led.words[SLOW] = word(led.epoch - 1)
    assert not led.awaited()
