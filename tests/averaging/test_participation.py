"""When a member tells its leader that it holds everything; the work itself is played by the test."""

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from collab.averaging.butterfly import Session
from collab.averaging.division import Division, Job
from collab.averaging.laggards import Progress
from collab.averaging.messages import Member
from collab.averaging.participation import Desk, Participation
from collab.averaging.plan import Span
from collab.averaging.seats import Seats
from collab.averaging.silence import Silence
from collab.averaging.timeouts import RoundTimeouts
from collab.errors import NetworkError, StreamClosed
from collab.net.base import Stream
from collab.net.wire import Message
from collab.types import PeerId
from tests.averaging.certifying import make_verdicts
from tests.averaging.course_lab import PART, A, B, H, make_group
from tests.fakes import FakeNetwork, make_ports, run

GROUP = make_group((Member(A, 1.0), Member(B, 1.0), Member(H, 0.0, receives=False)))
DIVISION = Division.of(GROUP.spans, PART)


class Work:
    """A helper's work: it has always done all that is asked of it."""

    def __init__(self) -> None:
        self.division, self.changed = DIVISION, asyncio.Event()
        self.complaints: list[Any] = []
        self.gone: set[PeerId] = set()
        self.is_whole, self.mean = True, None

    def halt(self, gone: Any, broken: Any) -> list[int]:
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

    def __init__(self, *messages: Message) -> None:
        self.remote, self._messages, self.heard = A, list(messages), list[Message]()

    async def send(self, message: Message, *, timeout_s: float) -> None:
        self.heard.append(message)

    async def receive(self, *, timeout_s: float) -> Message:
        await asyncio.sleep(1)
        if not self._messages:
            raise StreamClosed("the leader is gone")
        return self._messages.pop(0)

    def close(self) -> None:
        pass


def told(*messages: Message) -> list[Message]:
    """What a helper says to its leader, signs of life apart, until the leader is gone."""

    async def main() -> list[Message]:
        async def nobody(peer: PeerId) -> Stream:
            raise StreamClosed(f"{peer} is not there")

        loop = asyncio.get_running_loop()
        desk = Desk(
            me=H,
            timeouts=RoundTimeouts(),
            silence=Silence(loop.time, 5.0),
            seats=Seats(),
            verdicts=make_verdicts(make_ports(FakeNetwork().join(H))),
            open=nobody,
            keep_stream=lambda stream: None,
            reach=lambda phase, epoch: None,
        )
        leader = Leader(*messages)
        with pytest.raises(NetworkError):
            await Participation(GROUP, cast(Session, Work()), desk).run(cast(Stream, leader))
        return [message for message in leader.heard if message.kind != "working"]

    return run(main())


def halt(generation: int, *broken: int) -> Message:
    return Message("halt", {"generation": generation, "gone": [B], "broken": list(broken)})


def mend(generation: int, division: Division) -> Message:
    return Message("mend", {"generation": generation, "jobs": division.to_rows()})


MENDED = cast(Division, DIVISION.mended([1], {}, {A: 1.0, H: 1.0}))


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
