"""Strangers that call a peer which reduces for others: they end nothing, and disturb no round of anybody else's."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import cast

import numpy as np
import pytest

from collab.averaging.accounts import MOST_PARTS, Accounts
from collab.averaging.agreement import CommitRecord
from collab.averaging.assistant import AT_ONCE, FROM_ONE_LEADER, Assistant
from collab.averaging.base import Aborted, Committed, Outcome
from collab.averaging.calls import CALL_PROTOCOL, Call
from collab.averaging.messages import PARTS_PROTOCOL, ROUND_PROTOCOL, Group, Join, Member, plan_digest
from collab.averaging.plan import SMALLEST_PART_ELEMENTS, Span
from collab.averaging.round import RoundEngine
from collab.compression.base import codec_by_name
from collab.errors import BadMessage, NetworkError
from collab.net.base import Stream
from collab.net.wire import Message
from collab.types import Lineage, PeerId
from tests.averaging.swarm import L, Rounds, random_vectors
from tests.averaging.test_hostile_members import check_commit_of, honest
from tests.fakes import FakeNetwork, FakeTransport, run

LIAR, HELPER = PeerId("zz-liar"), PeerId("helper")


def bogus(join: Join, round_id: str = "r", num_elements: int = 100, part: int = SMALLEST_PART_ELEMENTS) -> Group:
    """A round of the liar's own, in which the called peer is to reduce everything."""
    return Group(
        round_id=round_id,
        epoch=join.epoch,
        lineage=join.lineage,
        num_elements=num_elements,
        leader=LIAR,
        members=(Member(LIAR, 1.0), Member(HELPER, 0.0, receives=False)),
        spans=(Span(HELPER, 0, num_elements),),
        part_elements=part,
    )


async def lead(liar: FakeTransport, make: Callable[[Join], Group]) -> list[str]:
    """The liar leads: begins what ``make`` says, and reports nothing more; what it hears, by kind."""
    heard: list[str] = []

    async def answer(stream: Stream) -> None:
        join = Join.from_message(await stream.receive(timeout_s=1))
        await stream.send(Message("welcome"), timeout_s=1)
        await stream.send(make(join).to_message(), timeout_s=1)
        while True:
            heard.append((await stream.receive(timeout_s=60)).kind)

    await liar.serve(ROUND_PROTOCOL, answer)
    return heard


async def call(liar: FakeTransport, lineage: str, epoch: int = 0) -> bool:
    """Call the peer to a round; whether it comes."""
    stream = await liar.open(HELPER, CALL_PROTOCOL, timeout_s=1)
    with suppress(NetworkError):
        fields = {"fingerprint": "f", "epoch": epoch, "lineage": lineage, "patience_s": 1.0}
        await stream.send(Message("call", fields), timeout_s=1)
        return (await stream.receive(timeout_s=1)).get("coming", bool)
    return False


def test_one_round_id_for_two_histories_does_not_end_who_is_called_to_both() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = await honest(network)
            liar = network.join(LIAR)
            await lead(liar, bogus)
            for lineage in ("x", "y"):
                assert await call(liar, lineage)
            await asyncio.sleep(5)
            await check_commit_of(rounds)

    run(main())


@pytest.mark.parametrize("num_elements", [1, 7_000_000])
def test_a_call_to_a_round_of_another_length_leaves_the_one_under_way_alone(num_elements: int) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "helper", policy="half")
            assistant = await rounds.add_auxiliary("helper")
            for name in "abc":
                await rounds.add_trainer(name, can_reduce=False)
            liar, called = network.join(LIAR), list[str]()
            await lead(liar, lambda join: bogus(join, f"r{join.lineage}", num_elements))

            def tamper(sender: PeerId, to: PeerId, protocol: str, message: Message) -> Message:
                if (protocol, message.kind) == (PARTS_PROTOCOL, "result") and not called:
                    called.append("x")
                    network.run(say())
                return message

            async def say() -> None:
                assert await call(liar, "x", epoch=7)

            network.tamper = tamper
            vectors = random_vectors("abc", 3_000_000)
            outcomes = (await rounds.average(vectors)).values()
            assert called
            commits = [outcome for outcome in outcomes if isinstance(outcome, Committed)]
            assert len(commits) == 3, outcomes
            assert len({commit.mean.tobytes() for commit in commits}) == 1
            assert not commits[0].record.gaps
            exact = sum(vector.astype(np.float64) for vector in vectors.values()) / 3
            assert np.abs(commits[0].mean - exact).max() < 5e-3
            assert assistant.rounds_committed == 1

    run(main())


def test_whoever_knows_a_history_begins_no_round_of_another_length_in_it() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = await honest(network)
            vectors = random_vectors("abc", 100)
            committed = (await rounds.average(vectors))["a"]
            assert isinstance(committed, Committed)
            electors = committed.record.members
            liar = network.join(LIAR)
            outcomes = list[Outcome]()
            for num_elements in (99, 100):

                def make(join: Join, length: int = num_elements) -> Group:
                    group = bogus(join, f"r{length}", length)
                    fields = group.to_message().fields | {"electors": list(electors)}
                    return _with_digest(fields)

                await lead(liar, make)
                assist = rounds.engines["helper"].assist(LIAR, 1, committed.lineage)
                with suppress(TimeoutError):
                    async with asyncio.timeout(1.0):  # the honest length is begun, and goes on for long
                        outcomes.append(await assist)
            (refused,) = outcomes
            assert isinstance(refused, Aborted)
            assert "99 elements" in refused.text

    run(main())


def _with_digest(fields: dict[str, object]) -> Group:
    fields = {name: value for name, value in fields.items() if name != "digest"}
    return Group.from_message(Message("begin", fields | {"digest": plan_digest(fields)}))


def test_a_stranger_s_round_costs_no_more_memory_than_so_many_parts() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = await honest(network)
            liar = network.join(LIAR)
            await lead(liar, lambda join: bogus(join, num_elements=MOST_PARTS * SMALLEST_PART_ELEMENTS + 1))
            outcome = await rounds.engines["helper"].assist(LIAR, 0, Lineage("x"))
            assert isinstance(outcome, Aborted)
            assert f"{MOST_PARTS}" in outcome.text
            await check_commit_of(rounds)

    run(main())


def test_one_leader_cannot_take_all_of_an_assistant_s_rounds() -> None:
    async def main() -> None:
        assistant = Assistant()
        calls = [Call(epoch, L, 1.0) for epoch in range(AT_ONCE + 1)]
        assert sum(assistant.attend(call, LIAR).is_coming for call in calls) == FROM_ONE_LEADER
        assert assistant.attend(calls[0], LIAR).is_coming  # asked again: we are on the way
        others = [PeerId(f"other{number}") for number in range(AT_ONCE)]
        assert sum(assistant.attend(calls[0], other).is_coming for other in others) == AT_ONCE - FROM_ONE_LEADER

    run(main())


def test_an_assistant_attends_only_leaders_that_it_knows() -> None:
    async def main() -> None:
        assistant = Assistant(knows=lambda peer: peer == HELPER)
        assert not assistant.attend(Call(0, L, 1.0), LIAR).is_coming
        assert assistant.attend(Call(0, L, 1.0), HELPER).is_coming

    run(main())


@pytest.mark.parametrize("error", [BadMessage("nonsense"), ValueError("a bug")])
def test_whatever_ends_one_assist_does_not_end_the_others(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    class Failing:
        async def assist(self, leader: PeerId, epoch: int, lineage: Lineage) -> Outcome:
            if epoch == 0:
                raise error
            record = CommitRecord(
                round_id="r", epoch=1, lineage=L, contributors=((LIAR, 1.0),), members=(LIAR,), pieces=(), digests=()
            )
            return Committed(mean=np.empty(0, np.float32), record=record)

    async def main() -> None:
        assistant = Assistant()
        running = asyncio.create_task(assistant.run(cast(RoundEngine, Failing())))
        for epoch in (0, 1):
            assistant.attend(Call(epoch, L, 1.0), LIAR)
            await asyncio.sleep(1)
        assert not running.done()
        assert assistant.rounds_committed == 1
        assert assistant.attend(Call(0, L, 1.0), LIAR).is_coming
        running.cancel()

    with caplog.at_level(logging.INFO):
        run(main())
    assert str(error) in caplog.text
    assert ("Traceback" in caplog.text) == isinstance(error, ValueError)


# -- what encodings owe, by history ------------------------------------------------------------------------------------

HALF, EXACT = codec_by_name("float16"), codec_by_name("none")
MEAN = np.linspace(0, 1, 100, dtype=np.float32)


def reduced(group: Group) -> CommitRecord:
    """The record of a round in which the helper has reduced everything."""
    return CommitRecord(
        round_id=group.round_id,
        epoch=group.epoch,
        lineage=group.lineage,
        contributors=((LIAR, 1.0),),
        members=(LIAR, HELPER),
        pieces=((HELPER, 0, group.num_elements),),
        digests=("d",),
    )


def a_round(epoch: int, lineage: Lineage, num_elements: int = 100) -> Group:
    join = Join(fingerprint="f", epoch=epoch, lineage=lineage, num_elements=0, weight=0.0, can_reduce=True)
    return bogus(join, f"r{epoch}{lineage}{num_elements}", num_elements)


def reduce(accounts: Accounts, group: Group, mean: np.ndarray) -> np.ndarray:
    """Begin a round and reduce all of it; what the receivers decode."""
    accounts.begin(group, brings=False)
    encodings = accounts.encodings(group)
    encodings.begin(group.num_elements, None)
    return HALF.decode(encodings.result(HALF, 0, mean), group.num_elements)


@pytest.mark.parametrize("num_elements", [100, 1])
@pytest.mark.parametrize("is_committed", [True, False])
def test_what_a_helper_owes_in_one_history_no_round_of_another_changes(num_elements: int, is_committed: bool) -> None:
    accounts = Accounts(HELPER)
    first = a_round(0, L)
    lost = MEAN - reduce(accounts, first, MEAN)
    accounts.end(first)
    assert np.abs(lost).max() > 0
    other = a_round(0, Lineage("invented"), num_elements)
    reduce(accounts, other, np.full(num_elements, 1234.567, np.float32))  # under way all the time
    accounts.settle(reduced(first))
    if is_committed:
        accounts.settle(reduced(other))
    accounts.end(other)
    second = a_round(1, reduced(first).next_lineage())
    accounts.begin(second, brings=False)
    encodings = accounts.encodings(second)
    encodings.begin(100, None)
    owed = EXACT.decode(encodings.result(EXACT, 0, np.zeros(100, np.float32)), 100)
    assert owed == pytest.approx(lost, abs=1e-7)


def test_a_round_that_a_helper_was_not_in_carries_on_what_it_owes() -> None:
    accounts = Accounts(HELPER)
    first = a_round(0, L)
    lost = MEAN - reduce(accounts, first, MEAN)
    accounts.settle(reduced(first))
    accounts.end(first)
    missed = reduced(a_round(1, reduced(first).next_lineage()))
    accounts.settle(missed)
    third = a_round(2, missed.next_lineage())
    accounts.begin(third, brings=False)
    encodings = accounts.encodings(third)
    encodings.begin(100, None)
    assert EXACT.decode(encodings.result(EXACT, 0, np.zeros(100, np.float32)), 100) == pytest.approx(lost, abs=1e-7)


@pytest.mark.parametrize("is_over", [True, False])
def test_a_round_id_is_used_once(is_over: bool) -> None:
    accounts = Accounts(HELPER)
    accounts.begin(a_round(0, L), brings=False)
    if is_over:
        accounts.end(a_round(0, L))
    with pytest.raises(BadMessage, match="round id"):
        accounts.begin(a_round(0, L), brings=True)
