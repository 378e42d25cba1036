"""On the way into a round whose leader says nothing: all meet at the next one."""

import asyncio

import pytest

from collab.answers import ENOUGH
from collab.averaging.base import Aborted, Committed, Contribution
from collab.averaging.conduct import abort_message
from collab.averaging.messages import ROUND_PROTOCOL
from collab.metrics.records import PeerRefused, RoundEnded
from collab.net.base import Stream
from collab.net.quotas import QUOTAS
from collab.types import PeerId
from tests.averaging.swarm import L, Rounds, random_vectors
from tests.fakes import FakeNetwork, run

NAMES = "abcde"


@pytest.mark.parametrize("first", ["b", "c"])  # the next leader itself, or one who asks it to lead
def test_who_waits_for_a_frozen_leader_follows_the_first_one_who_noticed(first: str) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, *NAMES)
            for name in NAMES:
                await rounds.add_trainer(name)
            for _ in range(ENOUGH):
                with rounds.engines[first].links.timeouts.asking(PeerId("d"), is_quiet=True):
                    pass  # it learns to wait half as long for an answer as the others

            async def freeze(stream: Stream) -> None:
                await asyncio.sleep(3600)

            network.peers[PeerId("a")].handlers = dict.fromkeys(network.peers[PeerId("a")].handlers, freeze)
            vectors, loop = random_vectors(NAMES, 3000), asyncio.get_running_loop()
            began_s = loop.time()
            live = [name for name in NAMES if name != "a"]
            outcomes = await asyncio.gather(*(
                rounds.engines[name].average(Contribution(epoch=0, lineage=L, vector=vectors[name], weight=1.0))
                for name in live
            ))
            assert loop.time() - began_s < 3.0, "nobody waited for its own limit"
            for outcome in outcomes:
                assert isinstance(outcome, Committed), outcome
                assert set(dict(outcome.record.contributors)) == {PeerId(name) for name in live}

    run(main())


def test_who_fails_at_once_again_and_again_comes_no_more_often_than_a_leader_bears() -> None:
    """Else the leader shuts it out for half a minute."""

    async def main() -> None:
        async with FakeNetwork() as network:
            rounds, came = Rounds(network, "a", "b"), 0
            for name in "ab":
                await rounds.add_trainer(name)

            async def send_away(stream: Stream) -> None:
                nonlocal came
                came += 1
                await stream.receive(timeout_s=1.0)
                await stream.send(abort_message("no_quorum", "only 1 of 2 trainers are here"), timeout_s=1.0)

            network.peers[PeerId("a")].handlers[ROUND_PROTOCOL] = send_away
            vector, loop = random_vectors("b", 3000)["b"], asyncio.get_running_loop()
            began_s, tried = loop.time(), 0
            while loop.time() < began_s + 20.0:
                tried += 1
                await rounds.engines["b"].average(Contribution(epoch=0, lineage=L, vector=vector, weight=1.0))
                await asyncio.sleep(0.001)
            pace = QUOTAS[ROUND_PROTOCOL].streams
            assert tried > pace.burst, "it tried often"
            assert came <= pace.burst / 2 + 20.0 * pace.per_s / 2 + 1

    run(main())


def test_who_cannot_go_into_a_round_says_why_to_its_leader_and_to_whoever_watches_it() -> None:
    """Most have not heard that an elector is gone, and their leader has."""

    async def main() -> None:
        async with FakeNetwork() as network:
            rounds, first = await without_an_elector(network)
            rounds.takes_for_here = {name: {PeerId("d")} for name in "bc"}
            outcome = (await rounds.average(random_vectors("abc", 100), epoch=1, lineage=first.lineage))["a"]
            assert isinstance(outcome, Aborted), outcome
            (ended,) = [e for e in rounds.observers["a"].events if isinstance(e, RoundEnded) and not e.committed]
            assert "some are left out who decide" in ended.reason
            declined = refusals(rounds, "a")
            assert {(told.peer, told.reason) for told in declined} == {("b", "declined"), ("c", "declined")}
            assert all("some are left out who decide" in told.text for told in declined)
            for name in "bc":
                assert {(told.peer, told.reason) for told in refusals(rounds, name)} == {("a", "electors_left_out")}
            rounds.takes_for_here.clear()
            outcomes = await rounds.average(random_vectors("abc", 100), epoch=1, lineage=first.lineage)
            assert all(isinstance(outcome, Committed) for outcome in outcomes.values())

    run(main())


def test_a_goodbye_that_only_the_leader_has_read_yet_costs_no_round() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds, first = await without_an_elector(network)
            rounds.goodbyes_to_read = {name: {PeerId("d")} for name in "bc"}
            outcomes = await rounds.average(random_vectors("abc", 100), epoch=1, lineage=first.lineage)
            for outcome in outcomes.values():
                assert isinstance(outcome, Committed), outcome
                assert set(dict(outcome.record.contributors)) == {PeerId(name) for name in "abc"}

    run(main())


async def without_an_elector(network: FakeNetwork) -> tuple[Rounds, Committed]:
    """Four trainers, led by a, have been in a round, which decides what follows; d is gone since, and long missed."""
    rounds = Rounds(network, "a")
    for name in "abcd":
        await rounds.add_trainer(name)
    first = (await rounds.average(random_vectors("abcd", 100)))["a"]
    assert isinstance(first, Committed)
    rounds.trainers.discard(PeerId("d"))
    rounds.missed_s = 10.0 * rounds.engines["a"].links.timeouts.fixed.orphaned_s
    await asyncio.sleep(rounds.missed_s)
    return rounds, first


def refusals(rounds: Rounds, name: str) -> list[PeerRefused]:
    """That a peer has told of."""
    return [event for event in rounds.observers[name].events if isinstance(event, PeerRefused)]
