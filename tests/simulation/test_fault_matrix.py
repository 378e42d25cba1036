"""Every fault at every moment of a round, to everybody who has a part in it.

Five peers go three rounds; the fault is in the middle one, so that a history is behind it and a round after it. What
strikes a peer strikes it as a message leaves or comes; what spoils a message does so once, on its way.
"""

import logging

import pytest

from tests.simulation.fault_checks import check_means, check_one_history, check_survivors, is_named
from tests.simulation.faulty_rounds import CAST, Fault, FaultyRounds

ROUND = 1
Moment = tuple[str, dict[str, object]]

LEADING: dict[str, Moment] = {
    "before BEGIN": ("welcome", {}),
    "mid-send": ("part", {"nth": 3}),
    "mid-reduce": ("part", {"nth": 5, "is_to": True}),
    "mid-return": ("result", {"nth": 3}),
    "before commit": ("prepare", {"is_before": True}),
    "after PREPARE to some": ("prepare", {"nth": 3}),
    "after COMMIT to some": ("commit", {"nth": 2}),
}
FOLLOWING: dict[str, Moment] = {
    "before BEGIN": ("join", {}),
    "mid-send": ("part", {"nth": 3}),
    "mid-reduce": ("part", {"nth": 5, "is_to": True}),
    "mid-return": ("result", {"nth": 3}),
    "before commit": ("done", {}),
    "after its vote": ("vote", {}),
    "as COMMIT comes": ("commit", {"is_to": True, "is_before": True}),
}
RECEIVING: Moment = ("result", {"nth": 3, "is_to": True})
NO_SUCH_MOMENT = {
    ("auxiliary", "mid-send"),  # it has no vector
    ("sender", "mid-reduce"),  # they reduce nothing
    ("client", "mid-reduce"),
}
STRUCK = [
    pytest.param(kind, role, moment, id=f"{kind}-{role}-{moment}")
    for kind in ("kill", "freeze", "slow", "cancel")
    for role in CAST
    for moment in (LEADING if role == "leader" else FOLLOWING)
    if (role, moment) not in NO_SUCH_MOMENT
]


def strike(kind: str, role: str, moment: str) -> Fault:
    """One cell."""
    message, where = (LEADING if role == "leader" else FOLLOWING)[moment]
    if role in ("sender", "client") and moment == "mid-return":
        message, where = RECEIVING
    return Fault(ROUND, CAST.index(role), kind, message, **where)  # type: ignore[arg-type]


def bound_s(kind: str, role: str) -> float:
    """Seconds that a step may take, by the time-outs of rounds; on these links a round takes 0.7 s."""
    round_s, reply_s, slack_s, silence_s, blame_s = 0.7, 3.0, 1.0, 3.0, 1.0
    missed_s = reply_s + slack_s  # the next group forms without whoever does not answer
    if kind == "slow":
        return 1.5 * 10 * round_s + 1.0 + blame_s  # who has a tenth of a link may take so long, see ``laggards``
    if role == "leader":
        return 2 * silence_s + silence_s + reply_s + missed_s + round_s  # two successors gather who is left, in vain
    return silence_s + blame_s + missed_s + round_s


@pytest.mark.parametrize(("kind", "role", "moment"), STRUCK)
def test_whoever_is_struck_at_any_moment_the_others_go_on_with_one_history(kind: str, role: str, moment: str) -> None:
    fault = strike(kind, role, moment)
    rounds = FaultyRounds([fault])
    rounds.run()
    assert rounds.fired == {fault}
    check_one_history(rounds)
    check_means(rounds)
    check_survivors(rounds, fault.peer, bound_s=bound_s(kind, role))


EVERY = ("corrupt", "nan", "wrong length", "wrong group", "replay")
WITHOUT_NUMBERS = ("corrupt", "wrong length", "wrong group", "replay")  # nothing in it could be NaN
OF_NO_ROUND = ("corrupt", "nan", "wrong length", "replay")  # it says nothing of rounds: its stream does
SPOILT = [
    ("join", ("reducer", "sender", "client", "auxiliary"), EVERY),
    ("begin", ("leader",), EVERY),
    ("part", ("leader", "reducer", "sender", "client"), OF_NO_ROUND),
    ("round", ("leader", "reducer", "sender", "client"), ("wrong group",)),
    ("result", ("leader", "reducer", "auxiliary"), OF_NO_ROUND),
    ("done", ("reducer", "sender", "client", "auxiliary"), WITHOUT_NUMBERS),
    ("prepare", ("leader",), EVERY),
    ("vote", ("reducer", "sender", "client", "auxiliary"), WITHOUT_NUMBERS),
    ("commit", ("leader",), EVERY),
]


# Of what is not here nobody can know (a part is other numbers), or nobody needs to (a vote is counted once; whoever
# reads BEGIN wrongly comes again).
BLAMED = {
    ("nan", "part"), ("wrong length", "part"), ("replay", "part"),
    ("nan", "result"), ("wrong length", "result"), ("replay", "result"),
    ("corrupt", "done"), ("wrong length", "done"), ("wrong group", "done"),
    ("replay", "join"), ("wrong group", "round"),
    ("nan", "prepare"), ("wrong length", "prepare"), ("wrong group", "prepare"),
    ("corrupt", "commit"), ("nan", "commit"), ("wrong length", "commit"), ("wrong group", "commit"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "role", "message"),
    [
        pytest.param(kind, role, message, id=f"{kind}-{message}-of-{role}")
        for message, roles, kinds in SPOILT
        for role in roles
        for kind in kinds
    ],
)
def test_whatever_message_is_spoilt_all_go_on_with_one_history(
    kind: str, role: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="collab.averaging")
    fault = Fault(ROUND, CAST.index(role), kind, message)
    rounds = FaultyRounds([fault])
    rounds.run()
    assert rounds.fired == {fault}
    check_one_history(rounds)
    check_means(rounds, is_part_corrupt=(kind, message) == ("corrupt", "part"))
    check_survivors(rounds, fault.peer, bound_s=8.0)
    if (kind, message) in BLAMED:
        assert is_named(rounds, fault.peer, caplog.messages)


@pytest.mark.parametrize("role", ["leader", "reducer", "sender", "client"])
def test_whoever_brings_numbers_that_are_not_finite_is_in_no_mean_of_the_others(role: str) -> None:
    victim = CAST.index(role)
    rounds = FaultyRounds([], bad_vector=victim)
    rounds.run()
    check_one_history(rounds)
    check_survivors(rounds, victim, bound_s=8.0)
    record = next(iter(rounds.commits(ROUND).values())).record
    assert record.used_of(rounds.peer_id(victim)) == ()
