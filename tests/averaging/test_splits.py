"""Two decisions for one history, which only liars can bring about, or an assumption that did not hold."""

import asyncio
from dataclasses import replace
from typing import cast

from collab.averaging.agreement import CommitRecord
from collab.averaging.base import Committed, Superseded
from collab.averaging.certificates import ballot_paper
from collab.averaging.conduct import SPLIT, Conductor
from collab.averaging.course import Course
from collab.averaging.electors import electorate_of
from collab.averaging.messages import ROUND_PROTOCOL
from collab.averaging.seats import seat_to_fields
from collab.averaging.silence import Silence
from collab.averaging.timeouts import FIRST, MeasuredTimeouts
from collab.metrics.records import Notice
from collab.net.base import Stream
from collab.net.wire import Message
from collab.types import PeerId
from tests.averaging.certifying import FINGERPRINT, certify, make_notary
from tests.averaging.course_lab import A, B, C, make_group, promised, report_of
from tests.averaging.records import make_record
from tests.averaging.swarm import L, Rounds, random_vectors
from tests.fakes import FakeKeys, FakeNetwork, make_ports, run

LIAR = PeerId("zz-liar")
OTHER = make_record(round_id="other", lineage=L)


def test_who_holds_one_round_and_hears_of_another_one_says_so_and_goes_on_with_the_swarm() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "a")
            for name in "ab":
                await rounds.add_trainer(name)
            first = (await rounds.average(random_vectors("ab", 8)))["b"]
            assert isinstance(first, Committed)

            async def lie(stream: Stream) -> None:
                await stream.receive(timeout_s=1)
                await stream.send(Message("superseded", {"text": "over", **certify(OTHER).to_fields()}), timeout_s=1)

            await network.join(LIAR).serve(ROUND_PROTOCOL, lie)
            rounds.leaders = [LIAR]
            outcome = (await rounds.average(random_vectors("b", 8)))["b"]
            assert outcome == Superseded(text=outcome.text, record=OTHER)
            notices = [event for event in rounds.observers["b"].events if isinstance(event, Notice)]
            assert [notice.is_problem for notice in notices] == [True]
            assert "two rounds were committed for epoch 0" in notices[0].text
            assert notices[0].hint
            known = await rounds.engines["a"].what_followed([PeerId("b")], 0, L)
            assert known == first.record, "what it holds stays"
            rounds.leaders = [PeerId("a")]
            following = await rounds.average(random_vectors("ab", 8), epoch=1, lineage=first.lineage)
            assert {type(outcome) for outcome in following.values()} == {Committed}

    run(main())


class Voter:
    """A member's stream: it reports, and votes as it is told to, whatever the leader asks."""

    def __init__(self, peer: PeerId, course: Course, decided: CommitRecord | None = None) -> None:
        self._keys = FakeKeys(peer)
        self._report, self._decided = report_of(course.division), decided
        self._asked: asyncio.Queue[Message] = asyncio.Queue()

    async def send(self, message: Message, *, timeout_s: float) -> None:
        if message.kind in ("prepare", "commit"):
            self._asked.put_nowait(message)

    async def receive(self, *, timeout_s: float) -> Message:
        if self._report is not None:
            fields = {"generation": 0, "digests": list(self._report.digests), "gaps": []}
            self._report = None
            return Message("done", fields | {"seat": seat_to_fields(promised())})
        asked = await self._asked.get()
        if asked.kind == "commit":
            return Message("thanks")
        await asyncio.sleep(0.1)  # so that all votes come at once
        if self._decided is not None:
            proof = certify(self._decided, (A, B, C)).to_fields()["certificate"]
            seat = seat_to_fields(promised().learn(self._decided))
            return Message("vote", {"seat": seat, "certificate": proof, "signature": b""})
        group, record = make_group(), CommitRecord.from_fields(asked.get("record", dict))
        paper = ballot_paper(FINGERPRINT, electorate_of(group), group.ballot, record)
        seat = seat_to_fields(promised().accept(group.ballot, record))
        return Message("vote", {"seat": seat, "signature": self._keys.sign(paper)})

    def close(self) -> None:
        pass


def test_a_leader_whose_quorum_voted_commits_though_one_knows_of_another_decision() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            course = Course.of(make_group())
            other = replace(OTHER, lineage=course.group.lineage)
            voters = {A: Voter(A, course), B: Voter(B, course), C: Voter(C, course, decided=other)}
            streams = {peer: cast(Stream, voter) for peer, voter in voters.items()}
            clock = asyncio.get_running_loop().time
            silence, notary = Silence(clock, 3.0), make_notary(make_ports(network.join(A)))
            timeouts = MeasuredTimeouts(clock, FIRST)
            record = await Conductor(course, streams, timeouts, silence, notary).run(lambda certified: None)
            assert isinstance(record, CommitRecord)
            assert record.round_id == "r"
            assert course.gone.keys() == {C}
            assert course.gone[C][0] == SPLIT

    run(main())
