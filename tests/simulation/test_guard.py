"""Quotas in whole swarms: honest peers stay far from them, and whoever floods others costs their rounds nothing."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import pytest

from collab.averaging.base import Committed
from collab.averaging.calls import CALL_PROTOCOL
from collab.averaging.messages import PARTS_PROTOCOL, ROUND_PROTOCOL, VERDICT_PROTOCOL
from collab.averaging.probe import PROBE_PROTOCOL
from collab.averaging.standing import STANDING_PROTOCOL
from collab.concurrency import Background
from collab.errors import NetworkError
from collab.metrics.records import PeerRefused
from collab.net.base import Stream
from collab.net.quotas import LIMITS, QUIET_PEERS, QUOTAS, SMALL_BYTES
from collab.net.wire import Message
from collab.ports import Ports
from collab.simulation.peer import SimPeer
from collab.types import PeerId
from tests.simulation import rounds as round_lab
from tests.simulation.faulty_rounds import STRIKES, Fault, FaultyRounds
from tests.simulation.rounds import SimRounds, link
from tests.simulation.swarm import SimSwarm

MARGIN = 4
"""So many times what any of these honest swarms does is allowed."""
OF_THE_GUARD = {
    *("too_many_streams", "streams_too_often", "too_many_messages", "too_large"),
    *("bad_message", "version_mismatch", "handler_failed", "shut_out"),
}


def refused_by_guards(peers: Iterable[SimPeer]) -> Counter[tuple[PeerId, str]]:
    """How often whom, and why."""
    events = [event for peer in peers for event in peer.events if isinstance(event, PeerRefused)]
    return Counter((e.peer, e.reason) for e in events if e.epoch < 0 and e.reason in OF_THE_GUARD)


def words_of_guards(peers: Iterable[SimPeer]) -> list[str]:
    """The same for people."""
    events = [event for peer in peers for event in peer.events if isinstance(event, PeerRefused)]
    return [f"{e.at_s % 1e5:.1f} {e.peer[-4:]} {e.reason}: {e.text}" for e in events if e.reason in OF_THE_GUARD]


# -- honest ------------------------------------------------------------------------------------------------------------


def test_a_busy_swarm_with_kills_restarts_and_newcomers_stays_below_a_quarter_of_every_quota(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=40, target=96, every=5)
    swarm.world.limits = LIMITS.divided_by(MARGIN)
    swarm.add_backbone()
    trainers = [swarm.add_trainer(samples_per_s=200.0, microbatch_size=2, client_mode=n == 3) for n in range(6)]
    swarm.add_auxiliary()
    for number in range(4):
        swarm.world.call_at(3.0 + number, lambda: swarm.world.kill(trainers[1].index))
        swarm.world.call_at(3.5 + number, lambda: swarm.world.restart(trainers[1].index))
    swarm.world.call_at(8.0, lambda: swarm.world.freeze(trainers[2].index))
    swarm.world.call_at(14.0, lambda: swarm.world.thaw(trainers[2].index))
    swarm.world.call_at(9.0, lambda: [swarm.add_trainer(samples_per_s=100.0) for _ in range(3)])
    swarm.world.run(until_s=35.0)
    assert max(swarm.contributors(trainers[0])) >= 6
    assert max(event.epoch for event in trainers[0].events if hasattr(event, "lineage")) >= 20
    assert words_of_guards(swarm.world.peers) == []
    swarm.world.close()


def test_fifty_rounds_as_fast_as_they_can_follow_each_other_stay_below_a_quarter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(round_lab, "PAUSE_S", 0.0)
    rounds = SimRounds([link(10_000, delay_ms=0.05)] * 6, roles={5: "aux", 4: "client"}, mb=0.1, rounds=50)
    rounds.world.limits = LIMITS.divided_by(MARGIN)
    rounds.run()
    assert rounds.world.time_s < 50 * 0.1
    assert all(isinstance(outcome, Committed) for outcome in rounds.outcomes.values())
    assert words_of_guards(rounds.world.peers) == []


@pytest.mark.parametrize("kind", STRIKES)
@pytest.mark.parametrize("peer", [0, 1, 4])
def test_rounds_that_are_mended_stay_below_a_quarter(kind: str, peer: int) -> None:
    message = "wait" if peer == 0 else "result"
    rounds = FaultyRounds([Fault(number=1, peer=peer, kind=kind, message=message)])
    rounds.world.limits = LIMITS.divided_by(MARGIN)
    rounds.run()
    assert words_of_guards(rounds.world.peers) == []


# -- a flood -----------------------------------------------------------------------------------------------------------

LEADER, FLOODER = 4, 5
PAUSE_S = 0.02
"""What comes over a link counts, whoever refuses it: a flood without pauses would be about links."""
Attack = Callable[[Ports, PeerId], Awaitable[None]]


async def keep_opening(ports: Ports, target: PeerId) -> None:
    """Streams of every kind, that stay open."""
    streams: list[Stream] = []
    while True:
        protocols = (ROUND_PROTOCOL, PARTS_PROTOCOL, CALL_PROTOCOL, VERDICT_PROTOCOL, STANDING_PROTOCOL)
        streams += [await ports.transport.open(target, protocol, timeout_s=1.0) for protocol in protocols]
        await asyncio.sleep(PAUSE_S)


async def talk_without_end(ports: Ports, target: PeerId, *, fingerprint: str = "sim") -> None:
    """Small messages that make sense, again and again."""
    answer = {"epoch": 0, "lineage": "s", "comes_in_s": 0.0, "free_in_s": 0.0}
    while True:
        stream = await ports.transport.open(target, STANDING_PROTOCOL, timeout_s=1.0)
        try:
            await stream.send(Message("stand", {"fingerprint": fingerprint}), timeout_s=1.0)
            while True:
                for _ in range(100):
                    await stream.send(Message("coming", {"coming": False, **answer}), timeout_s=1.0)
                await asyncio.sleep(PAUSE_S)
        except NetworkError:
            await asyncio.sleep(PAUSE_S)


async def send_what_is_too_large(ports: Ports, target: PeerId) -> None:
    """Headers and payloads that the wire allows, and their protocols have no use for."""
    large = {
        ROUND_PROTOCOL: Message("join", payload=bytes(50_000)),
        PARTS_PROTOCOL: Message("round", {"round_id": "x" * 100_000}),
        CALL_PROTOCOL: Message("call", {"lineage": "x" * 10_000}),
        PROBE_PROTOCOL: Message("probe", payload=bytes(100_000)),
    }
    while True:
        for protocol, message in large.items():
            stream = await ports.transport.open(target, protocol, timeout_s=5.0)
            try:
                await stream.send(message, timeout_s=5.0)
                await stream.receive(timeout_s=5.0)
            except NetworkError:
                await asyncio.sleep(10 * PAUSE_S)


async def talk_nonsense(ports: Ports, target: PeerId) -> None:
    """The first message of every stream is none that is expected there."""
    while True:
        for protocol in (ROUND_PROTOCOL, PARTS_PROTOCOL, CALL_PROTOCOL, STANDING_PROTOCOL, PROBE_PROTOCOL):
            stream = await ports.transport.open(target, protocol, timeout_s=5.0)
            try:
                await stream.send(Message("gossip", {"about": "you"}), timeout_s=5.0)
                await stream.receive(timeout_s=0.1)
            except NetworkError:
                await asyncio.sleep(PAUSE_S)


def swarm_of_five(attack: Attack | None) -> SimRounds:
    """Five peers that average; a sixth does nothing, or attacks all of them from before the first round."""
    rounds = SimRounds([link(100)] * 5, roles={LEADER: "aux"}, mb=2.0, rounds=6)

    async def flood(ports: Ports) -> None:
        async with Background() as tasks:
            for peer in rounds.world.peers[:FLOODER]:
                tasks.create_task(insist(ports, peer.peer_id))
            while any(peer.is_alive for peer in rounds.world.peers[:FLOODER]):
                await asyncio.sleep(0.1)

    async def insist(ports: Ports, target: PeerId) -> None:
        while attack is not None:
            try:
                await attack(ports, target)
            except NetworkError:
                await asyncio.sleep(0.1)

    rounds.world.add_peer(flood, link=link(100))
    rounds.run()
    return rounds


@pytest.fixture(scope="module")
def undisturbed() -> SimRounds:
    return swarm_of_five(None)


@pytest.mark.parametrize(
    ("attack", "reasons"),
    [
        (keep_opening, {"too_many_streams", "shut_out"}),
        (talk_without_end, {"too_many_messages"}),
        (send_what_is_too_large, {"too_large"}),
        (talk_nonsense, {"bad_message"}),
    ],
)
def test_a_flood_costs_the_rounds_of_the_others_nothing_and_is_counted(
    undisturbed: SimRounds, attack: Attack, reasons: set[str]
) -> None:
    rounds = swarm_of_five(attack)
    flooder = rounds.world.peers[FLOODER].peer_id
    assert sum(rounds.seconds) < 1.1 * sum(undisturbed.seconds)
    for number in range(rounds.rounds):
        commits = [rounds.outcomes[index, number] for index in rounds.trainers]
        assert all(isinstance(commit, Committed) for commit in commits), commits
        assert {len(commit.record.contributors) for commit in commits if isinstance(commit, Committed)} == {4}
        assert len({commit.mean.tobytes() for commit in commits if isinstance(commit, Committed)}) == 1
    refused = refused_by_guards(rounds.world.peers)
    assert {peer for peer, _ in refused} == {flooder}
    for reason in reasons:
        assert refused[flooder, reason] >= 5, refused
    assert refused_by_guards(undisturbed.world.peers) == {}


# -- the table ---------------------------------------------------------------------------------------------------------


def test_what_one_peer_can_cost_us_at_most_is_little() -> None:
    open_streams = sum(quota.open_streams for quota in QUOTAS.values())
    assert open_streams * (64 << 10) < 32e6, "each stream reads into 64 KB"
    small_bytes = max(quota.messages.burst for quota in QUOTAS.values()) * SMALL_BYTES
    assert small_bytes < 32e6
    assert QUIET_PEERS * 1500 < 2e6
    assert all(quota.streams.burst >= quota.open_streams for quota in QUOTAS.values())
