"""A step that takes minutes: how far it is, as each role sees it, and what a backbone's panel makes of it."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collab.metrics.records import EpochFinished, MicrobatchDone, UnitBegun
from collab.simulation.links import Link
from collab.simulation.peer import SimPeer
from collab.simulation.virtual_time import EPOCH_S
from collab.swarm.progress import SwarmView
from collab.types import Role
from peers.dashboard.words import PATIENCE_S
from peers.exhibiting import all_is_well
from peers.panel import LivePanel, Watched
from peers.present_unit import PresentUnit
from peers.progress import Ahead, ahead_of_swarm, ahead_of_trainer
from peers.rhythm import Rhythm
from peers.serving import watch
from peers.tally import Tally
from tests.simulation.swarm import SimSwarm
from tests.simulation.test_metrics import overview


def seen_by(swarm: SimSwarm, peer: SimPeer) -> Ahead | None:
    assert peer.ports is not None
    if peer.index in swarm.participants:
        return ahead_of_trainer(swarm.participants[peer.index])
    role = swarm.backbones.get(peer.index) or swarm.roles.auxiliaries[peer.index]
    return ahead_of_swarm(role.reporter.credible, role.statutes.mandate, role.membership.view, peer.ports.clock.now())


def test_everybody_sees_how_far_a_step_of_two_minutes_is(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=2, target=24_000)
    peers = [swarm.add_backbone(), swarm.add_trainer(), swarm.add_trainer(), swarm.add_auxiliary()]
    seen: dict[int, list[Ahead | None]] = {30: [], 90: []}
    for second, found in seen.items():
        swarm.world.call_at(second, lambda found=found: found.extend(seen_by(swarm, peer) for peer in peers))
    with swarm.world:
        swarm.world.run()
    for second, found in seen.items():
        for ahead in found:
            assert ahead is not None
            assert (ahead.epoch, ahead.until_epoch) == (0, 2)
            assert ahead.step_s == pytest.approx(120.0, rel=0.1)
            assert ahead.share == pytest.approx(second / 120.0, abs=0.1)
            assert ahead.next_s == pytest.approx(120.0 - second, abs=12.0)


def test_a_backbones_panel_tells_whether_steps_come_as_they_should(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=100, target=1_000)
    peer, *trainers = swarm.add_backbone(), swarm.add_trainer(), swarm.add_trainer()
    seen: dict[str, list[str]] = {}

    def look(when: str) -> None:
        ports, world = peer.ports, swarm.world
        assert ports is not None
        started: Any = SimpleNamespace(ports=ports, refusals=SimpleNamespace(rows=list))
        watched = watch(swarm.backbones[0], started, swarm.bundle, "", all_is_well)
        told_s = [0.0]
        panel = LivePanel(watched, clock=lambda: told_s[0])
        for event in list(peer.events):
            told_s[0] = event.at_s - EPOCH_S
            watched.tally.observe(event)
            panel.observe(event)
        told_s[0] = world.time_s
        seen[when] = panel.lines()

    for trainer in trainers:
        swarm.churn.freeze_at(peer=trainer.index, time_s=60.0, for_s=1000.0)
    for at_s, when in ((2.0, "at first"), (59.0, "as it should"), (140.0, "when nobody is here")):
        swarm.world.call_at(at_s, lambda when=when: look(when))
    with swarm.world:
        swarm.world.run(until_s=141.0)
    assert seen["at first"][0] == "waiting for the first step of 2 trainers"
    assert seen["as it should"][0].startswith("healthy: step ")
    assert seen["as it should"][0].endswith("with the samples of 2 peers")
    assert seen["when nobody is here"][0] == "waiting: no trainer is here"


def test_where_rounds_take_a_hundred_times_what_computing_does_everybody_says_that_all_is_well(tmp_path: Path) -> None:
    """4 MB through 0.1 MB/s up: 39 s a round, and half a second of computing."""
    swarm = SimSwarm(tmp_path, until=6, every=100, target=100, hidden=13_000)
    thin = Link(up_bytes_per_s=100e3, down_bytes_per_s=1e6, latency_s=0.02)
    backbone, *trainers = swarm.add_backbone(), swarm.add_trainer(link=thin), swarm.add_trainer(link=thin)
    seen: dict[float, list[str]] = {}
    due_s: dict[float, float | None] = {}

    def first_line(peer: SimPeer, ahead: Callable[[Rhythm], Ahead | None], view: SwarmView) -> str:
        told_s, tally = [0.0], Tally()
        role = Role.BACKBONE if peer is backbone else Role.TRAINER
        watched = Watched(title="", role=role, tally=tally, view=lambda: view, ahead=lambda: ahead(tally.rhythm))
        panel = LivePanel(watched, clock=lambda: told_s[0])
        for event in list(peer.events):
            told_s[0] = event.at_s - EPOCH_S
            tally.observe(event)
            panel.observe(event)
        told_s[0] = swarm.world.time_s
        return panel.lines()[0]

    def look() -> None:
        if not all(swarm.events(trainer, EpochFinished) for trainer in trainers):
            return
        role, at_s = swarm.backbones[0], swarm.world.time_s
        credible, mandate, view = role.reporter.credible, role.statutes.mandate, role.membership.view
        told = overview(swarm).state()
        due_s[at_s] = told["now"]["next_step_s"]
        seen[at_s] = [
            told["health"]["text"],
            first_line(backbone, lambda rhythm: ahead_of_swarm(credible, mandate, view, EPOCH_S + at_s, rhythm), view),
        ]
        for trainer in trainers:
            participant = swarm.participants[trainer.index]
            ahead = partial(ahead_of_trainer, participant)
            seen[at_s].append(first_line(trainer, ahead, participant.membership.view))

    for second in range(5, 600, 5):
        swarm.world.call_at(float(second), look)
    with swarm.world:
        swarm.world.run()
    steps_s = [event.at_s - EPOCH_S for event in swarm.events(trainers[0], EpochFinished)]
    assert steps_s[-1] - steps_s[-2] > PATIENCE_S, "or this test shows nothing"
    lines = [line for at_s, lines in seen.items() if at_s < steps_s[-1] for line in lines]
    assert len(lines) > 100
    assert [line for line in lines if not line.startswith("healthy")] == []
    for at_s, told_s in due_s.items():
        is_new = any(0.0 <= at_s - taken_s < 5.0 for taken_s in steps_s)  # the backbone may not have heard of it
        if steps_s[2] < at_s < steps_s[-1] and not is_new:
            assert told_s == pytest.approx(min(later for later in steps_s if later > at_s) - at_s, abs=10.0)


def test_of_parameter_servers_nobody_says_when_a_step_comes(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=20, strategy="vc_asgd", units="shards: 10")
    backbone = swarm.add_backbone()
    trainer = swarm.add_trainer()
    seen: list[Ahead | None] = []
    swarm.world.call_at(10.0, lambda: seen.extend(seen_by(swarm, peer) for peer in (backbone, trainer)))
    with swarm.world:
        swarm.world.run()
    assert all(ahead is not None and math.isinf(ahead.next_s) and math.isnan(ahead.share) for ahead in seen)
    assert len(seen) == 2


def test_a_trainer_sees_how_far_its_own_unit_is(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=20, strategy="vc_asgd", units="shards: 10")
    swarm.add_backbone()
    trainer = swarm.add_trainer()
    with swarm.world:
        swarm.world.run()
    units, ends, unit = 0, [], PresentUnit()
    for event in trainer.events:
        if isinstance(event, UnitBegun):
            ends, units = [*ends, unit.so_far()[0]], units + 1
        unit.observe(event)
        share, left_s = unit.so_far()
        if isinstance(event, MicrobatchDone) and 0.2 < share < 1.0:
            assert left_s > 0.0
    assert units == 20
    assert ends[1:] == [1.0] * 19, "each was computed to its end before the next one began"
