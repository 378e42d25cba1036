"""Who recovered from what, and when: pure functions of a storm's ledger."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from storm_ledger import Commit, Ledger, Life, Strike
from storm_schedule import Kind

TELLING_S = 1.0
"""A peer that dies within this time after a commit may have been in it without having told so."""


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def spread(values: Iterable[float]) -> dict[str, float | None]:
    """Median and worst; None where there is nothing."""
    found = list(values)
    return {
        "median": rounded(statistics.median(found)) if found else None,
        "worst": rounded(max(found)) if found else None,
    }


def fault_figures(ledger: Ledger) -> dict[str, Any]:
    """Of all strikes together, and by kind."""
    whole = whole_commits(ledger)
    rows = [(strike, recovered_after_s(strike, whole), returned_after_s(ledger, strike)) for strike in ledger.strikes]
    again = {id(strike) for strike in ledger.strikes if was_struck_again(ledger, strike)}

    def one(kind: Kind | None) -> dict[str, Any]:
        chosen = [row for row in rows if kind is None or row[0].fault.kind is kind]
        return {
            "number": len(chosen),
            "recover_s": spread(recovered for _, recovered, _ in chosen if recovered is not None),
            "never_recovered": sum(recovered is None for _, recovered, _ in chosen),
            "return_s": spread(returned for _, _, returned in chosen if returned is not None),
            "struck_again_before": sum(id(strike) in again for strike, _, _ in chosen),
            "never_returned": sum(returned is None and id(strike) not in again for strike, _, returned in chosen),
        }

    kinds = sorted({strike.fault.kind for strike in ledger.strikes})
    return {"all": one(None), **{str(kind): one(kind) for kind in kinds}}


def whole_commits(ledger: Ledger) -> list[Commit]:
    """Commits in which everybody contributed who could."""
    started_s = {
        round_.epoch + 1: round_.last_s - round_.seconds for round_ in ledger.rounds.values() if round_.is_committed
    }
    found = []
    for commit in ledger.in_order():
        began_s = min(commit.at_s, started_s.get(commit.epoch, commit.at_s))
        expected = {life.number for life in ledger.trainers if could_contribute(ledger, life, began_s, commit.at_s)}
        if expected <= commit.contributing:
            found.append(commit)
    return found


def could_contribute(ledger: Ledger, life: Life, began_s: float, ended_s: float) -> bool:
    """Whether a peer lived, had computed something, and was not struck, in all of the time of a round."""
    has_samples = life.first_microbatch_s is not None and life.first_microbatch_s < began_s
    lives_on = life.is_alive(began_s) and life.is_alive(ended_s + TELLING_S)
    return has_samples and lives_on and not any(is_struck(s, life, began_s, ended_s) for s in ledger.strikes)


def is_struck(strike: Strike, life: Life, began_s: float, ended_s: float) -> bool:
    if life.number not in strike.lives or strike.fault.kind is Kind.KILL:
        return False
    return strike.at_s <= ended_s + TELLING_S and (strike.over_s is None or strike.over_s >= began_s)


def recovered_after_s(strike: Strike, whole: Sequence[Commit]) -> float | None:
    """From the fault to the first commit after it in which everybody contributed who could."""
    return next((commit.at_s - strike.at_s for commit in whole if commit.at_s > strike.at_s), None)


def returned_after_s(ledger: Ledger, strike: Strike) -> float | None:
    """From the fault's end to the last of its victims' (or replacements') first contributions after it."""
    if strike.over_s is None:
        return None
    latest_s = 0.0
    for life in back_again(ledger, strike):
        later = (commit for commit in ledger.in_order() if commit.at_s > strike.over_s)
        at_s = next((commit.at_s for commit in later if life.number in commit.contributing), None)
        if at_s is None:
            return None
        latest_s = max(latest_s, at_s - strike.over_s)
    return latest_s


def was_struck_again(ledger: Ledger, strike: Strike) -> bool:
    """Whether somebody who should return was struck by the next fault before it had."""
    numbers = {life.number for life in back_again(ledger, strike)}
    return returned_after_s(ledger, strike) is None and any(
        other.at_s > strike.at_s and numbers & set(other.lives) for other in ledger.strikes
    )


def back_again(ledger: Ledger, strike: Strike) -> list[Life]:
    """The trainers that should contribute after a fault: its victims, or whoever came in their places."""
    back = [ledger.lives[number] for number in strike.lives]
    if strike.fault.kind is Kind.KILL:
        places = [life.slot for life in back]
        later = [life for life in ledger.lives if life.number > max(strike.lives) and life.slot in places]
        back = later[:1]
    return [life for life in back if not life.is_backbone]


def round_began_s(ledger: Ledger, commit: Commit) -> float:
    """When the first member joined the round that led to a commit."""
    begins_s = (
        round_.last_s - round_.seconds
        for round_ in ledger.rounds.values()
        if round_.is_committed and round_.epoch + 1 == commit.epoch
    )
    return min(commit.at_s, *begins_s, commit.at_s)


def double_uses(ledger: Ledger) -> dict[int, int]:
    """By epoch: contributors that never told anybody that the round used their samples, and were not killed before.

    Such a peer still holds what is in a step already, and will bring it again.
    """
    found = {}
    for commit in ledger.in_order():
        ids = {name for name, each in ledger.rounds.items() if each.is_committed and each.epoch + 1 == commit.epoch}
        unknowing = [life for life in ledger.trainers if not life.used_in & ids]
        began_s = round_began_s(ledger, commit)
        dead = [life for life in unknowing if life.killed_s is not None and life.is_alive(began_s)]
        missing = commit.contributors - (len(ledger.trainers) - len(unknowing))
        if missing > len(dead):
            found[commit.epoch] = missing - len(dead)
    return found
