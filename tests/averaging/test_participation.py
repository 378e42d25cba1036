"""When a member tells its leader that it holds everything; the work itself is played by the test."""

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from collab.averaging.agreement import CommitRecord
from collab.averaging.ballots import Ballot
from collab.averaging.butterfly import Session
from collab.averaging.certificates import Certified, ballot_paper
from collab.averaging.desk import Desk, Verdict
from collab.averaging.division import Division, Job
from collab.averaging.electors import electorate_of
from collab.averaging.laggards import Progress
from collab.averaging.messages import Member
from collab.averaging.participation import Participation
from collab.averaging.plan import Span
from collab.averaging.seats import Seats
from collab.averaging.silence import Silence
from collab.averaging.timeouts import FIRST, MeasuredTimeouts
from collab.errors import NetworkError, StreamClosed
from collab.net.base import Stream
from collab.net.wire import Message
from collab.types import Lineage, PeerId
from tests.averaging.certifying import FINGERPRINT, certify, make_verdicts
from tests.averaging.course_lab import PART, A, B, H, make_group
from tests.averaging.records import make_record
from tests.fakes import FakeKeys, FakeNetwork, make_ports, run

GROUP = make_group((Member(A, 1.0), Member(B, 1.0), Member(H, 0.0, receives=False)))
DIVISION = Division.of(GROUP.spans, PART)


class Work:
    """A helper's work: it has always done all that is asked of it."""

    def __init__(self) -> None:
        self.division, self.changed = DIVISION, asyncio.Event()
        self.complaints: list[Any] = []
        self.gone: set[PeerId] = set()
        self.is_whole, self.mean = True, None

    def halt(self, gone: Any, silenced: Any, broken: Any) -> list[int]:
        self.changed.set()  # something that it reduced is finished
        return [0 for _ in broken]

    def mend(self, division: Division) -> None:
        self.division = division
        self.changed.set()

    def digests(self) -> list[str | None]:
        return [None] * len(self.division.jobs)

    def gaps(self) -> list[Any]:
        return []

    def progress(self) -> Progress:
        return Progress({}, [])


class Leader:
    """A stream whose other side says what the test wants, a second between two messages."""

    def __init__(self, *messages: Message, pause_s: float = 1.0) -> None:
        self.remote, self._messages, self.heard = A, list(messages), list[Message]()
        self._pause_s = pause_s

    async def send(self, message: Message, *, timeout_s: float) -> None:
        self.heard.append(message)

    async def receive(self, *, timeout_s: float) -> Message:
        await asyncio.sleep(self._pause_s)
        if not self._messages:
            raise StreamClosed("the leader is gone")
        return self._messages.pop(0)

    def close(self) -> None:
        pass


async def follow(
    leader: Leader,
    *,
    learned: CommitRecord | None = None,
    known: Certified | None = None,
    caller: PeerId | None = None,
) -> Verdict:
    """A helper's part in the round, under a leader that nobody succeeds.

    Args:
        caller: who says that it leads on.
        learned: what it has once known to be decided.
        known: what it can prove to be.
    """
    seats, verdicts = Seats(), make_verdicts(make_ports(FakeNetwork().join(H)), present=(A, B, H))
    if learned is not None:
        seats.learn(learned)
    if known is not None:
        verdicts.remember(known)

    async def nobody(peer: PeerId, limit_s: float) -> Stream:
        raise StreamClosed(f"{peer} is not there")

    desk = Desk(
        me=H,
        timeouts=MeasuredTimeouts(asyncio.get_running_loop().time, FIRST),
        silence=Silence(asyncio.get_running_loop().time, 5.0),
        seats=seats,
        verdicts=verdicts,
        open=nobody,
        keep_stream=lambda stream: None,
        reach=lambda phase, epoch: None,
    )
    part = Participation(GROUP, cast(Session, Work()), desk)
    if caller is not None:
        part.called_by(caller)
    return await part.run(cast(Stream, leader))


def told(*messages: Message) -> list[Message]:
    """What a helper says to its leader, signs of life apart, until the leader is gone."""

    async def main() -> list[Message]:
        leader = Leader(*messages)
        with pytest.raises(NetworkError):
            await follow(leader)
        return [message for message in leader.heard if message.kind != "working"]

    return run(main())


def halt(generation: int, *broken: int) -> Message:
    return Message("halt", {"generation": generation, "gone": [B], "silenced": [], "broken": list(broken)})


def mend(generation: int, division: Division) -> Message:
    return Message("mend", {"generation": generation, "jobs": division.to_rows()})


MENDED = cast(Division, DIVISION.mended([1], {}, {A: 1.0, H: 1.0}))


@pytest.mark.parametrize(
    ("caller", "pause_s", "seconds"),
    [
        (None, 100.0, 5.0),
        (B, 100.0, 3 * FIRST.pulse_s),
        (PeerId("stranger"), 100.0, 5.0),  # leads nothing on, whatever it says
        (B, 1.0, 21.0),  # the leader lives
    ],
)
def test_a_leader_is_left_for_a_successor_only_when_it_says_nothing(
    caller: PeerId | None, pause_s: float, seconds: float
) -> None:
    async def main() -> float:
        with pytest.raises(NetworkError):
            await follow(Leader(*[Message("wait")] * 20, pause_s=pause_s), caller=caller)
        return asyncio.get_running_loop().time()

    assert run(main()) == pytest.approx(seconds, abs=0.1)


def test_one_that_was_stopped_reports_once_it_is_told_to_go_on_and_not_before() -> None:
    said = told(halt(1, 1), Message("wait"), mend(1, MENDED))
    assert [message.kind for message in said] == ["held", "done"]
    assert said[1].fields["generation"] == 1
    assert len(said[1].fields["digests"]) == len(MENDED.jobs)


def test_a_loss_that_stops_nothing_asks_for_no_other_report() -> None:
    said = told(halt(0), Message("wait"))
    assert [message.kind for message in said] == ["done"]


@pytest.mark.parametrize(
    "jobs",
    [
        MENDED.jobs[1:],
        (*DIVISION.jobs[:2], Job(Span(H, 0, 1), 0), DIVISION.jobs[2]),
        (replace(DIVISION.jobs[0], span=Span(H, 0, DIVISION.jobs[0].span.stop)), *DIVISION.jobs[1:]),
    ],
)
def test_work_that_is_not_the_old_one_divided_anew_is_not_taken_up(jobs: tuple[Job, ...]) -> None:
    said = told(halt(1, 1), mend(1, Division(jobs, PART)), Message("wait"))
    assert [message.kind for message in said] == ["held"]


RECORD = make_record(round_id="earlier", lineage=GROUP.lineage, members=(A, B, H))
"""Of an attempt before, so that nobody here holds what it is about."""
TRUE = certify(RECORD, (A, B, H), voters=(A, B))


def test_a_commit_with_its_proof_ends_the_round() -> None:
    assert run(follow(Leader(Message("commit", TRUE.to_fields())))) == Verdict(TRUE)


@pytest.mark.parametrize(
    "fields",
    [
        {"record": RECORD.to_fields()},
        {"record": RECORD.to_fields(), "certificate": {}},
        certify(RECORD, (A, B, H), voters=(B,)).to_fields(),
        certify(RECORD, (A,)).to_fields(),
        certify(RECORD, (A, B, H), fingerprint="another run").to_fields(),
        {**TRUE.to_fields(), "record": replace(RECORD, digests=("other",)).to_fields()},
        certify(replace(RECORD, epoch=1), (A, B, H)).to_fields(),
        certify(replace(RECORD, lineage=Lineage("other")), (A, B, H)).to_fields(),
    ],
)
def test_a_commit_that_proves_nothing_does_not(fields: dict[str, Any]) -> None:
    assert not told(Message("commit", fields))  # else it would be thanked for


def test_a_vote_is_signed_and_only_if_it_is_one() -> None:
    ballot = Ballot(2, A)
    (_, _, vote, refusal) = told(
        Message("lead", {"ballot": 2}),
        Message("prepare", {"record": RECORD.to_fields()}),
        Message("prepare", {"record": replace(RECORD, round_id="other").to_fields()}),
        Message("wait"),
    )[-4:]
    assert (vote.kind, refusal.kind) == ("vote", "vote")
    paper = ballot_paper(FINGERPRINT, electorate_of(GROUP), ballot, RECORD)
    assert vote.fields["signature"] == FakeKeys(H).sign(paper)
    assert refusal.fields["signature"] == b""


@pytest.mark.parametrize(
    "message", [Message("lead", {"ballot": 2}), Message("prepare", {"record": RECORD.to_fields()})]
)
def test_what_a_member_knows_to_be_decided_it_tells_with_the_proof_or_not_at_all(message: Message) -> None:
    async def answer(known: Certified | None) -> dict[str, Any]:
        leader = Leader(message, Message("wait"))
        with pytest.raises(NetworkError):
            await follow(leader, learned=RECORD, known=known)
        return next(said.fields for said in leader.heard if said.kind in ("promised", "vote"))

    told = run(answer(TRUE))
    assert told["seat"]["decided"] == RECORD.to_fields()
    assert told["certificate"] == TRUE.certificate.to_fields()
    assert run(answer(None))["seat"] == {}
