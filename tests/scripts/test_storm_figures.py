"""The figures of a storm from a ledger that can be counted by hand."""

import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from storm_figures import (  # noqa: E402
    Window,
    able_share,
    alive_share,
    committed_per_s,
    company,
    figures,
    rounds_in,
    samples,
    splits,
)
from storm_ledger import Ledger, Strike  # noqa: E402
from storm_recovery import (  # noqa: E402
    double_uses,
    recovered_after_s,
    returned_after_s,
    was_struck_again,
    whole_commits,
)
from storm_schedule import Fault, Kind  # noqa: E402

PEERS = 3


def small_swarm() -> Ledger:
    """Three trainers from 0 s on, with a microbatch of 8 samples each in the first second."""
    ledger = Ledger()
    for slot in range(PEERS):
        life = ledger.new_life(slot, f"trainer-{slot}")
        ledger.note(life, "Up", {"at_s": 0.0})
        compute(ledger, slot, 0.5)
    return ledger


def compute(ledger: Ledger, number: int, at_s: float) -> None:
    ledger.note(ledger.lives[number], "MicrobatchDone", {"at_s": at_s, "samples": 8})


def commit(
    ledger: Ledger,
    epoch: int,
    at_s: float,
    users: list[int],
    *,
    lineage: str = "",
    record: int = 0,
    in_part: tuple[int, ...] = (),
) -> None:
    """A round of 1 s in which ``users`` were, with 8 samples each, of which only half the elements are used of those
    ``in_part``; ``record``: contributors, if there were more."""
    number = record or len(users)
    for user in users:
        life = ledger.lives[user]
        ended = {"epoch": epoch - 1, "round_id": f"r{epoch}{lineage}", "committed": True, "seconds": 1.0, "reason": ""}
        ledger.note(life, "RoundEnded", {"at_s": at_s, **ended})
        own = {"own_samples": 0 if user in in_part else 8, "own_weight": 4.0 if user in in_part else 8.0}
        own["used_in"] = [ended["round_id"]]
        step = {"epoch": epoch, "lineage": lineage or f"l{epoch}", "contributors": number, **own}
        ledger.note(life, "EpochFinished", {"at_s": at_s + 0.1 * user, "swarm_samples": 8.0 * number, **step})


def strike(ledger: Ledger, kind: Kind, at_s: float, over_s: float | None, numbers: tuple[int, ...]) -> Strike:
    slots = tuple(ledger.lives[number].slot for number in numbers)
    fault = Fault(at_s=at_s, kind=kind, slots=slots, duration_s=1.0)
    ledger.strikes.append(Strike(fault=fault, at_s=at_s, lives=numbers, over_s=over_s))
    if kind is Kind.KILL:
        for number in numbers:
            ledger.lives[number].killed_s = at_s
    return ledger.strikes[-1]


def test_a_commits_samples_are_spread_over_the_time_since_the_one_before() -> None:
    ledger = small_swarm()
    for epoch, at_s in ((1, 10.0), (2, 20.0), (3, 40.0)):
        commit(ledger, epoch, at_s, [0, 1, 2])
    assert committed_per_s(ledger, Window(10.0, 20.0)) == pytest.approx(2.4)
    assert committed_per_s(ledger, Window(10.0, 30.0)) == pytest.approx((24 + 12) / 20)
    assert committed_per_s(ledger, Window(30.0, 50.0)) == pytest.approx(12 / 20)


def test_dead_time_runs_from_the_kill_to_the_newcomers_start_and_stopped_time_is_not_able() -> None:
    ledger = small_swarm()
    strike(ledger, Kind.KILL, 10.0, 12.0, (0,))
    newcomer = ledger.new_life(0, "newcomer")
    ledger.note(newcomer, "Up", {"at_s": 16.0})
    strike(ledger, Kind.STOP, 20.0, 29.0, (1,))
    window = Window(0.0, 30.0)
    assert alive_share(ledger, window, PEERS) == pytest.approx(1 - 6 / 90)
    assert able_share(ledger, window, PEERS) == pytest.approx(1 - 15 / 90)


def test_a_round_that_nobody_saw_committed_was_lost_and_equal_reasons_count_together() -> None:
    ledger = small_swarm()
    commit(ledger, 1, 10.0, [0, 1, 2])
    for number, peer in ((1, "12D3KooWA"), (2, "12D3KooWB")):
        lost = {"epoch": 1, "round_id": f"lost{number}", "committed": False, "seconds": 3.0}
        ledger.note(ledger.lives[0], "RoundEnded", {"at_s": 12.0, "reason": f"{peer} closed the stream", **lost})
    found = rounds_in(ledger, Window(0.0, 20.0))
    assert (found["attempts"], found["committed"], found["lost_for"]) == (3, 1, {"closed the stream": 2})


def test_company_counts_who_lives_who_is_in_the_group_and_who_contributes() -> None:
    ledger = small_swarm()
    commit(ledger, 1, 10.0, [0, 1])
    strike(ledger, Kind.KILL, 12.0, None, (2,))
    commit(ledger, 2, 20.0, [0, 1])
    found = company(ledger, Window(0.0, 30.0))
    assert found == {"alive": 2.5, "in_the_group": 2.0, "contributing": 2.0, "epochs": 2}


def test_recovery_ends_with_the_first_commit_of_everybody_who_could_contribute() -> None:
    ledger = small_swarm()
    commit(ledger, 1, 10.0, [0, 1, 2])
    stop = strike(ledger, Kind.STOP, 15.0, 35.0, (2,))
    commit(ledger, 2, 20.0, [0])  # 1 was lost on the way
    commit(ledger, 3, 30.0, [0, 1])
    commit(ledger, 4, 45.0, [0, 1])  # 2 goes on again, and is not there yet
    commit(ledger, 5, 55.0, [0, 1, 2])
    assert [each.epoch for each in whole_commits(ledger)] == [1, 3, 5]
    assert recovered_after_s(stop, whole_commits(ledger)) == pytest.approx(15.0)
    assert returned_after_s(ledger, stop) == pytest.approx(20.0)


def test_the_dead_return_in_the_person_of_their_replacement() -> None:
    ledger = small_swarm()
    kill = strike(ledger, Kind.KILL, 5.0, 8.0, (1,))
    newcomer = ledger.new_life(1, "newcomer")
    ledger.note(newcomer, "Up", {"at_s": 9.0})
    commit(ledger, 1, 10.0, [0, 2])
    assert returned_after_s(ledger, kill) is None
    compute(ledger, newcomer.number, 12.0)
    commit(ledger, 2, 20.0, [0, 2, newcomer.number])
    assert recovered_after_s(kill, whole_commits(ledger)) == pytest.approx(5.0)
    assert returned_after_s(ledger, kill) == pytest.approx(12.0)


def test_a_victim_of_the_next_fault_is_not_missed() -> None:
    ledger = small_swarm()
    slow = strike(ledger, Kind.SLOW, 5.0, 8.0, (1,))
    strike(ledger, Kind.KILL, 9.0, None, (1,))
    assert was_struck_again(ledger, slow)


def test_what_survivors_computed_is_committed_held_or_lost() -> None:
    ledger = small_swarm()
    compute(ledger, 0, 1.0)
    commit(ledger, 1, 10.0, [0, 1, 2])
    strike(ledger, Kind.KILL, 12.0, None, (2,))
    for number, held in ((0, 8), (1, 0)):
        ending = {"epoch": 1, "lineage": "l1", "digest": "d", "held": held}
        ledger.note(ledger.lives[number], "Ending", ending)
    found = samples(ledger)
    assert (found["survivors_computed"], found["survivors_committed"], found["survivors_held"]) == (24, 16, 8)
    assert (found["survivors_lost"], found["dead_computed"], found["dead_committed"]) == (0, 8, 8)


def test_a_contributor_that_lives_and_does_not_know_brings_its_samples_twice() -> None:
    ledger = small_swarm()
    commit(ledger, 1, 10.0, [0, 1], record=3)
    assert double_uses(ledger) == {1: 1}
    strike(ledger, Kind.KILL, 10.0, None, (2,))  # dead, it could not tell
    assert double_uses(ledger) == {}


def test_a_contributor_that_learns_of_two_uses_at_once_knows_of_both() -> None:
    ledger = small_swarm()
    commit(ledger, 1, 10.0, [0, 1], record=3)
    commit(ledger, 2, 20.0, [0, 1], record=3)
    assert double_uses(ledger) == {1: 1, 2: 1}
    late = {"at_s": 21.0, "samples": 8, "used_in": ["r1", "r2"]}
    ledger.note(ledger.lives[2], "SamplesUsed", late)
    assert double_uses(ledger) == {}


def test_a_contributor_of_which_a_step_has_used_some_elements_knows() -> None:
    ledger = small_swarm()
    commit(ledger, 1, 10.0, [0, 1, 2], in_part=(2,))
    assert double_uses(ledger) == {}


def test_two_lineages_of_one_epoch_and_two_replicas_of_one_lineage_are_splits() -> None:
    ledger = small_swarm()
    commit(ledger, 1, 10.0, [0, 1, 2], lineage="one")
    assert not any(splits(ledger).values())
    commit(ledger, 2, 20.0, [0, 1], lineage="two")
    commit(ledger, 2, 20.0, [2], lineage="three")
    for number, digest in enumerate(("a", "a", "b")):
        ending = {"epoch": 1, "lineage": "one", "digest": digest, "held": 0}
        ledger.note(ledger.lives[number], "Ending", ending)
    assert splits(ledger) == {"epochs_with_two_lineages": [2], "lineages_with_two_replicas": 1}


def test_figures_of_a_calm_swarm_are_those_of_no_storm() -> None:
    ledger = small_swarm()
    for epoch in range(1, 9):
        commit(ledger, epoch, 10.0 * epoch, [0, 1, 2])
    ledger.ends_s = {"baseline": (10.0, 40.0), "storm": (40.0, 80.0)}
    found = figures(ledger, PEERS)
    assert found["throughput"]["beyond_dead"] == pytest.approx(1.0)
    assert found["rounds"]["storm"]["committed_share"] == 1.0
    assert found["faults"]["all"]["number"] == 0
