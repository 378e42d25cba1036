"""A peer that has taken over a state, and was in no round before, may be the one to lead the next."""

import asyncio

import pytest

from collab.averaging.base import Committed, Superseded
from collab.averaging.messages import VERDICT_PROTOCOL
from collab.net.base import Stream
from collab.net.wire import Message
from collab.types import PeerId
from tests.averaging.records import make_record
from tests.averaging.swarm import Rounds, random_vectors
from tests.fakes import FakeNetwork, run


async def a_round_and_a_newcomer(rounds: Rounds) -> Committed:
    """Of a, b and c; d comes after it, and leads from now on."""
    for name in "abc":
        await rounds.add_trainer(name)
    outcome = (await rounds.average(random_vectors("abc", 1000)))["a"]
    assert isinstance(outcome, Committed)
    await rounds.add_trainer("d")
    rounds.leaders = [PeerId("d")]
    return outcome


def test_a_newcomer_that_leads_learns_from_the_joiners_who_decides_what_follows_their_history() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "a")
            first = await a_round_and_a_newcomer(rounds)
            outcomes = await rounds.average(random_vectors("abcd", 1000), epoch=1, lineage=first.lineage)
            for outcome in outcomes.values():
                assert isinstance(outcome, Committed)
                assert len(outcome.record.contributors) == 4
                assert outcome.record.members[0] == PeerId("d")

    run(main())


@pytest.mark.parametrize("answer", ["another record", "nonsense", "silence"])
def test_what_a_joiner_makes_up_about_a_history_is_not_believed(answer: str) -> None:
    """The history is the digest of the record that made it."""

    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "a")
            first = await a_round_and_a_newcomer(rounds)

            async def lie(stream: Stream) -> None:
                await stream.receive(timeout_s=1.0)
                fields = make_record(members=(PeerId("a"),)).to_fields()
                if answer == "silence":
                    await asyncio.sleep(100.0)
                await stream.send(
                    Message("made", {"record": fields if answer == "another record" else {}}), timeout_s=1.0
                )

            await network.peers[PeerId("a")].serve(VERDICT_PROTOCOL, lie)
            outcomes = await rounds.average(random_vectors("abcd", 1000), epoch=1, lineage=first.lineage)
            assert all(isinstance(outcome, Committed) for outcome in outcomes.values())

    run(main())


NEWCOMERS = "cde"


@pytest.mark.parametrize("are_seen", [False, True])
@pytest.mark.parametrize("helper_leads", [False, True])
def test_newcomers_that_outnumber_those_who_decide_never_decide_their_step_again(
    are_seen: bool, helper_leads: bool
) -> None:
    """They hold a state from which the others have gone on, and none of them knows who decides what follows it."""

    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "a")
            for name in "ab":
                await rounds.add_trainer(name)
            first = (await rounds.average(random_vectors("ab", 100)))["a"]
            assert isinstance(first, Committed)
            second = (await rounds.average(random_vectors("ab", 100), epoch=1, lineage=first.lineage))["a"]
            assert isinstance(second, Committed)
            for name in NEWCOMERS:
                await rounds.add_trainer(name)
            if helper_leads:
                await rounds.add_auxiliary("s")  # as a backbone that was restarted
            rounds.leaders = [PeerId("s" if helper_leads else "c")]
            rounds.ahead = {PeerId("a"), PeerId("b")} if are_seen else set()
            outcomes = await rounds.average(random_vectors(NEWCOMERS, 100), epoch=1, lineage=first.lineage)
            for outcome in outcomes.values():
                assert not isinstance(outcome, Committed)
                if are_seen:
                    assert isinstance(outcome, Superseded)
                    assert outcome.record == second.record

    run(main())
