"""What followed a history: remembered, and asked for when in doubt."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from collab.averaging.agreement import CommitRecord
from collab.averaging.ballots import Electorate
from collab.averaging.messages import VERDICT_PROTOCOL, Member
from collab.averaging.timeouts import FIRST
from collab.averaging.verdicts import REMEMBERED_ROUNDS, Verdicts
from collab.errors import BadCertificate
from collab.net.base import Stream
from collab.net.wire import Message
from collab.types import Lineage, PeerId
from tests.averaging.certifying import certify, make_verdicts, refusals
from tests.averaging.course_lab import make_group
from tests.averaging.records import X, Y, make_record
from tests.fakes import FakeNetwork, make_ports, run

L = Lineage("l")
LEADER = PeerId("leader")
NOBODY: frozenset[PeerId] = frozenset()


def record(epoch: int = 0) -> CommitRecord:
    return make_record(round_id=f"r{epoch}", epoch=epoch, lineage=L)


def verdicts(network: FakeNetwork, name: str) -> Verdicts:
    return make_verdicts(make_ports(network.join(name)))


def test_only_the_last_rounds_are_remembered() -> None:
    ours = verdicts(FakeNetwork(), "a")
    for epoch in range(REMEMBERED_ROUNDS + 5):
        ours.remember(certify(record(epoch)))
    known = [epoch for epoch in range(REMEMBERED_ROUNDS + 5) if ours.committed(epoch, L)]
    assert known == list(range(5, REMEMBERED_ROUNDS + 5))


def test_another_thread_is_told_the_rounds_while_more_are_remembered() -> None:
    ours = verdicts(FakeNetwork(), "a")
    later = [certify(record(epoch)) for epoch in range(10, 13)]

    class Slow:
        """The loop goes on while it is looked at."""

        @property
        def record(self) -> CommitRecord:
            ours.remember(later.pop())
            return record(3)

    looked_at: Any = Slow()
    ours._known[3, L] = looked_at
    ours.remember(certify(record(4)))
    assert [one.epoch for one in ours.known_records()] == [3, 4]


def test_a_committed_round_is_only_that_of_its_own_epoch_and_history() -> None:
    ours = verdicts(FakeNetwork(), "a")
    ours.remember(certify(record(3)))
    assert ours.committed(3, L) == certify(record(3))
    assert not ours.committed(4, L)
    assert not ours.committed(3, Lineage("other"))


def test_a_round_that_was_lost_with_everybody_is_forgotten() -> None:
    ours = verdicts(FakeNetwork(), "a")
    ours.remember(certify(record(3)))
    ours.forget(3, L)
    ours.forget(4, L)
    assert not ours.committed(3, L)


def test_the_round_that_led_to_a_history_is_found_by_it() -> None:
    ours = verdicts(FakeNetwork(), "a")
    ours.remember(certify(record(1)))
    assert ours.leading_to(record(1).next_lineage()) == record(1)
    assert ours.leading_to(record(2).next_lineage()) is None


def test_a_member_in_doubt_learns_the_record_from_whoever_has_it_and_else_who_did_not_answer() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            doubting, ignorant, witness = (verdicts(network, name) for name in "abc")
            await ignorant.serve()
            await witness.serve()
            witness.remember(certify(record(1)))
            peers = [PeerId("gone"), PeerId("b"), PeerId("c")]
            assert await doubting.ask(peers, 1, L) == (certify(record(1)), NOBODY)
            assert await doubting.ask(peers, 2, L) == (None, {PeerId("gone")})
            assert await doubting.ask([], 1, L) == (None, NOBODY)

    run(main())


def test_a_record_of_another_round_and_a_garbled_one_are_no_answer() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            garbled = {**certify(record(1)).to_fields(), "record": {"round_id": "r1", "epoch": float("inf")}}
            for name, fields in (("b", certify(record(7)).to_fields()), ("c", garbled)):

                async def lie(stream: Stream, fields: dict[str, object] = fields) -> None:
                    await stream.receive(timeout_s=1)
                    await stream.send(Message("committed", fields), timeout_s=1)

                await network.join(name).serve(VERDICT_PROTOCOL, lie)
            liars = frozenset((PeerId("b"), PeerId("c")))
            assert await verdicts(network, "a").ask(liars, 1, L) == (None, liars)

    run(main())


def without_proof(record: CommitRecord) -> dict[str, object]:
    return {"record": record.to_fields()}


def with_proof_of_another(record: CommitRecord) -> dict[str, object]:
    another = replace(record, digests=("true",))
    return {**certify(record).to_fields(), "certificate": certify(another).certificate.to_fields()}


def voted_by_too_few(record: CommitRecord) -> dict[str, object]:
    return certify(record, (X, Y, PeerId("z")), voters=(X,)).to_fields()


def voted_in_another_run(record: CommitRecord) -> dict[str, object]:
    return certify(record, fingerprint="g").to_fields()


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (without_proof, "no_certificate"),
        (with_proof_of_another, "not_signed"),
        (voted_by_too_few, "too_few_votes"),
        (voted_in_another_run, "not_signed"),
    ],
)
def test_a_lie_is_named_and_the_next_answer_counts(
    lie: Callable[[CommitRecord], dict[str, object]], reason: str
) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            told = asyncio.Event()

            async def tell_lies(stream: Stream) -> None:
                await stream.receive(timeout_s=1)
                await stream.send(Message("committed", lie(replace(record(1), round_id="never was"))), timeout_s=1)
                told.set()

            async def tell_the_truth(stream: Stream) -> None:
                await stream.receive(timeout_s=1)
                await told.wait()
                await asyncio.sleep(0.1)
                await stream.send(Message("committed", certify(record(1)).to_fields()), timeout_s=1)

            await network.join("b").serve(VERDICT_PROTOCOL, tell_lies)
            await network.join("c").serve(VERDICT_PROTOCOL, tell_the_truth)
            ports = make_ports(network.join("a"))
            ours = make_verdicts(ports)
            assert await ours.ask([PeerId("b"), PeerId("c")], 1, L) == (certify(record(1)), NOBODY)
            assert ours.committed(1, L) == certify(record(1))
            assert [(event.peer, event.reason) for event in refusals(ports)] == [("b", reason)]

    run(main())


def test_who_decides_is_known_from_the_round_that_made_the_history_or_from_the_round_one_is_in() -> None:
    """A liar with a few keys of its own is believed by nobody who knows either."""
    maker = replace(record(1), members=(X, Y, PeerId("z")))
    following = make_record(epoch=2, lineage=maker.next_lineage())
    of_nobody = certify(following, (PeerId("sybil-1"), PeerId("sybil-2")))

    async def main() -> None:
        async with FakeNetwork() as network:

            async def lie(stream: Stream) -> None:
                await stream.receive(timeout_s=1)
                await stream.send(Message("committed", of_nobody.to_fields()), timeout_s=1)

            await network.join("b").serve(VERDICT_PROTOCOL, lie)
            question = [PeerId("b")], 2, maker.next_lineage()
            doubting = verdicts(network, "a")
            assert await doubting.ask(*question, Electorate((X, Y))) == (None, {PeerId("b")})
            doubting.remember(certify(maker))
            assert await doubting.ask(*question) == (None, {PeerId("b")})
            assert await verdicts(network, "newcomer").ask(*question) == (of_nobody, NOBODY)

    run(main())


def test_who_does_not_say_whether_it_knows_who_made_a_history_is_told_from_who_does_not_know() -> None:
    maker = make_record(members=(X, Y))

    async def main() -> None:
        async with FakeNetwork() as network:

            async def say_nothing(stream: Stream) -> None:
                await asyncio.sleep(3600)

            async def lie(stream: Stream) -> None:
                await stream.receive(timeout_s=1.0)
                await stream.send(Message("made", {"record": record(7).to_fields()}), timeout_s=1.0)

            await network.join("silent").serve(VERDICT_PROTOCOL, say_nothing)
            await network.join("liar").serve(VERDICT_PROTOCOL, lie)
            ignorant, knowing, ours = (verdicts(network, name) for name in ("ignorant", "knowing", "a"))
            for each in (ignorant, knowing):
                await each.serve()
            knowing.remember(certify(maker))
            asked = [PeerId(name) for name in ("silent", "liar", "ignorant", "a")]
            assert await ours.learn_maker(maker.next_lineage(), asked) == {PeerId("silent"), PeerId("liar")}
            assert ours.leading_to(maker.next_lineage()) is None
            assert await ours.learn_maker(maker.next_lineage(), [*asked, PeerId("knowing")]) == NOBODY
            assert ours.leading_to(maker.next_lineage()) == maker
            assert await ours.learn_maker(maker.next_lineage(), asked) == NOBODY, "it is known"

    run(main())


def test_a_silent_member_delays_no_other_member_s_answer_and_costs_a_bounded_time() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:

            async def say_nothing(stream: Stream) -> None:
                await asyncio.sleep(3600)

            await network.join("b").serve(VERDICT_PROTOCOL, say_nothing)
            witness = verdicts(network, "c")
            await witness.serve()
            witness.remember(certify(record(1)))
            doubting = verdicts(network, "a")
            began = asyncio.get_running_loop().time()
            assert await doubting.ask([PeerId("b"), PeerId("c")], 1, L) == (certify(record(1)), NOBODY)
            assert asyncio.get_running_loop().time() == began
            assert await doubting.ask([PeerId("b"), PeerId("c")], 2, L) == (None, {PeerId("b")})
            assert 0 < asyncio.get_running_loop().time() - began <= 3 * FIRST.answer_s

    run(main())


async def tell(network: FakeNetwork, newcomer: Verdicts, maker: CommitRecord) -> None:
    """Who made a history, as a donor tells it to who was in no round itself."""
    name = f"donor {len(network.peers)}"
    donor = verdicts(network, name)
    await donor.serve()
    donor.remember(certify(maker))
    await newcomer.learn_maker(maker.next_lineage(), [PeerId(name)])


@pytest.mark.parametrize("electors", [(X,), (PeerId("stranger"),)])
def test_a_newcomer_follows_the_owner_s_backbone_that_leaves_out_whom_the_newcomer_has_never_met(
    electors: tuple[PeerId, ...],
) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            maker = make_record(members=(X, Y))
            others = [peer for peer in electors if peer != X]  # none of those who decide: all of them are gone
            for vouched, is_followed in ((LEADER, True), (Y, False)):
                ports = make_ports(network.join(f"to {vouched}"))
                ours = make_verdicts(ports, present=others or (X,), vouched=(vouched,))
                await tell(network, ours, maker)
                group = make_group((Member(LEADER, 1.0), Member(X, 1.0)), electors=electors)
                group = replace(group, epoch=maker.epoch + 1, lineage=maker.next_lineage())
                if is_followed:
                    await ours.check_electors(group)
                    continue
                with pytest.raises(BadCertificate):
                    await ours.check_electors(group)

    run(main())


@pytest.mark.parametrize(
    ("electors", "missed_s", "is_followed"),
    [
        ((X, Y), 0.0, True),
        ((X,), 0.0, False),
        ((X,), FIRST.reform_s / 2, False),
        ((X,), FIRST.reform_s / 2 + 1.0, True),
    ],
)
def test_a_leader_that_leaves_out_who_was_here_not_long_ago_is_not_followed(
    electors: tuple[PeerId, ...], missed_s: float, is_followed: bool
) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            ours = make_verdicts(make_ports(network.join(X)), present=(X,), missed_s=missed_s)
            maker = make_record(members=(X, Y))
            await tell(network, ours, maker)
            group = replace(make_group(electors=electors), epoch=maker.epoch + 1, lineage=maker.next_lineage())
            if is_followed:
                await ours.check_electors(group)
                return
            with pytest.raises(BadCertificate, match="not long ago"):
                await ours.check_electors(group)

    run(main())
