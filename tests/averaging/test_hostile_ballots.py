"""Who names a huge ballot uses up no numbers: what follows a history can still be decided."""

import asyncio
from contextlib import suppress

import pytest

from collab.averaging.ballots import LEAP, ballot_above
from collab.averaging.base import Committed
from collab.averaging.messages import MAX_BALLOT, ROUND_PROTOCOL, Join
from collab.errors import NetworkError
from collab.net.wire import Message
from collab.types import PeerId
from tests.averaging.swarm import L, Rounds, random_vectors
from tests.fakes import FakeNetwork, run

ME = PeerId("me")
HUGE = MAX_BALLOT - 2


@pytest.mark.parametrize(
    ("promised", "number"),
    [
        ((), 1),
        ((0, 0), 1),
        ((3, 7), 8),
        ((0, 0, HUGE), 1),
        ((7, 7, LEAP + 7, HUGE), LEAP + 8),
        ((HUGE, HUGE, 0), HUGE + 1),
    ],
)
def test_a_ballot_is_above_what_was_promised_and_passes_over_what_a_minority_invents(
    promised: tuple[int, ...], number: int
) -> None:
    assert ballot_above(promised, ME).number == number


def test_a_joiner_that_claims_to_have_promised_the_last_ballot_changes_nothing() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "a")
            for name in "abc":
                await rounds.add_trainer(name)
            liar = network.join("z")

            async def lie() -> None:
                stream = await liar.open(PeerId("a"), ROUND_PROTOCOL, timeout_s=1)
                join = Join(
                    fingerprint="f", epoch=0, lineage=L, num_elements=0, weight=0.0, can_reduce=False, promised=HUGE
                )
                with suppress(NetworkError):
                    await stream.send(join.to_message(), timeout_s=1)
                    while True:
                        await stream.receive(timeout_s=100)

            network.run(lie())
            await asyncio.sleep(0.1)
            outcomes = await rounds.average(random_vectors("abc", 100))
            assert all(isinstance(outcome, Committed) for outcome in outcomes.values())
            certified = rounds.engines["a"]._verdicts.committed(0, L)
            assert certified is not None
            assert certified.certificate.ballot.number < LEAP

    run(main())


def test_members_do_not_follow_a_leader_that_begins_with_the_last_ballot_and_decide_without_it() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "a")
            for name in "abc":
                await rounds.add_trainer(name)

            def tamper(sender: str, to: str, protocol: str, message: Message) -> Message:
                if message.kind == "begin" and sender == "a":
                    message.fields["ballot"] = HUGE
                return message

            network.tamper = tamper
            outcomes = await rounds.average(random_vectors("abc", 100))
            assert not any(isinstance(outcome, Committed) for outcome in outcomes.values())
            network.tamper = None
            rounds.leaders = [PeerId("b")]
            outcomes = await rounds.average(random_vectors("abc", 100))
            assert all(isinstance(outcome, Committed) for outcome in outcomes.values())

    run(main())
