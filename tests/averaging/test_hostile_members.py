"""Members and strangers that lie: the others commit without them, and nothing hangs."""

import asyncio
import math
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from collab.averaging.base import Aborted, Committed
from collab.averaging.calls import CALL_PROTOCOL
from collab.averaging.messages import PARTS_PROTOCOL, ROUND_PROTOCOL, Group, Join
from collab.averaging.plan import PART_ELEMENTS
from collab.averaging.timeouts import FIRST
from collab.errors import NetworkError
from collab.net.base import Stream
from collab.net.wire import Message
from collab.types import PeerId
from tests.averaging.swarm import L, Rounds, random_vectors
from tests.averaging.test_round import WEIGHTS, check_committed
from tests.fakes import FakeNetwork, FakeTransport, run

LIAR = PeerId("zz-liar")
JOIN = Join(fingerprint="f", epoch=0, lineage=L, num_elements=100, weight=1.0, can_reduce=False).to_message()


WORKING = Message("working", {"came": [], "held": []})


async def honest(network: FakeNetwork, names: str = "abc") -> Rounds:
    """Trainers, and the leader, in one swarm."""
    rounds = Rounds(network, "helper")
    await rounds.add_auxiliary("helper")
    for name in names:
        await rounds.add_trainer(name)
    return rounds


async def check_commit_of(rounds: Rounds, names: str = "abc") -> float:
    """The honest commit; returns the seconds that it took."""
    vectors = random_vectors(names, 100)
    began = asyncio.get_running_loop().time()
    check_committed(await rounds.average(vectors, WEIGHTS), vectors, WEIGHTS)
    return asyncio.get_running_loop().time() - began


async def commit_of(rounds: Rounds, names: str = "abc") -> float:
    """One commit of all the honest, whoever else is in it; returns the seconds that it took."""
    vectors = random_vectors(names, 100)
    began = asyncio.get_running_loop().time()
    outcomes = (await rounds.average(vectors, WEIGHTS)).values()
    commits = [outcome for outcome in outcomes if isinstance(outcome, Committed)]
    assert len(commits) == len(names), outcomes
    assert len({commit.mean.tobytes() for commit in commits}) == 1
    assert len({commit.record for commit in commits}) == 1
    for name in names:
        assert commits[0].record.used_of(PeerId(name)) == ((0, 100),)
    return asyncio.get_running_loop().time() - began


SEAT: dict[str, Any] = {"promised": [], "voted": [], "value": {}, "decided": {}}
DONE: dict[str, Any] = {"generation": 0, "digests": [], "gaps": [], "seat": SEAT}
COMPLAINT: dict[str, Any] = {"culprit": "a", "reason": "x", "text": "x", "hostile": True, "reducer": False}
REPLY = {"coming": True, "comes_in_s": 0.0, "free_in_s": 0.0}


@pytest.mark.parametrize(
    "answer",
    [
        REPLY | {"comes_in_s": math.nan},
        REPLY | {"comes_in_s": math.inf},
        REPLY | {"comes_in_s": -math.inf},
        REPLY | {"comes_in_s": 1e300},
        REPLY | {"comes_in_s": "soon"},
        REPLY | {"comes_in_s": True},
        REPLY | {"free_in_s": math.nan},
        REPLY | {"free_in_s": -1.0},
        REPLY | {"free_in_s": 1e300},
        REPLY | {"coming": 1},
        {"coming": True},
        {},
    ],
)
def test_a_called_peer_that_answers_nonsense_delays_the_group_by_a_bounded_time(answer: dict[str, Any]) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = await honest(network)

            async def lie(stream: Stream) -> None:
                await stream.receive(timeout_s=1)
                await stream.send(Message("coming", answer), timeout_s=1)

            await network.join(LIAR).serve(CALL_PROTOCOL, lie)
            rounds.trainers.add(LIAR)
            assert await check_commit_of(rounds) < 65  # the longest wait that a peer can announce

    run(main())


async def send_parts(transport: FakeTransport, group: Group) -> None:
    """Honest ones."""
    for job, span in enumerate(group.spans):
        parts = await transport.open(span.reducer, PARTS_PROTOCOL, timeout_s=1)
        opening = {"round_id": group.round_id, "job": job, "first": 0, "sent_s": 0.0, "queue_s": 0.0}
        await parts.send(Message("round", opening), timeout_s=1)
        payload = np.ones(span.num_elements, "<f4").tobytes()
        await parts.send(Message("part", {"index": 0, "sent_s": 0.0, "queue_s": 0.0}, payload), timeout_s=1)


async def take_part(transport: FakeTransport, *reports: Message | None) -> None:
    """Join the helper's group as a contributor, send honest parts, and say ``reports``; None: nothing more at all."""
    stream = await transport.open(PeerId("helper"), ROUND_PROTOCOL, timeout_s=1)
    await stream.send(JOIN, timeout_s=1)
    await stream.receive(timeout_s=10)  # welcome
    group = Group.from_message(await stream.receive(timeout_s=90))
    await send_parts(transport, group)
    await asyncio.sleep(0.5)
    for report in reports:
        if report is None:
            stream.close()
            return
        await stream.send(report, timeout_s=1)
    await stream.receive(timeout_s=90)


def test_members_that_are_at_work_for_ever_are_gone_on_without() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = await honest(network)
            pulse_s = FIRST.pulse_s

            async def dawdle(name: str) -> None:
                rounds.trainers.add(PeerId(name))
                transport = network.join(name)
                stream = await transport.open(PeerId("helper"), ROUND_PROTOCOL, timeout_s=1)
                await stream.send(JOIN, timeout_s=1)
                await stream.receive(timeout_s=10)  # welcome
                group = Group.from_message(await stream.receive(timeout_s=90))
                await send_parts(transport, group)
                with suppress(NetworkError):
                    while True:
                        await stream.send(WORKING, timeout_s=1)
                        await asyncio.sleep(pulse_s)

            network.run(dawdle("x"))
            network.run(dawdle("y"))
            assert await commit_of(rounds) <= 5.0

    run(main())


@pytest.mark.parametrize(
    "report",
    [
        None,
        Message("done", {}),
        Message("done", DONE | {"digests": "all"}),
        Message("done", DONE | {"digests": []}),
        Message("done", DONE | {"digests": [None] * 50}),
        Message("done", DONE | {"gaps": [["a", 0]]}),
        Message("done", DONE | {"gaps": "none"}),
        Message("done", DONE | {"seat": []}),
        Message("done", DONE | {"seat": {"promised": [1]}}),
        Message("done", DONE | {"seat": SEAT | {"promised": [2**60, "a"]}}),
        Message("done", DONE | {"seat": SEAT | {"voted": [1, "a"], "value": {"epoch": 0}}}),
        Message("held", {"generation": 0, "counts": ["one"]}),
        Message("promised", {}),
        Message("vote", {"seat": 5}),
        Message("complaint", {}),
        Message("complaint", COMPLAINT | {"culprit": 5}),
        Message("working", {}),
        Message("working", {"came": [["a"]], "held": []}),
        Message("working", {"came": [], "held": ["one"]}),
        Message("abort", {}),
        Message("join", JOIN.fields),
        Message("nonsense", {}),
    ],
)
def test_a_member_that_reports_nonsense_is_left_out_and_the_others_commit(report: Message | None) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = await honest(network)
            transport = network.join(LIAR)

            async def insist() -> None:
                for _ in range(8):
                    try:
                        await take_part(transport, report)
                    except NetworkError:
                        await asyncio.sleep(0)

            network.run(insist())
            assert await commit_of(rounds) < 15

    run(main())


def test_a_member_that_blames_everybody_else_is_left_out_itself() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = await honest(network)
            transport = network.join(LIAR)

            async def insist() -> None:
                for _ in range(8):
                    try:
                        culprits = ("a", "b", "c", "helper")
                        await take_part(
                            transport, *(Message("complaint", COMPLAINT | {"culprit": culprit}) for culprit in culprits)
                        )
                    except NetworkError:
                        await asyncio.sleep(0)

            network.run(insist())
            assert await commit_of(rounds) < 15

    run(main())


@pytest.mark.parametrize(
    "message",
    [
        Message("part", {"index": 0, "sent_s": 0.0, "queue_s": 0.0}, bytes(4)),
        Message("part", {"index": 2**40, "sent_s": 0.0, "queue_s": 0.0}),
        Message("part", {}),
        Message("ack", {"bytes": 2**40, "delay_s": 0.0, "sent_s": 0.0}),
        None,
    ],
)
def test_a_stranger_who_knows_the_round_cannot_spoil_it(message: Message | None) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = await honest(network)
            stranger = network.join("stranger")
            spied: set[tuple[PeerId, str]] = set()

            async def intrude(reducer: PeerId, round_id: str) -> None:
                try:
                    stream = await stranger.open(reducer, PARTS_PROTOCOL, timeout_s=1)
                    opening = {"round_id": round_id, "job": 0, "first": 0, "sent_s": 0.0, "queue_s": 0.0}
                    await stream.send(Message("round", opening), timeout_s=1)
                    if message is None:
                        stream.close()
                    else:
                        await stream.send(message, timeout_s=1)
                except NetworkError:
                    return

            def spy(sender: PeerId, to: PeerId, protocol: str, passing: Message) -> Message:
                if passing.kind == "round" and sender != "stranger" and not spied:
                    spied.add((to, passing.fields["round_id"]))
                    network.run(intrude(to, passing.fields["round_id"]))
                return passing

            network.tamper = spy
            vectors = random_vectors("abc", 8 * PART_ELEMENTS)
            check_committed(await rounds.average(vectors, WEIGHTS), vectors, WEIGHTS)
            begins = [m for _, to, _, m in network.sent if m.kind == "begin" and to == "a"]
            assert len(begins) == 1  # in the first attempt
            assert spied

    run(main())


@pytest.mark.parametrize("rates", [{"up_bytes_per_s": 1e-320}, {"down_bytes_per_s": 1e-3, "down_is_limit": True}])
def test_a_rate_that_no_link_has_stops_nobody(rates: dict[str, Any]) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = await honest(network)
            transport = network.join(LIAR)

            async def insist() -> None:
                for _ in range(8):
                    with suppress(NetworkError):
                        stream = await transport.open(PeerId("helper"), ROUND_PROTOCOL, timeout_s=1)
                        await stream.send(Message("join", JOIN.fields | rates), timeout_s=1)
                        await stream.receive(timeout_s=90)
                    await asyncio.sleep(0.1)

            network.run(insist())
            assert await check_commit_of(rounds) < 15

    run(main())


def test_a_silent_contributor_is_left_out_after_a_bounded_time() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = await honest(network)
            transport = network.join(LIAR)

            async def join_and_sleep() -> None:
                stream = await transport.open(PeerId("helper"), ROUND_PROTOCOL, timeout_s=1)
                await stream.send(JOIN, timeout_s=1)
                await asyncio.sleep(3600)

            network.run(join_and_sleep())
            assert await commit_of(rounds) < 15

    run(main())


@pytest.mark.parametrize("brings", ["nothing", "results only"])
def test_a_contributor_that_is_there_but_brings_nothing_is_left_out_after_a_bounded_time(brings: str) -> None:
    """It keeps every stream alive; only its parts never come."""

    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = await honest(network)
            transport = network.join(LIAR)

            async def say(stream: Stream, kind: str) -> None:
                with suppress(NetworkError):
                    while True:
                        await asyncio.sleep(FIRST.pulse_s)
                        await stream.send(Message(kind), timeout_s=1)

            async def visit(reducer: PeerId, round_id: str, job: int) -> None:
                stream = await transport.open(reducer, PARTS_PROTOCOL, timeout_s=1)
                opening = {"round_id": round_id, "job": job, "first": 0, "sent_s": 0.0, "queue_s": 0.0}
                await stream.send(Message("round", opening), timeout_s=1)
                network.run(say(stream, "wait"))
                with suppress(NetworkError):
                    while True:
                        message = await stream.receive(timeout_s=3600)
                        if brings == "results only" and message.kind == "result":
                            ack = {"bytes": len(message.payload), "delay_s": 0.0, "sent_s": 0.0}
                            await stream.send(Message("ack", ack), timeout_s=1)

            async def join_and_wait() -> None:
                stream = await transport.open(PeerId("helper"), ROUND_PROTOCOL, timeout_s=1)
                await stream.send(JOIN, timeout_s=1)
                while (message := await stream.receive(timeout_s=60)).kind != "begin":
                    pass
                group = Group.from_message(message)
                network.run(say(stream, "working"))
                for job, span in enumerate(group.spans):
                    network.run(visit(span.reducer, group.round_id, job))
                with suppress(NetworkError):
                    while True:
                        await stream.receive(timeout_s=3600)

            network.run(join_and_wait())
            assert await commit_of(rounds) < 15

    run(main())


def test_a_reducer_that_is_there_but_brings_no_result_is_left_out_after_a_bounded_time() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = await honest(network)
            transport = network.join(LIAR)
            join = Join(fingerprint="f", epoch=0, lineage=L, num_elements=100, weight=1.0, can_reduce=True)

            async def take(stream: Stream) -> None:
                opening = await stream.receive(timeout_s=60)
                ready = {"sent_s": opening.get("sent_s", float), "queue_s": 0.0}
                await stream.send(Message("ready", ready), timeout_s=1)
                while True:
                    await asyncio.sleep(FIRST.pulse_s)
                    await stream.send(Message("wait"), timeout_s=1)

            await transport.serve(PARTS_PROTOCOL, take)

            async def join_and_wait() -> None:
                stream = await transport.open(PeerId("helper"), ROUND_PROTOCOL, timeout_s=1)
                await stream.send(join.to_message(), timeout_s=1)
                with suppress(NetworkError):
                    while True:
                        await stream.receive(timeout_s=FIRST.pulse_s)
                        await stream.send(WORKING, timeout_s=1)

            network.run(join_and_wait())
            assert await commit_of(rounds) < 15

    run(main())


def test_when_no_plan_can_be_made_everybody_hears_why() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "a")
            for name in "abc":
                await rounds.add_trainer(name)

            def fail(joins: object, num_elements: int, samples_per_s: float, *, rows: int) -> None:
                raise ValueError("of these rates nothing can be made")

            rounds.engines["a"]._rendezvous._leader._planner.plan = fail  # type: ignore[assignment, method-assign]
            for outcome in (await rounds.average(random_vectors("abc", 100), WEIGHTS)).values():
                assert isinstance(outcome, Aborted)
                assert "of these rates nothing can be made" in outcome.text

    run(main())
