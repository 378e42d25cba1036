"""Leaders that tell of rounds that never were: nobody believes them, they are named, and the true round goes on."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from collab.averaging.agreement import CommitRecord
from collab.averaging.ballots import Ballot, Electorate
from collab.averaging.base import Aborted, Committed, Outcome, Superseded
from collab.averaging.certificates import Certificate, Certified, ballot_paper
from collab.averaging.messages import ROUND_PROTOCOL, VERDICT_PROTOCOL
from collab.averaging.timeouts import FIRST
from collab.net.base import Stream
from collab.net.wire import Message
from collab.types import Lineage, PeerId
from tests.averaging.certifying import FINGERPRINT, certify, refusals
from tests.averaging.swarm import L, Rounds, random_vectors
from tests.averaging.test_round import WEIGHTS, check_committed
from tests.fakes import FakeKeys, FakeNetwork, run

HELPER, LIAR = PeerId("helper"), PeerId("zz-liar")
Fields = dict[str, Any]
Lie = Callable[[Certified], Fields]
"""Makes what is told of a true record."""


def false(record: CommitRecord) -> CommitRecord:
    """A round that nobody was in, which therefore nobody can compare with what it holds."""
    return replace(record, round_id="never was")


def without_proof(true: Certified) -> Fields:
    return {"record": false(true.record).to_fields()}


def with_the_proof_of_another(true: Certified) -> Fields:
    return {"record": false(true.record).to_fields(), "certificate": true.certificate.to_fields()}


def with_votes_that_the_leader_signed_itself(true: Certified) -> Fields:
    record, electors, ballot = false(true.record), true.certificate.electors, true.certificate.ballot
    signature = FakeKeys(HELPER).sign(ballot_paper(FINGERPRINT, Electorate(electors), ballot, record))
    forged = Certificate.of(ballot, Electorate(electors), dict.fromkeys(electors, signature))
    return Certified(record, forged).to_fields()


def with_its_own_vote_only(true: Certified) -> Fields:
    return certify(false(true.record), true.certificate.electors, voters=(HELPER,)).to_fields()


def with_itself_as_the_only_elector(true: Certified) -> Fields:
    return certify(false(true.record), (HELPER,)).to_fields()


def with_friends_as_electors(true: Certified) -> Fields:
    return certify(false(true.record), (HELPER, LIAR)).to_fields()


async def begun(network: FakeNetwork) -> Rounds:
    """Three trainers and a helper that leads."""
    rounds = Rounds(network, "helper")
    await rounds.add_auxiliary("helper")
    for name in "abc":
        await rounds.add_trainer(name)
    return rounds


def refused_by(rounds: Rounds, name: str) -> set[tuple[str, str]]:
    """Whom a peer has caught at what."""
    return {(event.peer, event.reason) for event in refusals(rounds.ports[name])}


LIES = [
    (without_proof, "no_certificate"),
    (with_the_proof_of_another, "not_signed"),
    (with_votes_that_the_leader_signed_itself, "not_signed"),
    (with_its_own_vote_only, "too_few_votes"),
    (with_itself_as_the_only_elector, "electors_left_out"),
]


@pytest.mark.parametrize(("lie", "reason"), [*LIES, (with_friends_as_electors, "other_electors")])
def test_a_commit_of_a_round_that_never_was_is_refused_and_the_true_one_found(lie: Lie, reason: str) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = await begun(network)

            def tamper(sender: PeerId, to: PeerId, protocol: str, message: Message) -> Message:
                if (sender, to, message.kind) == (HELPER, PeerId("c"), "commit"):
                    return Message("commit", lie(Certified.from_message(message)))
                return message

            network.tamper = tamper
            vectors = random_vectors("abc", 100)
            check_committed(await rounds.average(vectors, WEIGHTS), vectors, WEIGHTS)
            assert ("helper", reason) in refused_by(rounds, "c")

    run(main())


def lineage_after(outcomes: dict[str, Outcome]) -> Lineage:
    (lineage,) = {outcome.lineage for outcome in outcomes.values() if isinstance(outcome, Committed)}
    return lineage


@pytest.mark.parametrize(
    ("electors", "voters", "reason"),
    [
        (("zz-liar",), ("zz-liar",), "other_electors"),
        (("helper", "a", "b", "c"), ("helper",), "too_few_votes"),
        (("helper",), ("helper",), "electors_left_out"),
        (("c", "helper"), ("c", "helper"), "other_electors"),
    ],
)
def test_who_is_told_that_the_step_was_taken_without_it_wants_proof(
    electors: tuple[PeerId, ...], voters: tuple[PeerId, ...], reason: str
) -> None:
    """Even of a liar that has the helper's own vote."""

    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = await begun(network)
            lineage = lineage_after(await rounds.average(random_vectors("abc", 100), WEIGHTS))

            async def lie(stream: Stream) -> None:
                await stream.receive(timeout_s=1)
                record = CommitRecord(
                    round_id="never was",
                    epoch=1,
                    lineage=lineage,
                    contributors=((LIAR, 1.0),),
                    members=(LIAR,),
                    pieces=((LIAR, 0, 100),),
                    digests=("0" * 64,),
                )
                fields = {"text": "too late", **certify(record, electors, voters=voters).to_fields()}
                await stream.send(Message("superseded", fields), timeout_s=1)

            await network.join(LIAR).serve(ROUND_PROTOCOL, lie)
            rounds.leaders = [LIAR, HELPER]
            vectors = random_vectors("abc", 100)
            outcomes = await rounds.average(vectors, WEIGHTS, epoch=1, lineage=lineage)
            check_committed(outcomes, vectors, WEIGHTS)
            assert all(("zz-liar", reason) in refused_by(rounds, name) for name in "abc")

    run(main())


@pytest.mark.parametrize(("lie", "reason"), LIES)
def test_a_member_in_doubt_does_not_believe_a_lie_and_hears_the_truth_of_the_next(lie: Lie, reason: str) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = await begun(network)

            def tamper(sender: PeerId, to: PeerId, protocol: str, message: Message) -> Message | None:
                if (to, message.kind) == (PeerId("c"), "commit"):
                    return None  # the stream breaks, of the leader and of successors that know what became of the round
                if (to, protocol, message.kind) == (PeerId("c"), VERDICT_PROTOCOL, "committed") and sender == HELPER:
                    return Message("committed", lie(Certified.from_message(message)))
                return message

            network.tamper = tamper
            vectors = random_vectors("abc", 100)
            check_committed(await rounds.average(vectors, WEIGHTS), vectors, WEIGHTS)
            assert ("helper", reason) in refused_by(rounds, "c")

    run(main())


@pytest.mark.parametrize("signature", [b"", bytes(64)])
def test_who_does_not_sign_its_vote_has_not_voted(signature: bytes) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = await begun(network)

            def tamper(sender: PeerId, to: PeerId, protocol: str, message: Message) -> Message:
                if (sender, message.kind) == (PeerId("b"), "vote"):
                    return Message("vote", {**message.fields, "signature": signature})
                return message

            network.tamper = tamper
            outcomes = await rounds.average(random_vectors("abc", 100), WEIGHTS)
            assert isinstance(outcomes["b"], Superseded)  # the others went on without it
            assert isinstance(outcomes["a"], Committed)
            assert isinstance(outcomes["c"], Committed)
            await asyncio.sleep(FIRST.thanks_s)  # then the leader's round is over, too
            assert ("b", "not_signed") in refused_by(rounds, "helper")
            for _, _, _, message in network.sent:
                if message.kind == "commit":
                    assert "b" not in Certified.from_message(message).certificate.voters

    run(main())


def test_without_signatures_of_a_quorum_nothing_is_committed() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = await begun(network)

            def tamper(sender: PeerId, to: PeerId, protocol: str, message: Message) -> Message:
                if sender in ("a", "b") and message.kind == "vote":
                    return Message("vote", {**message.fields, "signature": bytes(64)})
                return message

            network.tamper = tamper
            outcomes = await rounds.average(random_vectors("abc", 100), WEIGHTS)
            assert all(isinstance(outcome, Aborted) for outcome in outcomes.values())
            assert not [message for _, _, _, message in network.sent if message.kind == "commit"]

    run(main())


def test_a_record_that_a_successor_finds_voted_is_proved_by_the_votes_of_its_own_ballot() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = await begun(network)

            def die(sender: PeerId, to: PeerId, protocol: str, message: Message) -> Message | None:
                return None if sender == HELPER and message.kind == "commit" else message

            network.tamper = die
            vectors = random_vectors("abc", 100)
            check_committed(await rounds.average(vectors, WEIGHTS), vectors, WEIGHTS)
            commits = [(sender, message) for sender, _, _, message in network.sent if message.kind == "commit"]
            assert commits
            for sender, message in commits:
                certificate = Certified.from_message(message).certificate
                assert certificate.ballot == Ballot(2, sender)
                assert sender != HELPER

    run(main())


def test_a_proved_record_is_told_on_with_its_proof() -> None:
    """By a peer that was told of it, and was no member of the round."""

    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = await begun(network)
            await rounds.add_trainer("d")
            rounds.trainers.discard(PeerId("d"))
            rounds.behind.add(PeerId("d"))
            record = lineage_record(await rounds.average(random_vectors("abc", 100), WEIGHTS))
            assert await rounds.engines["d"].what_followed([PeerId("a")], 0, L) == record
            assert await rounds.engines["b"].what_followed([PeerId("d")], 0, L) == record

    run(main())


def lineage_record(outcomes: dict[str, Outcome]) -> CommitRecord:
    (record,) = {outcome.record for outcome in outcomes.values() if isinstance(outcome, Committed)}
    return record
