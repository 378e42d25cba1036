"""The leader and one more member die together: its successor keeps the others while it waits for the dead one."""

import asyncio

import pytest

from collab.averaging.base import Committed, Contribution
from collab.averaging.messages import ROUND_PROTOCOL
from collab.net.wire import Message
from collab.types import PeerId
from tests.averaging.swarm import L, Rounds, random_vectors
from tests.fakes import FakeNetwork, run


@pytest.mark.parametrize("names", ["abcde", "abcdefghi"])
def test_the_first_successor_leads_on_with_all_who_live(names: str) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, *names)
            for name in names:
                await rounds.add_trainer(name)
            dead = {"a", names[-1]}
            is_struck = False

            def tamper(sender: str, to: str, protocol: str, message: Message) -> Message | None:
                nonlocal is_struck
                if protocol == ROUND_PROTOCOL and sender == "b" and to == "a" and message.kind == "done":
                    is_struck = True
                    for name in dead:
                        network.peers.pop(PeerId(name), None)
                        rounds.trainers.discard(PeerId(name))
                    rounds.leaders[:] = [peer for peer in rounds.leaders if peer not in dead]
                return None if is_struck and {sender, to} & dead else message

            network.tamper = tamper
            vectors = random_vectors(names, 3000)
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            tasks = {
                name: asyncio.create_task(
                    rounds.engines[name].average(Contribution(epoch=0, lineage=L, vector=vectors[name], weight=1.0))
                )
                for name in names
            }
            live = sorted(set(names) - dead)
            await asyncio.wait([tasks[name] for name in live], timeout=60)
            seconds = loop.time() - began_s
            assert is_struck
            records = set()
            for name in live:
                outcome = tasks[name].result()
                assert isinstance(outcome, Committed), outcome
                records.add(outcome.record.next_lineage())
            assert len(records) == 1
            assert seconds < 4.0, "one wait for the dead, not one at each successor"
            for name in dead:
                tasks[name].cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    run(main())
