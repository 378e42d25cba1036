"""A leader that is slower than its trainers: it hears of fewer microbatches, and not of ever older ones."""

import asyncio
from typing import Any

import pytest

from collab.averaging.calls import Call
from collab.averaging.standing import MAX_UNANSWERED, STANDING_PROTOCOL, Heard
from collab.averaging.timeouts import FIRST
from collab.net.base import Stream
from collab.net.wire import Message
from collab.types import PeerId
from tests.averaging.standing_lab import HERE, Lab, Trainer, in_lab

HEARD = Heard(*HERE, 3600.0).to_message()


class SlowLeader:
    """Takes words in, and answers when it is told to."""

    def __init__(self) -> None:
        self.words: list[float] = []
        """Samples in each, in order."""
        self._stream: Stream | None = None

    async def join(self, lab: Lab) -> None:
        await lab.network.join("leader").serve(STANDING_PROTOCOL, self._serve)
        lab.leaders.append(PeerId("leader"))

    async def _serve(self, stream: Stream) -> None:
        self._stream = stream
        await stream.receive(timeout_s=1.0)
        while True:
            message = await stream.receive(timeout_s=1e6)
            if message.kind == "word":
                self.words.append(message.get("samples", float))

    async def sends(self, message: Message) -> None:
        assert self._stream is not None
        await self._stream.send(message, timeout_s=1.0)
        await asyncio.sleep(0.01)


async def flooded(lab: Lab) -> tuple[SlowLeader, Trainer]:
    """A leader that has answered nothing, and a trainer that has got further ten times."""
    leader = SlowLeader()
    await leader.join(lab)
    trainer = await lab.add_trainer("a")
    for samples in range(10):
        await trainer.says(samples)
    return leader, trainer


def test_a_trainer_has_a_few_words_on_their_way_and_the_next_one_is_the_newest() -> None:
    async def test(lab: Lab) -> None:
        leader, a = await flooded(lab)
        assert leader.words == [float(samples) for samples in range(MAX_UNANSWERED)]
        await leader.sends(HEARD)
        assert leader.words[MAX_UNANSWERED:] == [9.0], "what it would have said meanwhile is said no more"
        await a.says(10)
        assert len(leader.words) == MAX_UNANSWERED + 1
        for _ in range(MAX_UNANSWERED):
            await leader.sends(HEARD)
        assert leader.words[MAX_UNANSWERED:] == [9.0, 10.0], "each answer makes room for one, and nothing is said twice"

    in_lab(test)


def test_a_call_is_no_answer_to_a_word() -> None:
    async def test(lab: Lab) -> None:
        leader, a = await flooded(lab)
        await leader.sends(Call(*HERE, 1.0).to_message())
        assert len(a.accepted) == 1
        assert len(leader.words) == MAX_UNANSWERED

    in_lab(test)


def test_a_leader_that_calls_and_freezes_is_left_with_words_unanswered() -> None:
    async def test(lab: Lab) -> None:
        leader, _ = await flooded(lab)
        second = await lab.add_leader("second")
        await leader.sends(Call(*HERE, 1.0).to_message())
        await asyncio.sleep(FIRST.silence_s / 2)
        assert second.at(HERE) == frozenset()
        await asyncio.sleep(FIRST.silence_s)
        assert second.at(HERE) == {PeerId("a")}

    in_lab(test)


def test_a_new_leader_gets_words_although_the_last_one_has_answered_none() -> None:
    async def test(lab: Lab) -> None:
        slow, a = await flooded(lab)
        await lab.add_leader("quick")
        lab.leaders.reverse()
        await slow.sends(HEARD)
        assert lab.told("word")[-1] == "quick"
        for samples in range(10, 20):
            await a.says(samples)
        assert lab.told("word").count(PeerId("quick")) == 11

    in_lab(test)


def test_a_leader_answers_every_word_once_also_those_that_fill_the_batch_and_come_after_the_call() -> None:
    async def test(lab: Lab) -> None:
        await lab.add_leader("leader")
        a, b = [await lab.add_trainer(name) for name in "ab"]
        for samples in range(10, 100, 10):
            await a.says(samples)
            await b.says(samples)
        assert sorted(lab.told("call")) == ["a", "b"]
        assert len(lab.told("word")) == 18
        assert lab.told("heard") == ["a", "b"] * 9

    in_lab(test)


def test_whoever_declined_is_not_called_again_because_others_speak() -> None:
    async def test(lab: Lab) -> None:
        await lab.add_leader("leader")
        a, b = await lab.add_trainer("a", eta_s=None), await lab.add_trainer("b")
        await a.says(1)
        for samples in range(1000, 1010):
            await b.says(samples)
        assert lab.told("call") == ["a", "b"], "it has declined, and said nothing since"
        a.eta_s = 0.5
        await a.says(2)
        assert a.is_called(HERE)

    in_lab(test)


def tasks_for_a_word_after_the_call(trainers: int) -> int:
    """That are begun in the whole lab while one of so many speaks to a leader that has called all."""
    begun: list[int] = []

    async def test(lab: Lab) -> None:
        await lab.add_leader("leader")
        all_of_them = [await lab.add_trainer(f"{number}") for number in range(trainers)]
        for trainer in all_of_them:
            await trainer.says(1000)
        assert len(lab.told("call")) == trainers
        create = asyncio.get_running_loop().create_task

        def counting(*args: Any, **kwargs: Any) -> Any:
            begun.append(1)
            return create(*args, **kwargs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio.get_running_loop(), "create_task", counting)
            await all_of_them[0].says(1001)

    in_lab(test)
    return len(begun)


def test_a_word_after_the_call_costs_no_task_for_each_who_was_called() -> None:
    assert tasks_for_a_word_after_the_call(20) == tasks_for_a_word_after_the_call(2) > 0
