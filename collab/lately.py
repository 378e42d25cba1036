"""What a function gave lately, for as long as it is asked for again."""

from collections.abc import Callable, Hashable
from functools import wraps
from typing import TypeVar, TypeVarTuple

Args = TypeVarTuple("Args")
T = TypeVar("T")

QUESTIONS = 16
"""For each result that is kept at most: after so many questions, those that were not asked again are forgotten."""


def kept_lately(most: int) -> Callable[[Callable[[*Args], T]], Callable[[*Args], T]]:
    """Of a function that always gives the same for the same arguments: keep what it gave.

    Strangers come and go for weeks. ``functools.lru_cache`` keeps what it was asked of them until its room is full,
    which takes hours and looks like a leak; this forgets it after ``QUESTIONS * most`` to twice as many questions
    about others. What raises is not kept.

    Args:
        most: results from the newer half of these questions; as many are kept from the older half.
    """

    def keeping(make: Callable[[*Args], T]) -> Callable[[*Args], T]:
        newer: dict[Hashable, T] = {}
        older: dict[Hashable, T] = {}
        left = most * QUESTIONS

        @wraps(make)
        def kept(*args: *Args) -> T:
            nonlocal newer, older, left
            left -= 1
            if left <= 0 or len(newer) >= most:
                newer, older, left = {}, newer, most * QUESTIONS
            try:
                return newer[args]
            except KeyError:
                before = older  # another thread may put newer results in its place
                newer[args] = found = before[args] if args in before else make(*args)
                return found

        return kept

    return keeping
