"""The figures of a storm: pure functions of its ledger. What each means is written in docs/storm.md."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from storm_ledger import Ledger
from storm_recovery import double_uses, fault_figures, rounded, spread
from storm_schedule import Kind


@dataclass(frozen=True, slots=True)
class Window:
    """A phase of the measurement in swarm time."""

    began_s: float
    ended_s: float

    @property
    def seconds(self) -> float:
        return self.ended_s - self.began_s

    def overlap_s(self, began_s: float, ended_s: float) -> float:
        return max(0.0, min(ended_s, self.ended_s) - max(began_s, self.began_s))


def figures(ledger: Ledger, peers: int) -> dict[str, Any]:
    """Everything that a storm says; ``ends_s`` of the ledger names its phases."""
    baseline, storm = (Window(*ledger.ends_s[name]) for name in ("baseline", "storm"))
    before, during = committed_per_s(ledger, baseline), committed_per_s(ledger, storm)
    alive, able = alive_share(ledger, storm, peers), able_share(ledger, storm, peers)
    ratio = during / before if before else None
    return {
        "samples_per_s": {"fault_free": rounded(before), "storm": rounded(during)},
        "computed_per_s": {
            "fault_free": rounded(computed_per_s(ledger, baseline)),
            "storm": rounded(computed_per_s(ledger, storm)),
        },
        "throughput": {
            "of_fault_free": rounded(ratio),
            "alive_share": rounded(alive),
            "beyond_dead": rounded(ratio / alive if ratio is not None and alive else None),
            "able_share": rounded(able),
            "beyond_disabled": rounded(ratio / able if ratio is not None and able else None),
        },
        "rounds": {"fault_free": rounds_in(ledger, baseline), "storm": rounds_in(ledger, storm)},
        "epoch_s": {"fault_free": epoch_s(ledger, baseline), "storm": epoch_s(ledger, storm)},
        "peers": {"fault_free": company(ledger, baseline), "storm": company(ledger, storm)},
        "faults": fault_figures(ledger),
        "samples": samples(ledger),
        "splits": splits(ledger),
        "states_fetched": ledger.states_fetched,
        "crashes": sum(life.has_crashed for life in ledger.lives),
        "problems": len(ledger.problems),
    }


# -- throughput ------------------------------------------------------------------------------------------------------


def committed_per_s(ledger: Ledger, window: Window) -> float:
    """Each commit's samples are spread over the time since the one before, so that a window may cut an epoch."""
    total, commits = 0.0, ledger.in_order()
    for before, commit in pairwise(commits):
        took_s = commit.at_s - before.at_s
        if took_s > 0:
            total += commit.samples * window.overlap_s(before.at_s, commit.at_s) / took_s
    return total / window.seconds


def computed_per_s(ledger: Ledger, window: Window) -> float:
    """Samples that anybody computed, whatever became of them: what is missing here was lost to waiting."""
    seconds = range(int(window.began_s), int(window.ended_s))
    return sum(ledger.computed_in[second] for second in seconds) / window.seconds


def alive_share(ledger: Ledger, window: Window, peers: int) -> float:
    """Of the trainers' slots and time, what somebody lived in: from joining to SIGKILL."""
    lived_s = 0.0
    for life in ledger.trainers:
        if life.began_s is not None:
            ended_s = window.ended_s if life.killed_s is None else life.killed_s
            lived_s += window.overlap_s(life.began_s, ended_s)
    return lived_s / (peers * window.seconds)


def able_share(ledger: Ledger, window: Window, peers: int) -> float:
    """The same without the time in which the peer was stopped."""
    stopped_s = 0.0
    for strike in ledger.strikes:
        if strike.fault.kind in (Kind.STOP, Kind.HANG):
            trainers = [number for number in strike.lives if not ledger.lives[number].is_backbone]
            over_s = window.ended_s if strike.over_s is None else strike.over_s
            stopped_s += len(trainers) * window.overlap_s(strike.at_s, over_s)
    return alive_share(ledger, window, peers) - stopped_s / (peers * window.seconds)


def epoch_s(ledger: Ledger, window: Window) -> dict[str, float | None]:
    """Seconds from commit to commit."""
    times = [commit.at_s for commit in ledger.in_order()]
    gaps = [late - early for early, late in pairwise(times) if window.overlap_s(early, late) > 0]
    return spread(gaps)


# -- rounds ----------------------------------------------------------------------------------------------------------


def rounds_in(ledger: Ledger, window: Window) -> dict[str, Any]:
    """Attempts that ended in the window; one that nobody saw committed was lost."""
    ended = [round_ for round_ in ledger.rounds.values() if window.began_s < round_.last_s <= window.ended_s]
    committed = sum(round_.is_committed for round_ in ended)
    return {
        "attempts": len(ended),
        "committed": committed,
        "committed_share": rounded(committed / len(ended)) if ended else None,
        "lost_for": dict(Counter(kind_of(round_.reasons) for round_ in ended if not round_.is_committed)),
    }


def kind_of(reasons: Sequence[str]) -> str:
    """The first reason without its names, so that equal ones are counted together."""
    words = [word for word in (reasons[0] if reasons else "?").split() if not word.startswith("12D3")]
    return " ".join(word for word in words if not any(letter.isdigit() for letter in word))[:80]


def company(ledger: Ledger, window: Window) -> dict[str, float | None]:
    """Medians over the window's epochs."""
    commits = [commit for commit in ledger.in_order() if window.began_s < commit.at_s <= window.ended_s]
    groups = groups_by_epoch(ledger)

    def median(values: list[int]) -> float | None:
        return float(statistics.median(values)) if values else None

    return {
        "alive": median([sum(life.is_alive(commit.at_s) for life in ledger.trainers) for commit in commits]),
        "in_the_group": median([len(groups.get(commit.epoch, ())) for commit in commits]),
        "contributing": median([commit.contributors for commit in commits]),
        "epochs": len(commits),
    }


def groups_by_epoch(ledger: Ledger) -> dict[int, set[int]]:
    """Trainers that were in the round of each epoch to its end."""
    groups: dict[int, set[int]] = {}
    for round_ in ledger.rounds.values():
        if round_.is_committed:
            trainers = {number for number in round_.tellers if not ledger.lives[number].is_backbone}
            groups.setdefault(round_.epoch + 1, set()).update(trainers)
    return groups


# -- work and history ------------------------------------------------------------------------------------------------


def samples(ledger: Ledger) -> dict[str, Any]:
    """What became of every sample, over the whole measurement."""
    survivors = [life for life in ledger.trainers if life.killed_s is None]
    dead = [life for life in ledger.trainers if life.killed_s is not None]
    computed, told_committed = sum(life.computed for life in survivors), sum(life.committed for life in survivors)
    commits = ledger.in_order()
    committed = sum(commit.used.get(life.number, 0) for commit in commits for life in survivors)
    committed += sum(life.late for life in survivors)
    told = [life for life in survivors if life.held is not None]
    unclaimed = sum(commit.samples - sum(commit.used.values()) for commit in commits)
    unclaimed -= sum(life.late for life in ledger.trainers)
    return {
        "survivors_computed": computed,
        "survivors_committed": committed,
        "survivors_on_lost_branches": told_committed - committed,
        "survivors_held": sum(life.held or 0 for life in told),
        "survivors_lost": sum(life.computed - life.committed - (life.held or 0) for life in told),
        "survivors_that_did_not_say": len(survivors) - len(told),
        "committed_share": rounded(committed / computed) if computed else None,
        "dead_computed": sum(life.computed for life in dead),
        "dead_committed": sum(life.committed for life in dead),
        "in_records_and_claimed_by_nobody": round(unclaimed, 3),
        "contributors_that_live_and_do_not_know": sum(double_uses(ledger).values()),
    }


def splits(ledger: Ledger) -> dict[str, Any]:
    """Two histories or two replicas of one epoch; both must be none."""
    endings: dict[tuple[int, str], set[str]] = {}
    for life in ledger.lives:
        if life.ending is not None:
            endings.setdefault((life.ending[0], life.ending[1]), set()).add(life.ending[2])
    lineages: dict[int, set[str]] = {}
    for epoch, lineage in (*ledger.branches, *endings):
        lineages.setdefault(epoch, set()).add(lineage)
    return {
        "epochs_with_two_lineages": sorted(epoch for epoch, found in lineages.items() if len(found - {""}) > 1),
        "lineages_with_two_replicas": sum(len(digests - {""}) > 1 for digests in endings.values()),
    }
