"""Random schedules of faults over some rounds; one that breaks a rule shrinks to a line of a test.

What a failure prints as ``faults=[...]`` goes into ``check([...])``.
"""

from hypothesis import HealthCheck, given, settings, strategies as st

from tests.simulation.fault_checks import check_means, check_one_history
from tests.simulation.faulty_rounds import CAST, STRIKES, TRAINERS, Fault, FaultyRounds

MESSAGES = (
    "join", "welcome", "begin", "round", "part", "result", "done", "prepare", "vote", "commit", "thanks",
    "halt", "held", "mend", "resume", "lead", "promised", "abort", "verdict?", "call",
)  # fmt: skip
LONGEST_S = 200.0
"""Three tries of a trainer, each with a leader that freezes and takes a minute to be given up, and another beside."""

strikes = st.builds(
    Fault,
    number=st.integers(0, 1),
    peer=st.integers(0, len(CAST) - 1),
    kind=st.sampled_from((*STRIKES, "cut")),
    message=st.sampled_from(MESSAGES),
    nth=st.integers(1, 6),
    is_to=st.booleans(),
    is_before=st.booleans(),
)
spoils = st.builds(
    Fault,
    number=st.integers(0, 1),
    peer=st.integers(0, len(CAST) - 1),
    kind=st.sampled_from(("nan", "wrong length")),
    message=st.sampled_from(("part", "result")),
    nth=st.integers(1, 6),
)
replays = st.builds(
    Fault,
    number=st.integers(0, 1),
    peer=st.integers(0, len(CAST) - 1),
    kind=st.just("replay"),
    message=st.sampled_from(MESSAGES),
    nth=st.integers(1, 6),
)


def check(faults: list[Fault]) -> None:
    """What must hold whatever happens; that a quorum is left is not said."""
    rounds = FaultyRounds(faults)
    rounds.run()
    check_one_history(rounds)
    check_means(rounds)
    assert all(seconds < LONGEST_S for seconds in rounds.seconds.values()), rounds.seconds
    if not rounds.fired:
        assert all(len(rounds.commits(number)) == len(TRAINERS) for number in range(rounds.num_rounds))


@settings(
    max_examples=70,
    derandomize=True,
    database=None,
    print_blob=False,
    suppress_health_check=list(HealthCheck),
)
@given(faults=st.lists(st.one_of(strikes, strikes, spoils, replays), min_size=1, max_size=4))
def test_no_schedule_of_faults_splits_the_history_or_loses_what_was_given(faults: list[Fault]) -> None:
    check(faults)


def test_a_leader_that_freezes_with_votes_on_their_way_splits_nothing() -> None:
    """Shows that a split would be seen: found in seconds where two votes are made a quorum and old ones forgotten."""
    check([Fault(0, 2, "slow", "result", is_to=True), Fault(0, 0, "freeze", "vote", nth=3, is_to=True, is_before=True)])
