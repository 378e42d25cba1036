"""What must hold of rounds whatever goes wrong in them."""

import numpy as np

from collab.averaging.agreement import CommitRecord
from collab.averaging.base import Aborted, Committed, Superseded
from collab.types import Lineage
from tests.averaging.swarm import mean_of_record
from tests.simulation.faulty_rounds import CAST, TRAINERS, FaultyRounds

FLIPPED_ELEMENTS = 3


def check_one_history(rounds: FaultyRounds) -> None:
    """Whoever knows what followed a history knows the same, with the same bytes, and rounds follow each other."""
    after: dict[tuple[int, Lineage], CommitRecord] = {}
    means: dict[CommitRecord, bytes] = {}
    for (index, number), tries in rounds.outcomes.items():
        known = [outcome for outcome in tries if isinstance(outcome, Committed)]
        if (caught_up := rounds.caught_up.get((index, number))) is not None:
            known.append(caught_up)
        for committed in known:
            record = committed.record
            assert means.setdefault(record, committed.mean.tobytes()) == committed.mean.tobytes()
        told = [outcome.record for outcome in tries if isinstance(outcome, Superseded) and outcome.record is not None]
        for record in [*told, *(committed.record for committed in known)]:
            assert after.setdefault((record.epoch, record.lineage), record) == record, "the swarm has split"
    lineages = {record.next_lineage() for record in after.values()} | {Lineage("sim")}
    assert len({record.lineage for record in after.values()}) == len(after)
    assert {record.lineage for record in after.values()} <= lineages


def check_means(rounds: FaultyRounds, *, is_part_corrupt: bool = False) -> None:
    """What was committed is the mean of what the record says; what was given to no step is still there."""
    for number in range(rounds.num_rounds):
        vectors = {rounds.peer_id(index): rounds.vector(index, number) for index in TRAINERS}
        weights = {rounds.peer_id(index): 1.0 + index for index in TRAINERS}
        for committed in list(rounds.commits(number).values())[:1]:  # all are the same bytes
            error = np.abs(committed.mean - mean_of_record(committed.record, vectors, weights))
            wrong = int((error > 1e-5).sum())
            assert wrong <= (FLIPPED_ELEMENTS if is_part_corrupt else 0)
        for index in TRAINERS:
            if (index, number) in rounds.given:
                assert rounds.given[index, number] == vectors[rounds.peer_id(index)].tobytes()


def check_survivors(rounds: FaultyRounds, victim: int, *, bound_s: float) -> None:
    """All others commit every round or take it over, in bounded time; a victim that lives knows what came of it."""
    for number in range(rounds.num_rounds):
        commits = rounds.commits(number)
        assert commits, f"nobody commits round {number}: {summary(rounds)}"
        for index in TRAINERS:
            tries = rounds.outcomes.get((index, number), [])
            if index == victim and (index in rounds.struck or not rounds.world.peers[index].is_alive):
                continue
            last = tries[-1]
            assert not isinstance(last, Aborted) or index == victim, summary(rounds)
            if isinstance(last, Superseded):
                assert rounds.caught_up[index, number] is not None
            assert rounds.seconds[index, number] < bound_s, summary(rounds)


def is_named(rounds: FaultyRounds, culprit: int, logged: list[str]) -> bool:
    """Whether a log line, or the text of an outcome, says of a peer that something is wrong with it."""
    told = [getattr(outcome, "text", "") for tries in rounds.outcomes.values() for outcome in tries]
    unreachable = "does not answer the call"  # said of clients in every round
    return any(rounds.peer_id(culprit) in text and unreachable not in text for text in [*logged, *told])


def summary(rounds: FaultyRounds) -> str:
    """What everybody got, for a message."""
    lines = []
    for (index, number), tries in sorted(rounds.outcomes.items(), key=lambda item: (item[0][1], item[0][0])):
        words = [f"{type(outcome).__name__} {getattr(outcome, 'text', '')}" for outcome in tries]
        lines.append(f"round {number} {CAST[index]}: {words} in {rounds.seconds.get((index, number), -1.0):.1f} s")
    return "\n".join(lines)
