"""What a leader takes for a vote, and what it passes on as proof."""

import pytest

from collab.averaging.ballots import Acceptor, Ballot
from collab.averaging.certificates import check
from collab.averaging.electors import electorate_of
from collab.averaging.seats import RecordSeat, seat_to_fields
from collab.averaging.steps import Prepare
from collab.averaging.votes import Votes
from collab.errors import BadCertificate, BadMessage
from collab.net.wire import Message
from tests.averaging.certifying import FINGERPRINT, certify, make_notary
from tests.averaging.course_lab import A, B, C, D, make_group
from tests.averaging.records import make_record
from tests.fakes import FakeKeys, FakeNetwork, make_ports, run, through_the_wire

GROUP = make_group()  # of A, B, C
BALLOT = Ballot(2, A)
RECORD = make_record(members=(A, B, C))
OTHER = make_record(round_id="other", members=(A, B, C))
ELECTORATE = electorate_of(GROUP)
NOTARY = make_notary(make_ports(FakeNetwork().join(A)))
PAPER = NOTARY.ballot_paper(ELECTORATE, BALLOT, RECORD)


def make_votes() -> Votes:
    votes = Votes(GROUP, NOTARY)
    votes.ask_for(Prepare(BALLOT, RECORD))
    return votes


def answer(seat: RecordSeat | None, signature: object = b"", certificate: object = None) -> Message:
    return Message("vote", {"seat": seat_to_fields(seat), "signature": signature, "certificate": certificate or {}})


FOR_IT: RecordSeat = Acceptor().accept(BALLOT, RECORD)
AGAINST: RecordSeat = Acceptor().promise(Ballot(9, C))
FOR_ANOTHER: RecordSeat = Acceptor().accept(Ballot(1, B), OTHER)


def test_signed_votes_become_the_proof() -> None:
    async def main() -> None:
        votes = make_votes()
        for peer in (C, B):
            assert await votes.voter_of(peer, answer(FOR_IT, FakeKeys(peer).sign(PAPER))) == FOR_IT
        assert await votes.voter_of(A, answer(AGAINST)) == AGAINST
        assert await votes.voter_of(D, answer(None)) is None
        certified = votes.certify(RECORD)
        assert certified.certificate.voters == {B, C}
        check(certified, FINGERPRINT, FakeKeys(A).is_signed_by)

    run(main())


@pytest.mark.parametrize("signature", [b"", bytes(64), FakeKeys(C).sign(PAPER), FakeKeys(B).sign(PAPER + b"."), "text"])
def test_a_vote_that_its_voter_has_not_signed_is_none(signature: object) -> None:
    async def main() -> None:
        with pytest.raises(BadMessage):
            await make_votes().voter_of(B, answer(FOR_IT, signature))

    run(main())


def test_an_answer_that_is_no_vote_for_what_was_asked_needs_no_signature_and_proves_nothing() -> None:
    async def main() -> None:
        votes = make_votes()
        for seat in (FOR_ANOTHER, AGAINST):
            assert await votes.voter_of(B, answer(seat, FakeKeys(B).sign(PAPER))) == seat
        assert await votes.voter_of(D, answer(FOR_IT, bytes(64))) == FOR_IT  # no elector
        assert not votes.certify(RECORD).certificate.votes

    run(main())


def test_what_an_elector_says_was_decided_is_believed_with_its_proof_only() -> None:
    decided = FOR_ANOTHER.learn(OTHER)
    proved = certify(OTHER, (A, B, C), voters=(B, C), ballot=Ballot(1, B))

    async def main() -> None:
        for certificate in (
            {},
            certify(RECORD, (A, B, C)).certificate.to_fields(),
            certify(OTHER, (A, B, C), voters=(C,)).certificate.to_fields(),
            certify(OTHER, (D,)).certificate.to_fields(),
        ):
            with pytest.raises(BadCertificate):
                await make_votes().voter_of(B, answer(decided, certificate=certificate))
            with pytest.raises(BadCertificate):
                await make_votes().seat_of(B, answer(decided, certificate=certificate))
        votes = make_votes()
        assert await votes.seat_of(B, answer(decided, certificate=proved.certificate.to_fields())) == decided
        assert votes.certify(OTHER) == proved

    run(main())


def test_nothing_is_certified_that_nobody_was_asked_for() -> None:
    with pytest.raises(ValueError, match="nobody has voted"):
        Votes(GROUP, NOTARY).certify(RECORD)


def test_the_record_that_was_asked_for_is_not_read_again_in_each_vote() -> None:
    async def main() -> None:
        votes = make_votes()
        for seat, record in ((FOR_IT, RECORD), (FOR_ANOTHER, OTHER)):
            heard = await votes.voter_of(B, through_the_wire(answer(seat, FakeKeys(B).sign(PAPER))))
            assert heard is not None
            assert heard.vote is not None
            assert heard.vote.value == record
            assert (heard.vote.value is record) == (record is RECORD)

    run(main())
