"""Signed votes, and what they prove; with real keys."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from collab.averaging.agreement import CommitRecord
from collab.averaging.ballots import Ballot, Electorate
from collab.averaging.certificates import Certificate, Certified, ballot_paper, check
from collab.averaging.messages import MAX_MEMBERS
from collab.errors import BadCertificate, BadMessage
from collab.net.wire import Message
from collab.swarm.identity import Identity, is_signed_by
from collab.types import Lineage, PeerId
from tests.averaging.records import make_record
from tests.fakes import through_the_wire

KEYS = [Identity.from_seed(bytes([index]) * 32) for index in range(5)]
A, B, C, D, E = (key.peer_id for key in KEYS)
KEY_OF = dict(zip((A, B, C, D, E), KEYS, strict=True))
RUN = "run"
BALLOT = Ballot(3, A)
RECORD = make_record(epoch=4, members=(A, B, C))


def vote(
    peer: PeerId,
    record: CommitRecord = RECORD,
    *,
    electors: Sequence[PeerId] = (A, B, C),
    ballot: Ballot = BALLOT,
    fingerprint: str = RUN,
) -> tuple[PeerId, bytes]:
    return peer, KEY_OF[peer].sign(ballot_paper(fingerprint, Electorate(tuple(electors)), ballot, record))


def proof(*votes: tuple[PeerId, bytes], electors: Sequence[PeerId] = (A, B, C)) -> Certified:
    return Certified(RECORD, Certificate(ballot=BALLOT, electors=tuple(electors), votes=votes))


def refused_for(certified: Certified) -> str:
    """Why it is not believed; "" if it is."""
    try:
        check(certified, RUN, is_signed_by)
    except BadCertificate as error:
        return error.reason
    return ""


@pytest.mark.parametrize("votes", [(vote(A), vote(B)), (vote(C), vote(B)), (vote(A), vote(B), vote(C))])
def test_a_quorum_of_signed_votes_proves_a_record(votes: tuple[tuple[PeerId, bytes], ...]) -> None:
    assert refused_for(proof(*votes)) == ""


def test_of_an_even_electorate_half_proves_it_with_its_first_member_only() -> None:
    four = (A, B, C, D)
    assert refused_for(proof(*(vote(peer, electors=four) for peer in (A, D)), electors=four)) == ""
    assert refused_for(proof(*(vote(peer, electors=four) for peer in (B, D)), electors=four)) == "too_few_votes"


def flipped(signature: bytes) -> bytes:
    return bytes([signature[0] ^ 1]) + signature[1:]


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ((B, vote(C)[1]), "not_signed"),
        ((B, bytes(64)), "not_signed"),
        ((B, flipped(vote(B)[1])), "not_signed"),
        (vote(B, replace(RECORD, digests=("other",))), "not_signed"),
        (vote(B, replace(RECORD, contributors=((A, 2.0),))), "not_signed"),
        (vote(B, replace(RECORD, round_id="other")), "not_signed"),
        (vote(B, replace(RECORD, epoch=5)), "not_signed"),
        (vote(B, replace(RECORD, lineage=Lineage("other"))), "not_signed"),
        (vote(B, ballot=Ballot(2, A)), "not_signed"),
        (vote(B, ballot=Ballot(3, B)), "not_signed"),
        (vote(B, fingerprint="another run"), "not_signed"),
        (vote(B, electors=(A, B)), "not_signed"),
        (vote(B, electors=(A, B, C, D, E)), "not_signed"),
        (vote(B, electors=(B, A, C)), "not_signed"),
        (vote(D), "no_elector"),
        (vote(A), "vote_repeated"),
    ],
)
def test_a_vote_counts_only_for_what_it_was_given_for(second: tuple[PeerId, bytes], reason: str) -> None:
    assert refused_for(proof(vote(A), second)) == reason


def test_too_few_votes_prove_nothing() -> None:
    assert refused_for(proof(vote(A))) == "too_few_votes"
    assert refused_for(proof(vote(C))) == "too_few_votes"


def test_electors_whose_ids_hold_no_key_have_signed_nothing() -> None:
    electors = (PeerId("a"), PeerId("b"))
    votes = tuple((peer, bytes(64)) for peer in electors)
    assert refused_for(proof(*votes, electors=electors)) == "not_signed"


def test_a_signature_over_anything_but_a_vote_is_none() -> None:
    """A peer signs its records in the directory and its invites with the same key."""
    paper = ballot_paper(RUN, Electorate((A, B, C)), BALLOT, RECORD)
    assert paper.startswith(b'["collab/vote/1","run",4,"l",')
    assert RECORD.next_lineage().encode() in paper


def test_as_few_votes_as_decide_are_passed_on() -> None:
    signatures = dict(map(vote, (C, B, A)))
    certificate = Certificate.of(BALLOT, Electorate((A, B, C)), signatures)
    assert [peer for peer, _ in certificate.votes] == [A, B]
    del signatures[A]
    certificate = Certificate.of(BALLOT, Electorate((A, B, C)), signatures)
    assert [peer for peer, _ in certificate.votes] == [B, C]


def test_record_and_certificate_survive_the_wire() -> None:
    certified = proof(vote(A), vote(B))
    assert Certified.from_message(through_the_wire(Message("commit", certified.to_fields()))) == certified


def test_the_record_of_the_largest_group_and_its_proof_fit_into_one_message() -> None:
    peers = tuple(PeerId(f"{index:052d}") for index in range(MAX_MEMBERS))
    votes = tuple((peer, bytes(64)) for peer in peers[: MAX_MEMBERS // 2 + 1])
    record = replace(
        make_record(epoch=4, members=peers),
        contributors=tuple((peer, 1000.5) for peer in peers),
        pieces=tuple((peer, index, index + 1) for index, peer in enumerate(peers)),  # each of them reduces
        digests=("d" * 64,) * MAX_MEMBERS,
    )
    certified = Certified(record, Certificate(ballot=BALLOT, electors=peers, votes=votes))
    assert Certified.from_message(through_the_wire(Message("commit", certified.to_fields()))) == certified


MANY = [f"peer-{index}" for index in range(MAX_MEMBERS + 1)]
FIELDS = proof(vote(A), vote(B)).certificate.to_fields()
MALFORMED: list[Callable[[dict[str, Any]], Any]] = [
    *[lambda fields, name=name: fields.pop(name) for name in FIELDS],
    *[lambda fields, name=name: fields.update({name: "all"}) for name in FIELDS],
    *[lambda fields, name=name: fields.update({name: []}) for name in FIELDS],
    lambda fields: fields.update(ballot=[0, A]),
    lambda fields: fields.update(ballot=[1 << 53, A]),
    lambda fields: fields.update(ballot=[1.5, A]),
    lambda fields: fields.update(electors=[A, B, B]),
    lambda fields: fields.update(electors=[A, B, 3]),
    lambda fields: fields.update(electors=MANY),
    lambda fields: fields.update(votes=[[A]]),
    lambda fields: fields.update(votes=[[A, "text"]]),
    lambda fields: fields.update(votes=[[1, bytes(64)]]),
    lambda fields: fields.update(votes=[[A, bytes(63)], [B, bytes(64)]]),
    lambda fields: fields.update(votes=[[A, bytes(65)], [B, bytes(64)]]),
    lambda fields: fields.update(votes=[[A, bytes(64)]] * 3),
]


@pytest.mark.parametrize("spoil", MALFORMED)
def test_malformed_certificates_are_refused_before_anything_is_checked(spoil: Callable[[dict[str, Any]], Any]) -> None:
    fields = dict(FIELDS)
    spoil(fields)
    with pytest.raises(BadMessage):
        Certificate.from_fields(fields)


@pytest.mark.parametrize("certificate", [{}, None, [], "proof"])
def test_a_record_without_a_certificate_is_refused(certificate: object) -> None:
    fields = {"record": RECORD.to_fields(), "certificate": certificate}
    with pytest.raises(BadMessage):
        Certified.from_message(Message("commit", fields))
    with pytest.raises(BadMessage):
        Certified.from_message(Message("commit", {"record": RECORD.to_fields()}))
