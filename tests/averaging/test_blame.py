"""Who is blamed for what went wrong between two members, and what it costs."""

import asyncio

import pytest

from collab.averaging.base import Committed, Superseded
from collab.averaging.messages import PARTS_PROTOCOL
from collab.metrics.records import PeerRefused
from collab.net.wire import Message
from collab.types import PeerId
from tests.averaging.swarm import Rounds, random_vectors
from tests.averaging.test_round import WEIGHTS, check_mended
from tests.fakes import FakeNetwork, run


def refusals(rounds: Rounds, name: str) -> set[tuple[str, str]]:
    """Whom a peer refused, or went on without, and why."""
    events = rounds.observers[name].events
    return {(event.peer, event.reason) for event in events if isinstance(event, PeerRefused)}


def test_who_got_a_corrupted_result_in_an_attempt_that_failed_is_taken_in_when_it_comes_again() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "helper")
            await rounds.add_auxiliary("helper")
            for name in "abc":
                await rounds.add_trainer(name, can_reduce=False)
            begun: list[str] = []

            def spoil(sender: PeerId, to: PeerId, protocol: str, message: Message) -> Message | None:
                if message.kind == "begin":
                    begun.append(message.fields["round_id"])
                if len(set(begun)) > 1:
                    return message
                if (to, message.kind) == ("a", "result"):
                    return Message(message.kind, message.fields, bytes(len(message.payload)))
                return None if (sender, message.kind) == ("c", "done") else message

            network.tamper = spoil
            vectors = random_vectors("abc", 100)
            outcomes = await rounds.average(vectors, WEIGHTS)
            assert ("a", "results_differ") in refusals(rounds, "helper")
            assert len(set(begun)) == 2, "without a and c there is no quorum"
            assert isinstance(outcomes["a"], Committed), outcomes
            assert isinstance(outcomes["b"], Committed), outcomes

    run(main())


def test_parts_of_another_round_are_named_by_who_gets_them_and_by_the_leader() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "helper")
            await rounds.add_auxiliary("helper")
            for name in "abc":
                await rounds.add_trainer(name)
            done: list[str] = []

            def rename(sender: PeerId, to: PeerId, protocol: str, message: Message) -> Message | None:
                if (sender, to, protocol, message.kind) == ("a", "b", PARTS_PROTOCOL, "round") and not done:
                    done.append("once")
                    return Message("round", {**message.fields, "round_id": "elsewhere"})
                return message

            network.tamper = rename
            vectors = random_vectors("abc", 4 * 16_384)
            check_mended(await rounds.average(vectors, WEIGHTS), vectors, WEIGHTS)
            assert asyncio.get_running_loop().time() < 10.0, "who was relieved waits for no parts"
            await asyncio.sleep(1.0)
            assert ("a", "unknown_round") in refusals(rounds, "b")
            assert ("b", "slow_reducer") in refusals(rounds, "helper")

    run(main())


@pytest.mark.parametrize("leader", ["a", "b", "c"])
def test_two_reducers_that_cannot_reach_each_other_do_not_end_the_round(leader: str) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, leader)
            for name in "abcd":
                await rounds.add_trainer(name, can_reduce=name in "ab")

            def cut(sender: PeerId, to: PeerId, protocol: str, message: Message) -> Message | None:
                return None if protocol == PARTS_PROTOCOL and {sender, to} == {"a", "b"} else message

            network.tamper = cut
            vectors = random_vectors("abcd", 4 * 16_384)
            outcomes = await rounds.average(vectors, WEIGHTS)
            left_out = "a" if leader == "b" else "b"
            assert isinstance(outcomes.pop(left_out), Superseded)
            check_mended(outcomes, vectors, WEIGHTS)

    run(main())
