"""What counts as a fault in a round, and what the faults of one kind amount to."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from bench_faults import parse_arguments  # noqa: E402
from faults_crew import Strike  # noqa: E402
from faults_figures import calm_figures, describe, kind_figures, rank  # noqa: E402
from faults_rounds import LEARNING_ROUNDS, Calm, Case, Ending, miss, reference_s  # noqa: E402
from faults_setup import Fault, Kind, Place, Setup  # noqa: E402

SETUP: Setup = parse_arguments([]).setup
STRIKE = Strike(slot=3, at_s=102.0, done_s=102.1, is_verified=True)
FAULT = Fault(kind=Kind.KILL, seed=1, attempt=0, victim=3, moment=0.4)
ENDING = Ending(
    step_s=5.5,
    first_result_s=5.4,
    attempts=1,
    late=(),
    hung=(),
    survivors_equal=True,
    explained=1.0,
    fraction_averaged=1.0,
    victim_share=0.25,
    record_agrees=True,
    reasons=(),
)


def case(**fields: Any) -> Case:
    """A killed member of 5.5 s, with ``fields`` changed: of the case, or of its ending."""
    known = {name: fields.pop(name) for name in list(fields) if hasattr(ENDING, name)}
    defaults = {
        "fault": FAULT,
        "victim": 3,
        "leader": 0,
        "round_s": 5.0,
        "strike": STRIKE,
        "began_s": 100.0,
        "miss": "",
    }
    return Case(**{**defaults, "ending": replace(ENDING, **known), **fields})


def calm(number: int, step_s: float, *, is_first: bool = False, equal: bool = True) -> Calm:
    fields = {"contributors": 8, "attempts": 1, "reasons": ()}
    return Calm(number=number, step_s=step_s, equal=equal, is_first=is_first, **fields)


def test_a_seed_means_the_same_fault_whatever_else_is_measured_and_another_one_when_it_draws_again() -> None:
    first = Fault.draw(SETUP, Kind.KILL, 5, 0)
    assert first == Fault.draw(replace(SETUP, kinds=(Kind.KILL,), seeds=1), Kind.KILL, 5, 0)
    others = [(Kind.KILL, 5, 1), (Kind.KILL, 6, 0), (Kind.STOP, 5, 0)]
    assert all(Fault.draw(SETUP, *other).moment != first.moment for other in others)


def test_moments_are_spread_over_the_window_and_victims_over_all_peers() -> None:
    faults = [Fault.draw(SETUP, Kind.KILL, seed, 0) for seed in range(2000)]
    assert {fault.victim for fault in faults} == set(range(8))
    for tenth in range(10):
        assert sum(tenth <= fault.moment * 10 < tenth + 1 for fault in faults) == pytest.approx(200, abs=60)
    late = [Fault.draw(replace(SETUP, window=(0.9, 1.0)), Kind.KILL, seed, 0).moment for seed in range(100)]
    assert 0.9 <= min(late) < max(late) <= 1.0


def test_a_fault_counts_when_it_was_seen_to_happen_before_anybody_had_the_result() -> None:
    assert not miss(FAULT, STRIKE, 0, [105.0, 105.1])
    assert miss(FAULT, STRIKE, 0, [102.05, 105.1])
    assert miss(FAULT, STRIKE, 0, [101.0, 101.1])
    assert miss(FAULT, replace(STRIKE, is_verified=False), 0, [105.0])
    assert not miss(FAULT, STRIKE, 0, [])  # nobody ever had one: they hang, and that counts


def test_a_fault_for_the_leader_counts_only_when_it_led() -> None:
    fault = replace(FAULT, kind=Kind.LEADER)
    assert not miss(fault, STRIKE, 3, [105.0])
    assert miss(fault, STRIKE, 4, [105.0]) == "peer 4 led"


def test_rounds_in_which_links_are_learnt_and_those_with_strangers_are_no_reference() -> None:
    rounds = [calm(0, 9.0), calm(1, 8.0), calm(2, 5.0), calm(3, 5.2), calm(5, 7.0, is_first=True), calm(6, 5.1)]
    assert LEARNING_ROUNDS == 2
    assert reference_s(rounds) == 5.1
    assert reference_s(rounds[:2]) is None
    found = calm_figures([*rounds, calm(7, 5.1, equal=False)])
    assert (found["rounds"], found["median_s"], found["unequal"]) == (4, 5.1, 1)
    assert found["first_after_a_fault"]["median_s"] == 7.0


def test_figures_of_a_kind_are_over_the_undisturbed_round_and_of_the_worst() -> None:
    cases = [case(step_s=5.0 + 0.1 * extra) for extra in range(10)]
    cases.append(case(step_s=None, hung=(2,), survivors_equal=False, fraction_averaged=0.5))
    found = kind_figures(cases, 5.0)
    assert found["extra_s"] == {"median": pytest.approx(0.45), "p90": pytest.approx(0.8), "max": pytest.approx(0.9)}
    assert found["extra_rounds_max"] == pytest.approx(0.18)
    assert (found["number"], found["hung"], found["equal"], found["whole"]) == (11, 1, 10, 10)
    assert found["fraction_min"] == 0.5


def test_no_figures_of_no_faults_are_not_zeros() -> None:
    found = kind_figures([], 5.0)
    assert (found["number"], found["extra_s"]["max"], found["fraction_min"]) == (0, None, None)


def test_a_case_says_when_it_was_struck_and_what_peers_told_only_if_somebody_should_look() -> None:
    events = [{"of": 1, "event": "RoundEnded"}]
    plain = describe(case(events=events), 5.0)
    assert (plain["struck_s"], plain["extra_s"], plain["led"]) == (2.0, 0.5, False)
    assert "events" not in plain
    for odd in (
        {"step_s": 8.1},
        {"survivors_equal": False},
        {"fraction_averaged": 0.9},
        {"hung": (1,), "step_s": None},
    ):
        assert describe(case(events=events, **odd), 5.0)["events"] == events


def test_a_rank_is_a_value_that_was_seen() -> None:
    assert rank([3.0, 1.0, 2.0], 0.9) == 3.0
    assert rank([float(value) for value in range(1, 21)], 0.9) == 18.0
    assert rank([], 0.9) is None


def test_a_place_arrives_as_it_was_sent() -> None:
    place = Place(slot=2, name="2.9", host="10.0.0.3", bootstrap=("a", "b"), num_elements=8, seed=1)
    assert Place.from_json(place.to_json()) == place


@pytest.mark.parametrize(
    "arguments",
    [
        ("--kinds", "flood"),
        ("--peers", "2"),
        ("--peers", "99"),
        ("--seeds", "0"),
        ("--window", "0.5,0.2"),
        ("--mb", "0"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refusal:
        parse_arguments(list(arguments))
    assert refusal.value.code == 2
    assert "error" in capsys.readouterr().err
