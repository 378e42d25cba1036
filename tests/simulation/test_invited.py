"""A run for those who were invited: everybody else is refused by everybody, whatever they call."""

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

from collab.errors import AccessDenied, Dismissed, NetworkError
from collab.metrics.records import EpochFinished, Notice, PeerRefused
from collab.net.quotas import HELLO_PROTOCOL, QUOTAS, REACH_PROTOCOL, REPORT_PROTOCOL
from collab.net.wire import Message
from collab.ports import Ports
from collab.simulation.peer import SimPeer
from collab.simulation.virtual_time import EPOCH_S
from collab.swarm.access import PASS_LIFE_S, Papers
from collab.swarm.handover import HANDOVER_PROTOCOL
from collab.swarm.identity import Identity
from collab.swarm.statements import Ban
from collab.swarm.statutes import Statutes
from collab.swarm.unit_leases import PARAMETERS_PROTOCOL, UNITS_PROTOCOL
from collab.swarm.vouching import VOUCH_PROTOCOL
from collab.training.dismissal import DAY_S, GOODBYE_S, NOTICE_DAYS, tell_of_end, turned_away
from collab.types import PeerId
from peers.auxiliary import Auxiliary, AuxiliarySettings
from peers.simulated_roles import show
from tests.fakes import NOW, FakeNetwork, FakeObserver, make_ports, run
from tests.simulation.swarm import SimSwarm
from tests.simulation.test_faults import assert_equal_ends

OWNER, ANNA, BOB, EVE = (Identity.from_seed(bytes([number] * 32)) for number in (77, 78, 79, 80))
ASKED_S = 5.0
NOT_SIMULATED = {REPORT_PROTOCOL, HELLO_PROTOCOL, REACH_PROTOCOL}
"""Served where a real peer starts, over the same guard."""
BACKBONES_ONLY = {HANDOVER_PROTOCOL, VOUCH_PROTOCOL}
OF_PARAMETER_SERVERS = {UNITS_PROTOCOL, PARAMETERS_PROTOCOL}
"""Served by the backbone of a run with ``vc_asgd``."""


def closed(directory: Path, *, until: int = 12, **options: Any) -> SimSwarm:
    swarm = SimSwarm(directory, owner=OWNER, access="invite_only", until=until, **options)
    swarm.add_backbone()
    return swarm


def invited(swarm: SimSwarm, key: Identity = ANNA, *, devices: int = 5, ends_s: float = 1e9) -> Papers:
    return swarm.papers("Anna", key=key, devices=devices, ends_s=ends_s)


def reasons(swarm: SimSwarm, by: SimPeer, of: PeerId) -> set[str]:
    return {event.reason for event in swarm.events(by, PeerRefused) if event.peer == of}


async def call_everything(ports: Ports, server: PeerId) -> dict[str, str]:
    """What each protocol of ``server`` answers to somebody's first words."""
    answers: dict[str, str] = {}
    for protocol in QUOTAS:
        try:
            stream = await ports.transport.open(server, protocol, timeout_s=ASKED_S)
            try:
                await stream.send(Message("get", {"orders": [], "start": 0, "count": 0, "mark": ""}), timeout_s=ASKED_S)
                answers[protocol] = (await stream.receive(timeout_s=ASKED_S)).kind
            finally:
                stream.close()
        except AccessDenied:
            answers[protocol] = "refused"
        except NetworkError as error:
            answers[protocol] = type(error).__name__
    return answers


def test_those_who_were_invited_train_as_in_an_open_run(tmp_path: Path) -> None:
    swarm = closed(tmp_path)
    trainers = [swarm.add_trainer(papers=invited(swarm, key)) for key in (ANNA, ANNA, BOB)]
    with swarm.world:
        swarm.world.run()
    assert_equal_ends(swarm, trainers, epoch=12)
    assert {event.contributors for event in swarm.events(trainers[0], EpochFinished) if event.epoch > 2} == {3}


@pytest.mark.parametrize("shows", ["nothing", "a stolen pass", "an invite of its own making"])
def test_whoever_was_not_invited_is_refused_by_every_rpc_of_every_role(tmp_path: Path, shows: str) -> None:
    swarm = closed(tmp_path)
    trainers = [swarm.add_trainer(papers=invited(swarm)) for _ in range(2)]

    async def stranger(ports: Ports) -> list[dict[str, str]]:
        if shows == "a stolen pass":
            stolen = swarm.world.peers[1].ports.entrance.credential()
            ports.entrance.credential = lambda: stolen
        if shows == "an invite of its own making":
            mine = swarm.papers("Eve", key=EVE, signer=EVE)
            ports.entrance.credential = mine.credentials(ports.transport.peer_id, ports.clock.now).current
        return [await call_everything(ports, swarm.world.peers[index].peer_id) for index in (0, 1)]

    swarm.world.call_at(5.0, lambda: swarm.world.add_peer(stranger))
    with swarm.world:
        swarm.world.run()
    answers = swarm.world.peers[3].result
    assert_equal_ends(swarm, trainers, epoch=12)
    elsewhere = NOT_SIMULATED | OF_PARAMETER_SERVERS
    for answer, absent in zip(answers, (elsewhere, elsewhere | BACKBONES_ONLY), strict=True):
        served = {protocol: word for protocol, word in answer.items() if word != "PeerUnreachable"}
        assert set(served.values()) == {"refused"}
        assert served.keys() == QUOTAS.keys() - absent


def test_a_stranger_gets_no_work_units_and_no_parameters(tmp_path: Path) -> None:
    swarm = closed(tmp_path, until=8, strategy="vc_asgd", units="shards: 2", every=2)
    trainers = [swarm.add_trainer(papers=invited(swarm)) for _ in range(2)]

    async def stranger(ports: Ports) -> dict[str, str]:
        return await call_everything(ports, swarm.world.peers[0].peer_id)

    swarm.world.call_at(5.0, lambda: swarm.world.add_peer(stranger))
    with swarm.world:
        swarm.world.run(until_s=300.0)
    answers = swarm.world.peers[3].result
    assert {answers[protocol] for protocol in OF_PARAMETER_SERVERS} == {"refused"}
    assert {peer.result["epoch"] for peer in trainers} == {8}


def test_a_stranger_that_publishes_a_record_is_not_seen(tmp_path: Path) -> None:
    swarm = closed(tmp_path)
    trainers = [swarm.add_trainer(papers=invited(swarm)) for _ in range(2)]
    stranger = swarm.add_trainer()
    with swarm.world:
        swarm.world.run(until_s=40.0)
    assert {swarm.replicas[peer.index].epoch for peer in trainers} == {12}
    seen = {record.peer for record in swarm.participants[trainers[0].index].membership.view.records}
    assert stranger.peer_id not in seen
    assert swarm.replicas[stranger.index].epoch == 0


def test_one_invite_on_more_devices_than_allowed_trains_on_as_many_as_it_may(tmp_path: Path) -> None:
    swarm = closed(tmp_path, until=1000)
    papers = invited(swarm, devices=2)
    trainers = [swarm.add_trainer(papers=papers) for _ in range(2)]
    swarm.world.call_at(3.0, lambda: trainers.append(swarm.add_trainer(papers=papers)))
    with swarm.world:
        swarm.world.run(until_s=20.0)
    epochs = [swarm.replicas[peer.index].epoch for peer in trainers]
    assert min(epochs[:2]) > 8
    assert epochs[2] == 0
    assert reasons(swarm, swarm.world.peers[0], trainers[2].peer_id) == {"too_many_devices"}


def test_a_wiped_machine_comes_back_with_the_same_invite_and_another_key(tmp_path: Path) -> None:
    """As a notebook does whose runtime was taken away: its place is free when its pass has ended."""
    swarm = closed(tmp_path, until=1200)
    papers = invited(swarm, devices=1)
    first = swarm.add_trainer(papers=papers, samples_per_s=10.0)
    other = swarm.add_trainer(papers=invited(swarm, BOB), samples_per_s=10.0)
    swarm.world.call_at(5.0, lambda: swarm.world.kill(first.index))
    back: list[SimPeer] = []
    swarm.world.call_at(6.0, lambda: back.append(swarm.add_trainer(papers=papers, samples_per_s=10.0)))
    with swarm.world:
        swarm.world.run(until_s=PASS_LIFE_S + 60.0)
        assert other.is_alive
    first_step = swarm.events(back[0], EpochFinished)[0]
    assert 6.0 < first_step.at_s - swarm.events(other, EpochFinished)[0].at_s <= PASS_LIFE_S + 30.0


def test_a_revoked_invite_ends_its_peers_and_an_expired_one_is_refused(tmp_path: Path) -> None:
    swarm = closed(tmp_path, until=60)
    trainers = [swarm.add_trainer(papers=invited(swarm, BOB)) for _ in range(2)]
    revoked = swarm.add_trainer(papers=invited(swarm, ANNA))
    swarm.world.call_at(5.0, lambda: swarm.order(Ban(who=ANNA.peer_id, reason="the invite was revoked")))
    with swarm.world, pytest.raises(Dismissed, match="revoked"):
        swarm.world.run()
    assert revoked.exception is not None
    assert all(peer.exception is None for peer in trainers)


def test_an_expired_invite_is_refused_with_its_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by those who would go on."""
    monkeypatch.setattr("collab.training.participant.dismissal", lambda *_: None)
    swarm = closed(tmp_path, until=40)
    trainer = swarm.add_trainer(papers=invited(swarm, BOB))
    late = swarm.add_trainer(papers=invited(swarm, ANNA, ends_s=4.0))
    with swarm.world:
        swarm.world.run(until_s=200.0)
    assert swarm.replicas[trainer.index].epoch == 40
    assert swarm.replicas[late.index].epoch < 40
    assert "invite_expired" in reasons(swarm, swarm.world.peers[0], late.peer_id)


def ends_of(swarm: SimSwarm, peer: SimPeer) -> list[float]:
    """When its person was told that its invite ends."""
    return [event.at_s - EPOCH_S for event in swarm.events(peer, Notice) if "of Anna ends on" in event.text]


def test_whoever_s_invite_ends_is_told_before_and_stops_then_with_the_next_step(tmp_path: Path) -> None:
    swarm = closed(tmp_path, until=40)
    trainer = swarm.add_trainer(papers=invited(swarm, BOB))
    late = swarm.add_trainer(papers=invited(swarm, ANNA, ends_s=GOODBYE_S + 4.0))
    with swarm.world, pytest.raises(Dismissed, match=r"the invite of Anna has run out: it ends on .* UTC") as told:
        swarm.world.run()
    assert "ask the organiser for a new invite" in told.value.hint
    assert late.exception is not None
    assert trainer.exception is None
    assert len(ends_of(swarm, late)) == 1
    assert not reasons(swarm, swarm.world.peers[0], late.peer_id), "it has left before anybody sent it away"


def test_of_an_invite_that_ends_one_hears_once_a_day_for_some_days(tmp_path: Path) -> None:
    swarm, days = SimSwarm(tmp_path, owner=OWNER, access="invite_only"), 30

    async def main() -> list[int]:
        ports, told_at = make_ports(FakeNetwork().join(ANNA.peer_id)), -math.inf
        show(ports, invited(swarm, ANNA, ends_s=NOW - EPOCH_S + days * DAY_S))
        statutes, heard = Statutes(ports, swarm.bundle), []
        assert isinstance(ports.observer, FakeObserver)
        for _ in range(2 * days):
            told_at = tell_of_end(ports, statutes, told_at)
            heard.append(len(ports.observer.events))
            assert turned_away(ports, statutes) is None
            await asyncio.sleep(DAY_S / 2)
        assert turned_away(ports, statutes) is not None
        return heard

    with swarm.world:
        assert run(main()) == [*[0] * (2 * (days - NOTICE_DAYS)), *sorted(2 * [1, 2, 3, 4, 5])]


def test_an_auxiliary_peer_stops_with_its_invite(tmp_path: Path) -> None:
    swarm = closed(tmp_path, until=40)
    swarm.add_trainer(papers=invited(swarm, BOB))
    index = len(swarm.world.peers)

    async def main(ports: Ports) -> None:
        show(ports, invited(swarm, ANNA, ends_s=GOODBYE_S + 4.0))
        identity = swarm.world.peers[index].identity
        await Auxiliary(ports, identity, swarm.bundle, AuxiliarySettings("lent")).run(asyncio.Event())

    peer = swarm.world.add_peer(main)
    with swarm.world, pytest.raises(Dismissed, match=r"the invite of Anna has run out: it ends on"):
        swarm.world.run()
    assert peer.exception is not None
    assert len(ends_of(swarm, peer)) == 1


@pytest.mark.parametrize("access", ["open", "invite_only"])
def test_a_second_backbone_stops_with_its_invite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, access: str
) -> None:
    """In an open run, too: its word counts no more, and it would not know."""
    swarm = SimSwarm(tmp_path, owner=OWNER, access=access, until=40)
    given, ends = swarm.roles.papers, iter([1e9, GOODBYE_S + 6.0])
    monkeypatch.setattr(swarm.roles, "papers", lambda *names, **said: given(*names, **said, ends_s=next(ends)))
    first, second = swarm.add_backbone(), swarm.add_backbone(has_joined=True)
    swarm.add_trainer(papers=given("Bob", key=BOB))
    with swarm.world, pytest.raises(Dismissed, match=r"the invite of backbone has run out: it ends on"):
        swarm.world.run()
    assert second.exception is not None
    assert first.exception is None


def test_a_second_backbone_that_is_banned_hears_why_and_stops(tmp_path: Path) -> None:
    swarm = closed(tmp_path, until=40)
    second = swarm.add_backbone(has_joined=True)
    swarm.add_trainer(papers=invited(swarm, BOB))
    swarm.world.call_at(5.0, lambda: swarm.order(Ban(who=second.peer_id, reason="it is not needed")))
    with swarm.world, pytest.raises(Dismissed, match="it is not needed"):
        swarm.world.run()
    assert second.exception is not None


def test_in_an_open_run_a_trainer_goes_on_when_its_invite_has_ended(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, owner=OWNER, until=40)
    backbone = swarm.add_backbone()
    trainers = [swarm.add_trainer(papers=invited(swarm, key, ends_s=4.0)) for key in (ANNA, BOB)]
    with swarm.world:
        swarm.world.run()
    assert {swarm.replicas[peer.index].epoch for peer in trainers} == {40}
    assert not reasons(swarm, backbone, trainers[0].peer_id)
    assert ends_of(swarm, trainers[0]) == []


def test_only_whom_the_owner_named_is_taken_for_a_backbone(tmp_path: Path) -> None:
    swarm = closed(tmp_path)
    trainer = swarm.add_trainer(papers=invited(swarm))
    with swarm.world:
        swarm.world.run(until_s=6.0)
        admission = swarm.participants[trainer.index].statutes.admission
        assert admission.is_vouched_backbone(swarm.world.peers[0].peer_id)
        assert not admission.is_vouched_backbone(trainer.peer_id)
