"""Whoever breaks the rules of a standing stream loses that stream, and nobody else notices."""

import asyncio
import itertools
import math

import pytest

from collab.averaging.following import MAX_STANDING
from collab.averaging.standing import RETRY_S, STANDING_PROTOCOL
from collab.errors import NetworkError
from collab.net.base import Stream
from collab.net.wire import Message
from collab.types import PeerId
from tests.averaging.standing_lab import HERE, Lab, in_lab, word

# -- hostile words -----------------------------------------------------------------------------------------------------

COMING = {"epoch": 3, "lineage": "l", "coming": True, "comes_in_s": 50.0, "free_in_s": 0.0}
HOSTILE_WORDS = [
    word(samples=math.nan),
    word(samples=-1.0),
    word(samples=math.inf),
    word(samples_per_s=math.nan),
    word(samples_per_s=-0.5),
    word(samples_per_s=math.inf),
    word(samples_per_s=1.7e308),
    word(samples=1.7e308),
    word(microbatch_s=math.inf),
    word(samples="many"),
    word(epoch="3"),
    word(epoch=True),
    word(lineage=7),
    Message("word", {}),
    Message("heard", word().fields),
    Message("gossip", {}),
    Message("coming", COMING | {"comes_in_s": math.nan}),
    Message("coming", COMING | {"comes_in_s": -1.0}),
    Message("coming", COMING | {"comes_in_s": math.inf}),
    Message("coming", COMING | {"free_in_s": math.inf}),
    Message("coming", COMING | {"coming": 1}),
]


async def is_closed(stream: Stream) -> bool:
    """By the other side; what it had said before is left unread."""
    try:
        async with asyncio.timeout(1.0):
            while True:
                await stream.receive(timeout_s=10.0)
    except TimeoutError:
        return False
    except NetworkError:
        return True


@pytest.mark.parametrize("message", HOSTILE_WORDS, ids=lambda message: f"{message.kind} {message.fields}")
def test_a_hostile_word_ends_its_stream_and_touches_nobody_else(message: Message) -> None:
    async def test(lab: Lab) -> None:
        following = await lab.add_leader("leader")
        a, b = [await lab.add_trainer(name) for name in "ab"]
        await a.says(10)
        stream = await lab.stranger("mallory")
        await stream.send(word(), timeout_s=1.0)
        await asyncio.sleep(0.1)
        assert PeerId("mallory") in following.at(HERE)
        await stream.send(message, timeout_s=1.0)
        assert await is_closed(stream)
        assert following.at(HERE) == {PeerId("a")}
        await b.says(10)
        await a.says(90)
        assert sorted(lab.told("call")) == ["a", "b"]

    in_lab(test)


@pytest.mark.parametrize("hello", [Message("stand", {"fingerprint": "g"}), Message("stand", {}), word()])
def test_a_stranger_to_the_run_does_not_stand_with_us(hello: Message) -> None:
    async def test(lab: Lab) -> None:
        following = await lab.add_leader("leader")
        stream = await lab.network.join("mallory").open(PeerId("leader"), STANDING_PROTOCOL, timeout_s=1.0)
        await stream.send(hello, timeout_s=1.0)
        assert await is_closed(stream)
        a = await lab.add_trainer("a")
        await a.says(10)
        assert following.at(HERE) == {PeerId("a")}

    in_lab(test)


def test_an_answer_to_a_call_that_was_never_made_changes_nothing() -> None:
    async def test(lab: Lab) -> None:
        following = await lab.add_leader("leader")
        stream = await lab.stranger("mallory")
        await stream.send(word(), timeout_s=1.0)
        await stream.send(Message("coming", COMING), timeout_s=1.0)
        await asyncio.sleep(0.1)
        calling = asyncio.create_task(following.call(PeerId("mallory"), HERE))
        await asyncio.sleep(0.1)
        await stream.send(Message("coming", COMING | {"epoch": 2}), timeout_s=1.0)
        await asyncio.sleep(0.1)
        assert not calling.done()
        await stream.send(Message("coming", COMING | {"comes_in_s": 0.5}), timeout_s=1.0)
        assert (await calling).comes_in_s == 0.5

    in_lab(test)


def test_one_stream_too_many_is_refused_and_the_others_stand() -> None:
    async def test(lab: Lab) -> None:
        following = await lab.add_leader("leader")
        streams = [await lab.stranger(f"stander-{number}") for number in range(MAX_STANDING)]
        for stream in streams:
            await stream.send(word(samples=0.1), timeout_s=1.0)
        late = await lab.stranger("late")
        assert (await late.receive(timeout_s=1.0)).kind == "full"
        for _ in range(50):  # and does not go
            await late.send(word(samples=0.1), timeout_s=1.0)
            await asyncio.sleep(0.1)
            if late.other.is_closed:  # type: ignore[attr-defined]
                break
        assert await is_closed(late)
        again = await lab.stranger("stander-1")
        await again.send(word(samples=0.1), timeout_s=1.0)
        await asyncio.sleep(0.1)
        assert await is_closed(streams[1]), "who comes again takes its own place"
        assert len(following.at(HERE)) == MAX_STANDING == 512
        streams[0].close()
        await asyncio.sleep(0.1)
        next_one = await lab.stranger("next")
        await next_one.send(word(samples=0.1), timeout_s=1.0)
        await asyncio.sleep(0.1)
        assert PeerId("next") in following.at(HERE)

    in_lab(test)


# -- a hostile leader --------------------------------------------------------------------------------------------------

HEARD = {"epoch": 3, "lineage": "l", "due_s": 5.0}


@pytest.mark.parametrize(
    "message",
    [
        Message("heard", HEARD | {"due_s": math.nan}),
        Message("heard", HEARD | {"due_s": math.inf}),
        Message("heard", HEARD | {"due_s": -1.0}),
        Message("heard", HEARD | {"due_s": "soon"}),
        Message("heard", {}),
        Message("call", {"epoch": 3}),
        Message("call", {"epoch": 3, "lineage": "l", "patience_s": math.nan}),
        Message("word", HEARD),
        Message("gossip", {}),
    ],
    ids=lambda message: f"{message.kind} {message.fields}",
)
def test_a_leader_that_talks_nonsense_is_left_and_tried_again_later(message: Message) -> None:
    async def test(lab: Lab) -> None:
        openings: list[float] = []

        async def nonsense(stream: Stream) -> None:
            openings.append(asyncio.get_running_loop().time())
            await stream.receive(timeout_s=10.0)
            await stream.receive(timeout_s=10.0)
            await stream.send(message, timeout_s=10.0)
            await stream.receive(timeout_s=10.0)

        await lab.network.join("leader").serve(STANDING_PROTOCOL, nonsense)
        lab.leaders.append(PeerId("leader"))
        a = await lab.add_trainer("a")
        await a.says(10)
        assert not a.standing.is_connected
        assert a.standing.due_s is None
        assert not a.is_called(HERE)
        await asyncio.sleep(2 * RETRY_S)
        assert [later - earlier for earlier, later in itertools.pairwise(openings)] == [RETRY_S] * 2
        assert a.asked == []

    in_lab(test)
