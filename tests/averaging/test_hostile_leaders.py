"""Leaders that lie or die: everybody commits the same or nobody does, and nothing hangs."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from collab.averaging.base import Aborted, Committed
from collab.averaging.calls import CALL_PROTOCOL
from collab.averaging.messages import ROUND_PROTOCOL, Group, Member
from collab.averaging.plan import Span
from collab.errors import StreamClosed
from collab.net.base import Stream
from collab.net.wire import Message
from collab.types import PeerId
from tests.averaging.records import make_record
from tests.averaging.swarm import L, Rounds, random_vectors
from tests.averaging.test_round import WEIGHTS
from tests.fakes import FakeNetwork, run

LIAR = PeerId("zz-liar")
AWAY = ("away-1", "away-2", "away-3")
"""Members of every group that are not there, so that nobody has a quorum."""


def begin(members: dict[str, float], spans: tuple[tuple[str, int, int], ...]) -> dict[str, Any]:
    """What a leader says when a round begins; nothing is wrong with it."""
    group = Group(
        round_id="r",
        epoch=0,
        lineage=L,
        num_elements=100,
        leader=LIAR,
        members=tuple(Member(PeerId(name), weight) for name, weight in (members | dict.fromkeys(AWAY, 1.0)).items()),
        spans=tuple(Span(PeerId(name), start, stop) for name, start, stop in spans),
    )
    return dict(Group.from_message(group.to_message()).to_message().fields)


BEGIN = begin({"a": 1.0}, (("a", 0, 100),))


def with_codecs(sent: str, result: str) -> dict[str, Any]:
    """``BEGIN`` with other encodings, and nothing else wrong with it: nobody could hold the leader to its digest."""
    group = Group.from_message(Message("begin", BEGIN))
    members = tuple(replace(member, codec=sent) for member in group.members)
    return dict(replace(group, members=members, result_codec=result).to_message().fields)


WITH_ONE_GONE = begin({"a": 1.0, "gone": 0.0}, (("a", 0, 50), ("gone", 50, 100)))
WITH_A_HELPER = begin({"a": 1.0, "helper": 0.0}, (("helper", 0, 100),))
RECORD = make_record(
    lineage=L, contributors=((PeerId("a"), 1.0),), pieces=((PeerId("a"), 0, 100),), digests=("0" * 64,)
).to_fields()


def led_by_a_liar(talk: Callable[[Stream], Awaitable[None]]) -> None:
    """Peer a's only leader talks nonsense: its round is aborted, soon, and its vector is untouched."""

    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, LIAR)
            await rounds.add_trainer("a")
            await network.join(LIAR).serve(ROUND_PROTOCOL, talk)
            vectors = random_vectors("a", 100)
            kept = vectors["a"].copy()
            began = asyncio.get_running_loop().time()
            outcome = (await rounds.average(vectors))["a"]
            assert isinstance(outcome, Aborted)
            assert np.array_equal(vectors["a"], kept)
            assert asyncio.get_running_loop().time() - began < 300

    run(main())


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [Message("welcome")],
        [Message("nonsense")],
        [Message("refused", {})],
        [Message("superseded", {})],
        [Message("superseded", {"text": "", "record": RECORD})],
        [Message("abort", {})],
        [Message("welcome"), Message("welcome"), Message("welcome")],
        [Message("begin", {**BEGIN, "epoch": 1})],
        [Message("begin", {**BEGIN, "lineage": "other"})],
        [Message("begin", {**BEGIN, "leader": "other"})],
        [Message("begin", begin({"a": 2.0}, (("a", 0, 100),)))],
        [Message("begin", begin({"b": 1.0}, (("b", 0, 100),)))],
        [Message("begin", {**BEGIN, "num_elements": 99, "spans": [["a", 0, 99]]})],
        [Message("begin", {**BEGIN, "spans": [["a", 0, math.inf]]})],
        [Message("begin", BEGIN)],
        [Message("begin", BEGIN), Message("commit", {})],
        [Message("begin", BEGIN), Message("commit", {"record": {}})],
        [Message("begin", BEGIN), Message("commit", {"record": RECORD})],
        [Message("begin", BEGIN), Message("commit", {"record": {**RECORD, "epoch": math.inf}})],
        [Message("begin", BEGIN), Message("commit", {"record": {**RECORD, "digests": []}})],
        [Message("begin", BEGIN), Message("abort", {})],
        [Message("begin", BEGIN), Message("nonsense", {})],
        [Message("begin", with_codecs("none", "topk"))],
        [Message("begin", with_codecs("int4", "none"))],
        [Message("begin", WITH_ONE_GONE)],
    ],
)  # fmt: skip
@pytest.mark.parametrize("waits", [False, True])
def test_a_leader_that_talks_nonsense_gets_an_abort(messages: list[Message], waits: bool) -> None:
    async def talk(stream: Stream) -> None:
        await stream.receive(timeout_s=1)
        for message in messages:
            await stream.send(message, timeout_s=1)
            if waits:
                await asyncio.sleep(0.5)

    led_by_a_liar(talk)


def test_a_leader_that_falls_silent_does_not_hang_anybody() -> None:
    async def talk(stream: Stream) -> None:
        await stream.send(Message("welcome"), timeout_s=1)
        await stream.send(Message("begin", BEGIN), timeout_s=1)
        await asyncio.sleep(3600)

    led_by_a_liar(talk)


CALL = Message("call", {"fingerprint": "f", "epoch": 0, "lineage": L, "patience_s": 1.0})


@pytest.mark.parametrize(
    "changes",
    [{"patience_s": math.nan}, {"patience_s": -1.0}, {"patience_s": math.inf}, {"patience_s": "long"}, {"epoch": 0.5}],
)
def test_a_call_without_sense_is_not_answered(changes: dict[str, Any]) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            await Rounds(network).add_auxiliary("helper")
            stream = await network.join(LIAR).open(PeerId("helper"), CALL_PROTOCOL, timeout_s=1)
            await stream.send(Message("call", CALL.fields | changes), timeout_s=1)
            with pytest.raises(StreamClosed):
                await stream.receive(timeout_s=1)

    run(main())


def test_a_helper_is_not_drawn_into_a_round_without_sense() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network)
            assistant = await rounds.add_auxiliary("helper")
            liar = network.join(LIAR)

            async def lead(stream: Stream) -> None:
                await stream.receive(timeout_s=1)
                huge = {**WITH_A_HELPER, "num_elements": 2**62, "spans": [["helper", 0, 2**62]]}
                await stream.send(Message("begin", huge), timeout_s=1)
                await stream.receive(timeout_s=60)

            await liar.serve(ROUND_PROTOCOL, lead)
            stream = await liar.open(PeerId("helper"), CALL_PROTOCOL, timeout_s=1)
            await stream.send(CALL, timeout_s=1)
            assert (await stream.receive(timeout_s=1)).fields["coming"] is True
            await asyncio.sleep(60)
            assert assistant.rounds_committed == 0

    run(main())


def test_a_commit_is_the_same_for_all_or_for_nobody_when_the_leader_dies_after_telling_some() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "helper")
            await rounds.add_auxiliary("helper")
            for name in "abc":
                await rounds.add_trainer(name)
            told: list[PeerId] = []

            def die(sender: PeerId, to: PeerId, protocol: str, message: Message) -> Message | None:
                if sender == "helper" and message.kind == "commit":
                    told.append(to)
                    return message if len(told) == 1 else None
                return message

            network.tamper = die
            outcomes = await rounds.average(random_vectors("abc", 100), WEIGHTS)
            commits = [outcome for outcome in outcomes.values() if isinstance(outcome, Committed)]
            assert len(commits) == 3
            assert len({outcome.mean.tobytes() for outcome in commits}) == 1
            assert len({outcome.lineage for outcome in commits}) == 1

    run(main())


def test_one_that_has_voted_and_hears_that_nobody_has_a_quorum_asks_the_others_what_was_decided() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "helper")
            await rounds.add_auxiliary("helper")
            for name in "abc":
                await rounds.add_trainer(name)

            def abort(sender: PeerId, to: PeerId, protocol: str, message: Message) -> Message | None:
                if (to, message.kind) == ("c", "commit"):
                    return Message("abort", {"reason": "no_quorum", "text": "as a successor says that is alone with c"})
                return message

            network.tamper = abort
            outcomes = await rounds.average(random_vectors("abc", 100), WEIGHTS)
            commits = [outcome for outcome in outcomes.values() if isinstance(outcome, Committed)]
            assert len(commits) == 3
            assert len({outcome.mean.tobytes() for outcome in commits}) == 1

    run(main())
