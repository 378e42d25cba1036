"""A trainer turns to another leader while the first one calls it: whether it comes is for it to say."""

import asyncio

import pytest

from collab.averaging.base import Aborted, Committed, Contribution, Outcome
from collab.averaging.calls import CALL_PROTOCOL
from collab.averaging.standing import STANDING_PROTOCOL, Word
from collab.net.wire import Message
from collab.types import PeerId, Vector
from tests.averaging.swarm import L, Rounds, random_vectors
from tests.fakes import FakeNetwork, run

A, B = PeerId("a"), PeerId("b")


@pytest.mark.parametrize("is_coming", [True, False])
def test_who_turns_to_another_leader_is_asked_over_a_stream_of_its_own(is_coming: bool) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "a")
            for name in "ab":
                await rounds.add_trainer(name)
            if not is_coming:
                rounds.absent.add("b")
            stream = await rounds.ports["b"].transport.open(A, STANDING_PROTOCOL, timeout_s=1)
            await stream.send(Message("stand", {"fingerprint": "f"}), timeout_s=1)
            await stream.send(Word(0, L, 1.0, 1.0).to_message(), timeout_s=1)
            await asyncio.sleep(0.1)
            vectors = random_vectors("ab", 100)
            first = asyncio.create_task(average(rounds, "a", vectors))
            while (await stream.receive(timeout_s=1)).kind != "call":
                pass
            stream.close()
            await asyncio.sleep(0.1)
            asked = [to for _, to, protocol, message in network.sent if protocol == CALL_PROTOCOL and to == B]
            assert asked == [B]
            if is_coming:
                outcomes = [await average(rounds, "b", vectors), await first]
                assert all(isinstance(outcome, Committed) for outcome in outcomes)
            else:
                outcome = await first
                assert isinstance(outcome, Aborted)
                assert outcome.reason == "no_quorum"

    run(main())


async def average(rounds: Rounds, name: str, vectors: dict[str, Vector]) -> Outcome:
    return await rounds.engines[name].average(Contribution(epoch=0, lineage=L, vector=vectors[name], weight=1.0))
