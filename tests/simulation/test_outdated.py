"""Backbones of two versions: who is too old says so, and leaves when one that is not does its work."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collab.errors import Dismissed
from collab.metrics.records import LeaseChanged, Notice
from collab.simulation.peer import SimPeer
from collab.swarm.duties import NOTHING_OFF, Duty
from collab.swarm.mandate import Mandate
from collab.swarm.records import PeerRecord
from collab.swarm.statements import Amend
from collab.swarm.statutes import Statutes
from collab.types import PeerId, Role
from collab.version import VERSION
from peers.outdated import HINT, OWNERS_HINT
from tests.simulation.swarm import SimSwarm
from tests.simulation.test_metrics import look
from tests.simulation.test_orders import OWNER

NEW = "99.0"
IN_FORCE = f"this run needs version {NEW} of collab, this is {VERSION}"
PLANNED = f"from epoch 8 on {IN_FORCE}"


class TwoVersions:
    """A swarm, some of whose peers run a later version than this."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.swarm = SimSwarm(directory, owner=OWNER, **options)
        self.dismissed: dict[int, tuple[float, Dismissed]] = {}
        """By the index of a backbone: when it ended by itself, and why."""
        self._newer: set[PeerId] = set()
        serve, stamped, needed = self.swarm.roles.serve, Statutes.stamped, Mandate.needed_version
        statutes: dict[int, PeerId] = {}

        async def serve_and_note(ports: Any, index: int, **options: Any) -> None:
            try:
                await serve(ports, index, **options)
            except Dismissed as why:
                self.dismissed[index] = self.swarm.world.time_s, why

        def as_it_says(self_: Statutes, record: PeerRecord) -> PeerRecord:
            statutes[id(self_.mandate)] = record.peer
            said = stamped(self_, record)
            return replace(said, version=NEW) if record.peer in self._newer else said

        def as_it_needs(mandate: Mandate, epoch: int) -> str | None:
            return None if statutes.get(id(mandate)) in self._newer else needed(mandate, epoch)

        monkeypatch.setattr(self.swarm.roles, "serve", serve_and_note)
        monkeypatch.setattr(Statutes, "stamped", as_it_says)
        monkeypatch.setattr(Mandate, "needed_version", as_it_needs)

    def newer(self, peer: SimPeer) -> SimPeer:
        """It runs the later version."""
        self._newer.add(peer.peer_id)
        return peer

    def order_at(self, at_s: float, from_epoch: int, version: str = NEW) -> None:
        """The owner asks for a version, as its commands do."""
        what = Amend(from_epoch=from_epoch, minimum_version=version)
        self.swarm.world.call_at(at_s, lambda: self.swarm.order(what))

    def problems(self, peer: SimPeer) -> list[tuple[str, str]]:
        """That it has told of its version."""
        told = self.swarm.events(peer, Notice)
        return [(event.text, event.hint) for event in told if event.is_problem and "of collab" in event.text]


@pytest.fixture
def two_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TwoVersions]:
    def make(**options: Any) -> TwoVersions:
        return TwoVersions(tmp_path, monkeypatch, **options)

    return make


Make = Callable[..., TwoVersions]


def test_a_joined_backbone_that_is_too_old_says_so_when_it_hears_and_leaves_at_the_epoch(two_versions: Make) -> None:
    run = two_versions(until=30, every=5)
    swarm, world = run.swarm, run.swarm.world
    run.newer(swarm.add_backbone())
    old = swarm.add_backbone(has_joined=True)
    trainers = [run.newer(swarm.add_trainer()) for _ in range(2)]
    left_at: list[int] = []
    swarm.world.call_at(3.0, lambda: left_at.append(swarm.replicas[trainers[0].index].epoch))
    run.order_at(3.0, from_epoch=8)
    with world:
        world.run()
    at_s, why = run.dismissed[old.index]
    assert why.message == PLANNED
    assert "join again" in why.hint
    assert run.problems(old)[0] == (PLANNED, HINT)
    assert left_at[0] < 8
    assert at_s < world.time_s, "long before the end"
    assert {swarm.replicas[peer.index].epoch for peer in trainers} == {30}
    assert swarm.backbones[0].record().checkpoint_epoch == 30
    assert run.dismissed.keys() == {old.index}


def test_while_no_other_one_is_there_it_goes_on_and_the_owner_s_always_does(two_versions: Make) -> None:
    run = two_versions(until=60, every=5)
    swarm, world = run.swarm, run.swarm.world
    owners, old = swarm.add_backbone(), swarm.add_backbone(has_joined=True)
    trainers = [run.newer(swarm.add_trainer()) for _ in range(2)]
    joined: list[SimPeer] = []
    run.order_at(3.0, from_epoch=8)
    world.call_at(20.0, lambda: joined.append(run.newer(swarm.add_backbone(has_joined=True))))
    shown = look(swarm, 15.0)
    with world:
        world.run()
    assert run.dismissed.keys() == {old.index}
    assert run.dismissed[old.index][0] > 20.0
    assert run.problems(old) == [(PLANNED, HINT), (IN_FORCE, HINT)]
    assert run.problems(owners) == [(PLANNED, OWNERS_HINT), (IN_FORCE, OWNERS_HINT)]
    assert shown["health"]["text"].endswith(f"; but {IN_FORCE}")
    assert shown["health"]["hint"] == OWNERS_HINT
    assert {swarm.replicas[peer.index].epoch for peer in trainers} == {60}


@pytest.mark.parametrize("how", ["comes", "was away"])
def test_it_leaves_with_nothing_that_the_other_one_has_not(two_versions: Make, how: str) -> None:
    """Nobody trains any more, and the end of what was trained is on its disk alone."""
    run = two_versions(until=1000, every=5)
    swarm, world = run.swarm, run.swarm.world
    swarm.backbones_stay_s = 60.0
    first, old = swarm.add_backbone(), swarm.add_backbone(has_joined=True)
    trainer, newer = run.newer(swarm.add_trainer()), []
    if how == "was away":
        newer.append(run.newer(swarm.add_backbone(has_joined=True)))
        world.call_at(5.0, lambda: world.freeze(newer[0].index))
        world.call_at(42.0, lambda: world.thaw(newer[0].index))
    else:
        world.call_at(42.0, lambda: newer.append(run.newer(swarm.add_backbone(has_joined=True))))
    world.call_at(22.0, lambda: world.kill(first.index))
    world.call_at(22.0, lambda: swarm.order(Amend(from_epoch=5, minimum_version=NEW), backbone=old.index))
    world.call_at(37.0, lambda: swarm.ask_to_leave(trainer))
    with world:
        world.run()
    last = swarm.replicas[trainer.index].epoch
    assert last > 15
    assert run.dismissed.keys() == {old.index}
    assert run.dismissed[old.index][0] > 42.0
    assert swarm.backbones[newer[0].index].record().checkpoint_epoch == last
    assert max(event.term for event in swarm.events(newer[0], LeaseChanged)) > 0, "the lease is its own then"


@pytest.mark.parametrize("off", [NOTHING_OFF, frozenset({Duty.REDUCER}), frozenset({Duty.METRICS, Duty.RELAY})])
def test_one_that_does_less_does_not_take_its_place(two_versions: Make, off: frozenset[Duty]) -> None:
    run = two_versions(until=40)
    swarm = run.swarm
    swarm.add_backbone()
    old, _ = swarm.add_backbone(has_joined=True), run.newer(swarm.add_backbone(has_joined=True, off=off))
    run.newer(swarm.add_trainer())
    run.order_at(3.0, from_epoch=8)
    with swarm.world:
        swarm.world.run()
    assert (old.index in run.dismissed) is (Duty.REDUCER not in off)


@pytest.mark.parametrize("has_store", [True, False])
def test_nor_does_one_that_does_not_reach_the_parameters(two_versions: Make, has_store: bool) -> None:
    run = two_versions(until=24, every=4, strategy="vc_asgd", units="shards: 4, first_lease_s: 20.0")
    swarm = run.swarm
    swarm.backbones_stay_s = 20.0
    swarm.add_backbone()
    old = swarm.add_backbone(has_joined=True)
    run.newer(swarm.add_backbone(has_joined=True, has_store=has_store))
    run.newer(swarm.add_trainer())
    run.order_at(3.0, from_epoch=4)
    with swarm.world:
        swarm.world.run()
    assert (old.index in run.dismissed) is has_store


def test_nor_does_one_that_the_owner_has_not_invited_as_a_backbone(
    two_versions: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = two_versions(until=40)
    swarm = run.swarm
    given, roles = swarm.roles.papers, iter([Role.BACKBONE, Role.BACKBONE, Role.TRAINER])
    monkeypatch.setattr(swarm.roles, "papers", lambda name, **said: given(name, **{**said, "role": next(roles)}))
    swarm.add_backbone()
    swarm.add_backbone(has_joined=True)
    run.newer(swarm.add_backbone(has_joined=True))
    run.newer(swarm.add_trainer())
    run.order_at(3.0, from_epoch=8)
    with swarm.world:
        swarm.world.run()
    assert not run.dismissed


def test_a_lower_version_that_is_ordered_later_settles_it(two_versions: Make) -> None:
    run = two_versions(until=30)
    swarm = run.swarm
    owners = swarm.add_backbone()
    run.newer(swarm.add_trainer())
    run.order_at(3.0, from_epoch=500)
    run.order_at(8.0, from_epoch=500, version="0.0.1")
    with swarm.world:
        swarm.world.run()
    (told,) = run.problems(owners)
    assert told[0] == f"from epoch 500 on {IN_FORCE}"
    assert [event.settles for event in swarm.events(owners, Notice) if "no later version" in event.text] == [told[0]]
    assert swarm.backbones[0].outdated.problem() == ("", "")
