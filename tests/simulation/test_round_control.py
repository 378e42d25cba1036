"""Round control in whole runs and between engines: who is waited for, and for how long."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from collab.averaging.base import Aborted, Committed, Outcome
from collab.averaging.calls import CALL_PROTOCOL, Reply
from collab.averaging.deadlines import ENOUGH, FLOOR_S
from collab.averaging.messages import ROUND_PROTOCOL
from collab.averaging.timeouts import FIRST
from collab.net.base import Handler, Stream
from collab.net.wire import Message
from collab.types import PeerId
from tests.averaging.swarm import Rounds, random_vectors
from tests.fakes import FakeNetwork, run
from tests.simulation.swarm import SimSwarm

LATE_S = 50.0
"""More than a group waits for anybody once it knows how soon peers usually come; less than it may wait at first."""


class Switchboard:
    """Counts the streams that come to the peers of a network, and can close them."""

    def __init__(self, network: FakeNetwork) -> None:
        self.opened: Counter[tuple[PeerId, str]] = Counter()
        """By who opened them and the protocol."""
        self.ends: list[tuple[str, Stream]] = []
        for transport in network.peers.values():
            for protocol, handler in transport.handlers.items():
                transport.handlers[protocol] = self._noting(protocol, handler)

    def _noting(self, protocol: str, handler: Handler) -> Handler:
        async def noting(stream: Stream) -> None:
            self.opened[stream.remote, protocol] += 1
            self.ends.append((protocol, stream))
            await handler(stream)

        return noting

    def hang_up(self, protocol: str) -> None:
        """At the end of those who were called."""
        for used, stream in self.ends:
            if used == protocol:
                stream.close()


def announces(rounds: Rounds, name: str, eta_s: float) -> None:
    """From now on a trainer answers calls with: in ``eta_s`` seconds."""

    def tamper(sender: PeerId, receiver: PeerId, protocol: str, message: Message) -> Message:
        if (sender, protocol, message.kind) == (name, CALL_PROTOCOL, "coming"):
            return Reply(is_coming=True, comes_in_s=eta_s, free_in_s=eta_s).to_message()
        return message

    rounds.network.tamper = tamper


async def four_trainers(network: FakeNetwork, *, practised: bool) -> Rounds:
    """Led by one of them, which knows from earlier rounds how soon the others come if they have ``practised``."""
    rounds = Rounds(network, "a")
    for name in "abcd":
        await rounds.add_trainer(name)
    if practised:
        for epoch in range(ENOUGH // 4):
            await rounds.average(random_vectors("abcd", 100), epoch=epoch)
    return rounds


async def timed(rounds: Rounds, names: str, epoch: int = 9) -> tuple[dict[str, Outcome], float]:
    """A round of ``names``, and how long it took."""
    began_s = asyncio.get_running_loop().time()
    outcomes = await rounds.average(random_vectors(names, 100), epoch=epoch)
    return outcomes, asyncio.get_running_loop().time() - began_s


# -- how long a group waits --------------------------------------------------------------------------------------------


def test_a_leader_that_has_seen_nothing_yet_waits_for_whoever_says_that_it_is_coming() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = await four_trainers(network, practised=False)
            announces(rounds, "d", LATE_S)
            outcomes, seconds = await timed(rounds, "abc")
            assert all(isinstance(outcome, Committed) for outcome in outcomes.values())
            assert seconds == pytest.approx(LATE_S + FIRST.gather_slack_s, abs=0.1)

    run(main())


def test_with_a_quorum_nobody_waits_for_a_straggler_that_comes_after_the_learned_deadline() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = await four_trainers(network, practised=True)
            announces(rounds, "d", LATE_S)
            outcomes, seconds = await timed(rounds, "abc")
            assert all(isinstance(outcome, Committed) for outcome in outcomes.values())
            assert seconds < 0.05

    run(main())


def test_whoever_comes_within_the_learned_deadline_is_waited_for_until_it_is_late() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = await four_trainers(network, practised=True)
            announces(rounds, "d", FLOOR_S / 2)
            outcomes, seconds = await timed(rounds, "abc")  # it never comes
            assert all(isinstance(outcome, Committed) for outcome in outcomes.values())
            assert seconds == pytest.approx(FLOOR_S / 2 + FIRST.gather_slack_s, abs=0.05)

    run(main())


def test_a_leader_knows_a_straggler_among_many_in_its_very_first_round() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            names = "abcdefghi"
            rounds = Rounds(network, "a")
            for name in names:
                await rounds.add_trainer(name)
            announces(rounds, "i", LATE_S)
            outcomes, seconds = await timed(rounds, names[:-1])
            assert all(isinstance(outcome, Committed) for outcome in outcomes.values())
            assert seconds < FLOOR_S + 0.05

    run(main())


def test_without_a_quorum_the_group_waits_for_those_who_are_coming() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = await four_trainers(network, practised=True)
            announces(rounds, "d", LATE_S)
            rounds.absent.add("c")
            outcomes, seconds = await timed(rounds, "ab")
            assert seconds == pytest.approx(LATE_S + FIRST.gather_slack_s, abs=0.1)
            assert {o.reason for o in outcomes.values() if isinstance(o, Aborted)} == {"no_quorum"}

    run(main())


def test_a_group_closes_at_once_when_all_who_said_they_are_coming_are_there() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = await four_trainers(network, practised=True)
            rounds.absent.add("d")
            outcomes, seconds = await timed(rounds, "abc")
            assert all(isinstance(outcome, Committed) for outcome in outcomes.values())
            assert seconds < 0.05

    run(main())


def test_an_hour_that_a_peer_announces_is_not_believed() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = await four_trainers(network, practised=False)
            announces(rounds, "d", 3600.0)
            _, seconds = await timed(rounds, "abc")
            assert seconds <= FIRST.gather_limit_s + FIRST.gather_slack_s + 0.1

    run(main())


# -- streams that stay -------------------------------------------------------------------------------------------------


def test_members_join_round_after_round_over_one_stream() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = await four_trainers(network, practised=False)
            board = Switchboard(network)
            for epoch in range(10):
                outcomes = await rounds.average(random_vectors("abcd", 100), epoch=epoch)
                assert all(isinstance(outcome, Committed) for outcome in outcomes.values())
            assert {peer: board.opened[PeerId(peer), ROUND_PROTOCOL] for peer in "abcd"} == dict.fromkeys("abcd", 1)

    run(main())


def test_a_leader_that_hung_up_between_rounds_is_found_again() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = await four_trainers(network, practised=False)
            board = Switchboard(network)
            for epoch in range(3):
                outcomes, seconds = await timed(rounds, "abcd", epoch)
                assert all(isinstance(outcome, Committed) for outcome in outcomes.values()), epoch
                assert seconds < 0.1
                board.hang_up(ROUND_PROTOCOL)
            assert {peer: board.opened[PeerId(peer), ROUND_PROTOCOL] for peer in "abcd"} == dict.fromkeys("abcd", 3)

    run(main())


def test_a_leader_that_restarted_between_rounds_is_found_again(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=12, target=400)
    backbone = swarm.add_backbone()
    trainers = [swarm.add_trainer() for _ in range(3)]
    swarm.churn.fail_at(peer=backbone.index, time_s=12.0, restart_after_s=0.3)
    swarm.world.run()
    assert not swarm.churn.unfired()
    assert backbone.lives == 2
    assert {peer.result["epoch"] for peer in trainers} == {12}
    assert len({peer.result["lineage"] for peer in trainers}) == 1
    assert all(contributors == 3 for contributors in swarm.contributors(trainers[0])[-3:])
