"""Results that are kept for as long as somebody asks for them."""

from collections.abc import Callable

import pytest

from collab.lately import QUESTIONS, kept_lately

MOST = 4


class Made:
    """What was asked of a function that is kept."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    @property
    def anew(self) -> int:
        """How often it ran since it was looked at last."""
        number, self.asked = len(self.asked), []
        return number


@pytest.fixture
def made() -> Made:
    return Made()


def kept(made: Made) -> Callable[[str], str]:
    @kept_lately(MOST)
    def twice(text: str) -> str:
        made.asked.append(text)
        if text == "bad":
            raise ValueError(text)
        return text + text

    return twice


def test_what_is_asked_again_is_made_once_however_long(made: Made) -> None:
    twice = kept(made)
    assert {twice(name) for _ in range(10 * MOST * QUESTIONS) for name in "abc"} == {"aa", "bb", "cc"}
    assert made.anew == 3


def test_what_nobody_asks_for_any_more_is_forgotten(made: Made) -> None:
    twice = kept(made)
    assert twice("gone") == "gonegone"
    for _ in range(MOST * QUESTIONS - 1):
        twice("here")
    assert made.anew == 2
    assert twice("gone") == "gonegone"
    assert made.anew == 0
    for _ in range(2 * MOST * QUESTIONS):
        twice("here")
    assert made.anew == 0
    assert twice("gone") == "gonegone"
    assert made.anew == 1


def test_of_many_at_once_the_last_ones_are_kept(made: Made) -> None:
    twice, names = kept(made), [str(number) for number in range(100 * MOST)]
    for name in names:
        twice(name)
    assert made.anew == len(names)
    for name in names[-MOST:]:
        twice(name)
    assert made.anew == 0
    twice(names[-3 * MOST])
    assert made.anew == 1


def test_what_fails_is_tried_again(made: Made) -> None:
    twice = kept(made)
    for _ in range(2):
        with pytest.raises(ValueError, match="bad"):
            twice("bad")
    assert made.anew == 2
    assert twice("good") == "goodgood"


def test_results_that_another_thread_puts_away_meanwhile_are_made_anew() -> None:
    """Whoever looks for one of the older half may find it gone a moment later."""
    doubled = kept_lately(MOST)(lambda asked: str(asked) * 2)
    others = iter(range(1 << 20))

    class Asked(str):
        looked = 0

        def __eq__(self, other: object) -> bool:  # while it is looked for among the older ones
            self.looked += 1
            if self.looked == 1:
                for _ in range(2 * MOST):
                    doubled(f"other {next(others)}")
            return str(self) == str(other)

        __hash__ = str.__hash__

    doubled("it")
    for _ in range(MOST):
        doubled(f"other {next(others)}")
    assert doubled(Asked("it")) == "itit"
