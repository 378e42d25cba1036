"""Standing streams: progress goes up, sums and calls come down."""

import asyncio

import pytest

from collab.averaging import following as leading
from collab.averaging.calls import NOT_COMING
from collab.averaging.deadlines import ENOUGH
from collab.averaging.following import PREPARE_S
from collab.averaging.standing import FULL_S, RETRY_S, STANDING_PROTOCOL, Word
from collab.averaging.timeouts import FIRST
from collab.errors import TimedOut
from collab.net.base import Stream
from collab.types import PeerId
from tests.averaging.standing_lab import HERE, L, Lab, M, in_lab, word
from tests.fakes import FakeNetwork, FakeStream

# -- words go up, sums come down ---------------------------------------------------------------------------------------


def test_a_word_reaches_the_leader_and_the_sum_of_its_history_comes_back() -> None:
    async def test(lab: Lab) -> None:
        following = await lab.add_leader("leader")
        a, b, c = [await lab.add_trainer(name) for name in "abc"]
        assert not a.standing.is_connected
        await a.says(10, speed=2.0)
        await c.says(90, speed=64.0, history=(3, M))
        await b.says(20, speed=4.0)
        assert a.standing.is_connected
        assert following.at(HERE) == {PeerId("a"), PeerId("b")}
        assert following.at((3, M)) == {PeerId("c")}
        assert following.samples_per_s(HERE) == 6.0

    in_lab(test)


def test_a_trainer_keeps_one_stream_for_all_its_words() -> None:
    async def test(lab: Lab) -> None:
        await lab.add_leader("leader")
        a = await lab.add_trainer("a")
        for samples in range(50):
            await a.says(samples)
        assert lab.told("stand") == ["leader"]
        assert lab.told("word") == ["leader"] * 50
        assert lab.told("heard") == ["a"] * 50

    in_lab(test)


def test_a_trainer_hears_when_the_batch_is_due_and_counts_down() -> None:
    async def test(lab: Lab) -> None:
        await lab.add_leader("leader")
        a, b = [await lab.add_trainer(name) for name in "ab"]
        assert a.standing.due_s is None  # nobody has told us anything
        await b.says(40, speed=5.0, microbatch_s=2.0)
        await a.says(40, speed=10.0, microbatch_s=1.0)  # 50 in a second, 10 more of the other one in 1.9
        due_s = a.standing.due_s
        assert due_s == pytest.approx(2.0 - 0.2, abs=0.01)
        await asyncio.sleep(1.0)
        assert a.standing.due_s == pytest.approx(due_s - 1.0)
        await asyncio.sleep(2.0)
        assert a.standing.due_s == pytest.approx(due_s - 3.0)
        a.standing.report(Word(4, M, 0.0, 3.0))
        assert a.standing.due_s is None  # what was heard is of another history

    in_lab(test)


def test_a_leader_prepares_once_shortly_before_the_batch_is_due() -> None:
    async def test(lab: Lab) -> None:
        await lab.add_leader("leader")
        a, b = [await lab.add_trainer(name) for name in "ab"]
        began_s = asyncio.get_running_loop().time()
        for second in range(8):  # 50 each after five seconds
            for trainer in (a, b):
                trainer.standing.report(Word(*HERE, 10.0 * second, 10.0, 1.0))
            await asyncio.sleep(1.0)
        assert lab.prepared_s == [pytest.approx(began_s + 5.0 - PREPARE_S, abs=0.01)]

    in_lab(test)


# -- the call ----------------------------------------------------------------------------------------------------------


def test_the_call_goes_out_once_to_everybody_of_the_history_and_to_nobody_else() -> None:
    async def test(lab: Lab) -> None:
        await lab.add_leader("leader")
        a, b, c, d = [await lab.add_trainer(name) for name in "abcd"]
        await c.says(99, history=(3, M))
        await d.says(99, history=(2, L))
        await a.says(50)
        await b.says(49)
        assert lab.told("call") == []
        await b.says(50)
        assert sorted(lab.told("call")) == ["a", "b"]
        assert a.asked == b.asked == [(3, L, PeerId("leader"))]
        assert a.is_called(HERE)
        assert not c.is_called((3, M))
        await a.says(60)
        await b.says(70)
        assert sorted(lab.told("call")) == ["a", "b"]

    in_lab(test)


def test_a_trainer_that_gets_there_after_the_call_is_called_too() -> None:
    async def test(lab: Lab) -> None:
        await lab.add_leader("leader")
        a, b = [await lab.add_trainer(name) for name in "ab"]
        await a.says(100)
        await b.says(1)
        assert lab.told("call") == ["a", "b"]
        assert b.is_called(HERE)

    in_lab(test)


def test_the_next_history_is_called_anew() -> None:
    async def test(lab: Lab) -> None:
        await lab.add_leader("leader")
        a = await lab.add_trainer("a")
        await a.says(100)
        await a.says(1, history=(4, M))
        assert not a.is_called((4, M))
        await a.says(100, history=(4, M))
        assert a.is_called((4, M))
        assert lab.told("call") == ["a", "a"]

    in_lab(test)


def test_the_answer_says_in_how_many_seconds_a_trainer_comes() -> None:
    async def test(lab: Lab) -> None:
        following = await lab.add_leader("leader")
        a, b = await lab.add_trainer("a", eta_s=1.25), await lab.add_trainer("b", eta_s=None)
        await a.says(1)
        await b.says(1)
        assert (await following.call(PeerId("a"), HERE)).comes_in_s == 1.25
        assert await following.call(PeerId("b"), HERE) == NOT_COMING
        assert a.is_called(HERE)
        assert not b.is_called(HERE)

    in_lab(test)


def test_what_a_left_out_trainer_holds_does_not_fill_the_batch_of_the_others() -> None:
    async def test(lab: Lab) -> None:
        following = await lab.add_leader("leader")
        a, b, slow = [await lab.add_trainer(name) for name in ("a", "b", "slow")]
        following.left_out = frozenset({PeerId("slow")})
        await slow.says(60)
        await a.says(50)
        await b.says(49)
        assert lab.told("call") == []
        await b.says(50)
        assert sorted(lab.told("call")) == ["a", "b", "slow"]
        assert slow.is_called(HERE)  # the plan says whether it is let in

    in_lab(test)


def test_trainers_that_are_all_left_out_fill_a_batch_of_their_own() -> None:
    async def test(lab: Lab) -> None:
        following = await lab.add_leader("leader")
        slow = await lab.add_trainer("slow")
        following.left_out = frozenset({PeerId("slow"), PeerId("dead")})
        await slow.says(100)
        assert slow.is_called(HERE)

    in_lab(test)


def test_a_call_says_how_long_the_others_will_wait() -> None:
    async def test(lab: Lab) -> None:
        following = await lab.add_leader("leader")
        a = await lab.add_trainer("a")
        await a.says(100)
        for _ in range(ENOUGH):
            following.patience.add(2.0)
        await a.says(100, history=(4, M))
        calls = [message for _, _, _, message in lab.network.sent if message.kind == "call"]
        assert [call.fields["patience_s"] for call in calls] == [60.0, 2.0]

    in_lab(test)


# -- who is gone -------------------------------------------------------------------------------------------------------


def test_who_stands_no_more_is_forgotten_and_its_pending_call_ends_without_an_answer() -> None:
    async def test(lab: Lab) -> None:
        following = await lab.add_leader("leader")
        stream = await lab.stranger("mute")
        await stream.send(word(samples=60.0), timeout_s=1.0)
        await asyncio.sleep(0.1)
        calling = asyncio.create_task(following.call(PeerId("mute"), HERE))
        await asyncio.sleep(1.0)
        assert not calling.done()
        stream.close()
        await asyncio.sleep(0.1)
        assert calling.done()
        with pytest.raises(KeyError):  # it may be dead, or stand with another leader, and is asked elsewhere
            await calling
        assert following.at(HERE) == frozenset()
        a = await lab.add_trainer("a")
        await a.says(50)
        assert lab.told("call") == ["mute"]  # what the dead one had is not counted any more

    in_lab(test)


def test_who_stands_anew_answers_no_call_over_its_old_stream() -> None:
    """After a partition the leader still calls over a stream that its trainer gave up meanwhile."""

    async def test(lab: Lab) -> None:
        following = await lab.add_leader("leader")
        old = await lab.stranger("a")
        await old.send(word(), timeout_s=1.0)
        await asyncio.sleep(0.1)
        calling = asyncio.create_task(following.call(PeerId("a"), HERE))
        await asyncio.sleep(0.1)
        assert not calling.done()
        await lab.stranger("a")
        await asyncio.sleep(0.1)
        assert calling.done()
        with pytest.raises(KeyError):
            await calling

    in_lab(test)


def test_who_has_gone_on_comes_to_nothing_that_it_was_called_for_before() -> None:
    async def test(lab: Lab) -> None:
        following = await lab.add_leader("leader")
        stream = await lab.stranger("a")
        await stream.send(word(), timeout_s=1.0)
        await asyncio.sleep(0.1)
        calling = asyncio.create_task(following.call(PeerId("a"), HERE))
        await stream.send(word(samples=6.0), timeout_s=1.0)
        await asyncio.sleep(0.1)
        assert not calling.done()
        await stream.send(word(epoch=4, lineage="m"), timeout_s=1.0)
        stream.close()
        await asyncio.sleep(0.1)
        assert calling.done()
        assert await calling == NOT_COMING

    in_lab(test)


def test_a_trainer_that_does_not_answer_is_not_waited_for() -> None:
    async def test(lab: Lab) -> None:
        following = await lab.add_leader("leader")
        stream = await lab.stranger("mute")
        await stream.send(word(), timeout_s=1.0)
        await asyncio.sleep(0.1)
        with pytest.raises(TimedOut):
            await following.call(PeerId("mute"), HERE)
        with pytest.raises(KeyError):
            await following.call(PeerId("nobody"), HERE)

    in_lab(test)


def test_a_trainer_that_declined_is_called_again_when_it_speaks_of_the_same_history() -> None:
    async def test(lab: Lab) -> None:
        await lab.add_leader("leader")
        a = await lab.add_trainer("a", eta_s=None)
        await a.says(1000)
        assert not a.is_called(HERE)
        a.eta_s = 0.5
        await a.says(1000)
        assert a.is_called(HERE)

    in_lab(test)


def test_after_a_round_that_came_to_nothing_everybody_is_called_again() -> None:
    async def test(lab: Lab) -> None:
        following = await lab.add_leader("leader")
        a, b = [await lab.add_trainer(name) for name in "ab"]
        for trainer in (a, b):
            await trainer.says(1000)
        a.accepted.clear()
        b.accepted.clear()
        await a.says(1001)
        assert not a.is_called(HERE), "once is enough, while the round may yet come about"
        following.forget_call((3, M))
        await a.says(1002)
        assert not a.is_called(HERE), "that was another round"
        following.forget_call(HERE)
        await a.says(1003)
        assert a.is_called(HERE)
        assert b.is_called(HERE)

    in_lab(test)


def test_a_trainer_that_comes_back_over_a_new_stream_counts_once() -> None:
    async def test(lab: Lab) -> None:
        following = await lab.add_leader("leader")
        old = await lab.stranger("a")
        await old.send(word(samples=60.0), timeout_s=1.0)
        new = await lab.stranger("a")
        await new.send(word(samples=61.0), timeout_s=1.0)
        await asyncio.sleep(0.1)
        assert lab.told("call") == []
        old.close()
        await asyncio.sleep(0.1)
        assert following.at(HERE) == {PeerId("a")}

    in_lab(test)


def test_when_the_leader_dies_a_trainer_stands_with_the_next_one() -> None:
    async def test(lab: Lab) -> None:
        ends: list[FakeStream] = []
        first, second = await lab.add_leader("first"), await lab.add_leader("second")
        keep_streams(lab.network, "first", ends)
        a = await lab.add_trainer("a")
        await a.says(10)
        assert first.at(HERE) == {PeerId("a")}
        assert second.at(HERE) == frozenset()
        lab.network.leave("first")
        lab.leaders.remove(PeerId("first"))
        assert a.standing.due_s is not None
        ends[0].close()
        await asyncio.sleep(0.1)
        assert a.standing.is_connected
        assert second.at(HERE) == {PeerId("a")}  # without a new word of the trainer

    in_lab(test)


def test_when_the_leader_is_frozen_a_trainer_stands_with_the_next_one_until_the_first_is_back() -> None:
    async def test(lab: Lab) -> None:
        first, second = await lab.add_leader("first"), await lab.add_leader("second")
        served = lab.network.peers[PeerId("first")].handlers.copy()

        async def freeze(stream: FakeStream) -> None:
            await asyncio.sleep(1e6)

        lab.network.peers[PeerId("first")].handlers = dict.fromkeys(served, freeze)
        a = await lab.add_trainer("a")
        await a.says(10)
        await asyncio.sleep(FIRST.silence_s + 0.1)
        assert second.at(HERE) == {PeerId("a")}, "the directory still names the first one"
        assert a.standing.is_connected
        lab.network.peers[PeerId("first")].handlers = served
        a.timeouts.showed(PeerId("first"))
        await a.says(20)
        await a.says(20)
        assert first.at(HERE) == {PeerId("a")}

    in_lab(test)


def test_when_somebody_else_leads_the_next_word_goes_there() -> None:
    async def test(lab: Lab) -> None:
        first, second = await lab.add_leader("first"), await lab.add_leader("second")
        a = await lab.add_trainer("a")
        await a.says(10)
        lab.leaders.reverse()
        await a.says(20)
        assert first.at(HERE) == frozenset()
        assert second.at(HERE) == {PeerId("a")}
        assert lab.told("word") == ["first", "second"]

    in_lab(test)


def test_a_leader_that_cannot_be_reached_is_tried_once_a_second() -> None:
    async def test(lab: Lab) -> None:
        lab.leaders.append(PeerId("leader"))
        a = await lab.add_trainer("a")
        await a.says(10)
        await asyncio.sleep(20.0)
        assert not a.standing.is_connected
        del lab.leaders[0]
        following = await lab.add_leader("leader")
        await asyncio.sleep(RETRY_S)
        assert following.at(HERE) == {PeerId("a")}

    in_lab(test)


def test_a_leader_without_room_is_asked_again_when_it_may_have_some_and_another_one_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leading, "MAX_STANDING", 2)

    async def test(lab: Lab) -> None:
        first = await lab.add_leader("first")
        there = [await lab.stranger(name, "first") for name in "ab"]
        late, later = await lab.add_trainer("late"), await lab.add_trainer("later")
        for trainer in (late, later):
            await trainer.says(10)
        for number in range(int(FULL_S) - 2):
            await late.says(10 + number)
            await asyncio.sleep(0.9)
        assert lab.told("full") == ["late", "later"], "not each second"
        there[0].close()
        await asyncio.sleep(4 * RETRY_S)
        assert first.at(HERE) == {PeerId("late")}
        assert late.standing.is_connected
        assert lab.told("full") == ["late", "later", "later"]
        second = await lab.add_leader("second")
        lab.leaders.reverse()
        await asyncio.sleep(2 * RETRY_S)
        assert second.at(HERE) == {PeerId("later")}, "it need not wait for the first one's room"

    in_lab(test)


def keep_streams(network: FakeNetwork, name: str, ends: list[FakeStream]) -> None:
    """Note the ends at ``name`` of streams that come to it, so that the test can close them as a dying peer does."""
    handler = network.peers[PeerId(name)].handlers[STANDING_PROTOCOL]

    async def noting(stream: Stream) -> None:
        assert isinstance(stream, FakeStream)
        ends.append(stream)
        await handler(stream)

    network.peers[PeerId(name)].handlers[STANDING_PROTOCOL] = noting
