"""Whose certificates a peer believes: that depends on what it knows of those who decide."""

from collections.abc import Sequence

import pytest

from collab.averaging.ballots import Electorate
from collab.averaging.timeouts import FIRST
from collab.errors import BadCertificate, BadMessage
from collab.net.wire import Message
from collab.types import PeerId
from tests.averaging.certifying import BALLOT, certify, make_notary, refusals
from tests.averaging.records import make_record
from tests.fakes import FakeNetwork, make_ports, run, through_the_wire

A, B, C, D, E, ME = (PeerId(name) for name in ("a", "b", "c", "d", "e", "me"))
ALL = (A, B, C, D, E)
RECORD = make_record(members=ALL)
INSTANCE = RECORD.epoch, RECORD.lineage
TELLER = PeerId("teller")


def verdict_on(
    message: Message,
    trusted: Sequence[PeerId] | None,
    *,
    present: Sequence[PeerId] = (),
    missed_s: float = 0.0,
    instance: object = INSTANCE,
    vouched: Sequence[PeerId] = (),
) -> str:
    """The reason for which a message is not believed; "" if it is. Every refusal is seen, and names the teller."""

    async def main() -> str:
        async with FakeNetwork() as network:
            ports = make_ports(network.join(ME))
            notary = make_notary(ports, present=present, missed_s=missed_s, vouched=vouched)
            electorate = None if trusted is None else Electorate(tuple(trusted))
            try:
                certified = await notary.believe(TELLER, message, instance, electorate)  # type: ignore[arg-type]
            except BadMessage:
                (refused,) = refusals(ports)
                assert (refused.peer, refused.epoch) == (TELLER, INSTANCE[0])
                return refused.reason
            assert certified.record == RECORD
            assert not refusals(ports)
            return ""

    return run(main())


def voted(
    voters: Sequence[PeerId], trusted: Sequence[PeerId] | None, *, of: Sequence[PeerId], present: Sequence[PeerId] = ()
) -> str:
    return verdict_on(Message("commit", certify(RECORD, of, voters=voters).to_fields()), trusted, present=present)


def test_a_quorum_of_those_who_decide_is_believed() -> None:
    assert voted((A, B, C), ALL, of=ALL) == ""
    assert voted((C, D, E), ALL, of=ALL) == ""


def test_a_quorum_of_those_who_decide_is_believed_whomever_the_voters_took_for_electors() -> None:
    """An elector said goodbye: some had heard it when they voted, others not."""
    assert voted((B, C, D), (A, B, C, D), of=(*ALL, ME), present=ALL) == "too_few_votes"
    assert voted((A, B, C), (A, B, C, D), of=ALL, present=ALL) == ""
    assert voted((B, C, D), ALL, of=(B, C, D), present=ALL) == "electors_left_out"


def test_fewer_are_believed_if_nobody_of_the_others_is_here() -> None:
    assert voted((D, E), ALL, of=(D, E)) == ""
    assert voted((D, E), ALL, of=(D, E), present=(D, E)) == ""
    assert voted((D, E), ALL, of=(D, E), present=(C, D, E)) == "electors_left_out"


def test_who_was_left_out_itself_believes_the_others() -> None:
    assert voted((A, B), (ME, *ALL), of=(A, B), present=(ME, A, B)) == ""
    assert voted((A, B), (ME, *ALL), of=(A, B), present=(ME, A, B, C)) == "electors_left_out"


@pytest.mark.parametrize("named", [(TELLER,), (D, E, TELLER), (E, D), (TELLER, D, E)])
def test_strangers_and_another_order_are_not_those_who_decide(named: tuple[PeerId, ...]) -> None:
    assert voted(named, ALL, of=named) == "other_electors"


def test_strangers_are_believed_when_all_others_who_decide_are_gone_but_never_by_who_decides_alone() -> None:
    message = Message("commit", certify(RECORD, (D, E)).to_fields())
    long_s = FIRST.reform_s
    assert verdict_on(message, (A, B), missed_s=long_s) == ""
    assert verdict_on(message, (ME, A), missed_s=long_s) == "", "we were cut off, and they have gone on"
    assert verdict_on(message, (A, B), missed_s=long_s / 3) == "other_electors"
    assert verdict_on(message, (A, B), missed_s=long_s, present=(B,)) == "other_electors"
    assert verdict_on(message, (ME,), missed_s=long_s) == "other_electors"


def test_a_certificate_of_others_is_believed_by_a_newcomer_for_nobody_s_word() -> None:
    """A backbone that was started again votes for what it cannot judge, and tells of it."""
    message = Message("commit", certify(RECORD, (C, D, E)).to_fields())
    assert verdict_on(message, (A, B), present=(D, E), vouched=(C, TELLER)) == "other_electors"


def test_who_does_not_know_those_who_decide_can_only_ask_for_the_voters_own_word() -> None:
    assert voted((A, B), None, of=(A, B, C)) == ""
    assert voted((TELLER,), None, of=(TELLER,)) == ""
    assert voted((A,), None, of=(A, B, C)) == "too_few_votes"


def test_a_certificate_of_another_run_proves_nothing() -> None:
    other = certify(RECORD, ALL, fingerprint="another run")
    assert verdict_on(Message("commit", other.to_fields()), ALL) == "not_signed"


@pytest.mark.parametrize("instance", [(1, RECORD.lineage), (0, "another history")])
def test_a_record_of_another_step_is_no_answer(instance: object) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            ports = make_ports(network.join(ME))
            message = Message("commit", certify(RECORD, ALL).to_fields())
            with pytest.raises(BadCertificate):
                await make_notary(ports).believe(TELLER, message, instance, Electorate(ALL))  # type: ignore[arg-type]
            assert [refused.reason for refused in refusals(ports)] == ["other_round"]

    run(main())


def test_a_record_without_proof_and_a_malformed_one_are_told_apart() -> None:
    assert verdict_on(Message("commit", {"record": RECORD.to_fields()}), ALL) == "no_certificate"
    assert verdict_on(Message("commit", {"record": RECORD.to_fields(), "certificate": {}}), ALL) == "no_certificate"
    assert verdict_on(Message("commit", {"record": {}}), ALL) == "bad_record"
    malformed = {**certify(RECORD, ALL).to_fields(), "certificate": {"votes": []}}
    assert verdict_on(Message("commit", malformed), ALL) == "bad_record"


@pytest.mark.parametrize(
    ("named", "present", "is_refused"),
    [
        (ALL, ALL, False),
        ((A, B, C), (A, B, C), False),
        ((A, B, C), (A, B, C, D), True),
        ((B, A, C, D, E), ALL, True),
        ((*ALL, TELLER), ALL, True),
        ((), ALL, True),
    ],
)
def test_a_leader_may_leave_out_electors_of_whom_nobody_has_heard_and_change_nothing_else(
    named: tuple[PeerId, ...], present: tuple[PeerId, ...], is_refused: bool
) -> None:
    async def main() -> bool:
        async with FakeNetwork() as network:
            notary = make_notary(make_ports(network.join(ME)), present=present)
            try:
                await notary.check_electors(named, Electorate(ALL), INSTANCE)
            except BadCertificate:
                return True
            return False

    assert run(main()) == is_refused


def test_the_record_that_we_voted_for_is_not_read_again_when_it_is_decided() -> None:
    electorate, other = Electorate(ALL), make_record(round_id="other", members=ALL)

    async def main() -> None:
        async with FakeNetwork() as network:
            notary = make_notary(make_ports(network.join(ME)))
            notary.sign(electorate, BALLOT, RECORD)
            for record in (RECORD, other):
                message = through_the_wire(Message("commit", certify(record, ALL).to_fields()))
                certified = await notary.believe(TELLER, message, INSTANCE, electorate)
                assert certified.record == record
                assert (certified.record is record) == (record is RECORD)

    run(main())
