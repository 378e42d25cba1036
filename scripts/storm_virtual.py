"""A storm in virtual time: the roles of a real run over simulated links, an hour of them in minutes."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from netlab_links import Link as LabLink
from storm_ledger import Ledger, Life, play
from storm_peer import ending_of
from storm_recovery import whole_commits
from storm_schedule import Fault, Kind, schedule
from storm_setup import CALM_LIMIT_S, CALM_STEP_S, Setup, Tell

from collab.config import parse_run
from collab.metrics.records import (
    EpochFinished,
    Event,
    MicrobatchDone,
    Notice,
    RoundEnded,
    SamplesUsed,
    StateFetched,
)
from collab.ports import Ports
from collab.simulation.links import Link
from collab.simulation.peer import SimPeer
from collab.simulation.virtual_time import EPOCH_S
from collab.simulation.world import World
from collab.swarm.bundle import Bundle
from collab.tasks.registry import build_task
from collab.training.genesis import build_replica, make_genesis
from collab.training.participant import Participant
from collab.training.participant_settings import ParticipantSettings
from collab.training.replica import Replica
from collab.training.trainer import Trainer
from peers.backbone import Backbone
from peers.backbone_settings import BackboneSettings
from peers.places import DataDir
from peers.workshop import Workshop

SLOWED = 0.1
BACKBONE_LINK = LabLink(up_mbit_per_s=200.0, down_mbit_per_s=200.0, delay_ms=10.0)
LATENCY_S = 0.02
"""One way, to the middle of the network; for links that name none."""
START_LIMIT_S = 120.0
"""For everybody's first step."""
FIELDS: Mapping[type[Event], tuple[str, ...]] = {
    MicrobatchDone: ("at_s", "samples"),
    RoundEnded: ("at_s", "epoch", "round_id", "committed", "seconds", "reason"),
    EpochFinished: (
        *("at_s", "epoch", "lineage", "own_samples", "own_weight", "used_in"),
        *("swarm_samples", "contributors"),
    ),
    SamplesUsed: ("at_s", "samples", "used_in"),
    StateFetched: ("at_s",),
    Notice: ("text", "is_problem"),
}
"""What the ledger reads of an event."""


def simulated(link: LabLink) -> Link:
    """A link of the lab as the simulation has it."""
    return Link(
        up_bytes_per_s=link.up_mbit_per_s * 1e6 / 8,
        down_bytes_per_s=link.down_mbit_per_s * 1e6 / 8,
        latency_s=link.delay_ms / 1e3 if link.delay_ms else LATENCY_S,
    )


class VirtualStage:
    """Implements ``Stage`` over a ``World``; peer 0 of the world is the backbone."""

    def __init__(self, setup: Setup, ledger: Ledger, folder: Path) -> None:
        self._setup, self._ledger, self._folder = setup, ledger, folder
        self._bundle = Bundle(parse_run(setup.run_file(), origin="the storm"), {})
        self._task = build_task(self._bundle.run, assets={}, cache_dir=folder, peer_id="")
        self.world = World(setup.forecast.seed)
        self.world.subscribe(self._book)
        self.replicas: dict[int, Replica] = {}
        """By the number of the life; of the trainers that live."""
        self._lives: dict[int, Life] = {}
        self._in_slot: dict[int, int] = {}

    # -- peers ---------------------------------------------------------------------------------------------------------

    def start_backbone(self) -> None:
        """On a link that is no bottleneck."""
        life = self._ledger.new_life(self._setup.backbone, "backbone", is_backbone=True)

        async def main(ports: Ports) -> None:
            self._say_up(index)
            settings = BackboneSettings(name="backbone", data_dir=DataDir(self._folder / "backbone"))
            workshop = Workshop(
                make_first_state=lambda: make_genesis(self._bundle, self._task),
                checkpoint_files=self._task.checkpoint_files,
            )
            backbone = Backbone(ports, self.world.peers[index].identity, self._bundle, workshop, settings)
            await backbone.begin()
            await backbone.run(asyncio.Event())

        index = len(self.world.peers)
        self._place(index, life)
        self.world.add_peer(main, link=simulated(self._link(life)))

    def start_trainer(self, slot: int) -> None:
        """A stranger in a slot."""
        index = len(self.world.peers)
        self._place(index, self._ledger.new_life(slot, f"trainer-{slot}.{index}"))

        async def main(ports: Ports) -> None:
            life = self._say_up(index)
            replica = self.replicas[life.number] = build_replica(self._bundle, self._task, torch.device("cpu"))
            settings = ParticipantSettings(name=life.name)
            identity = self.world.peers[index].identity
            participant = Participant(ports, identity, self._bundle, replica, settings)
            await Trainer(participant, self._task, microbatch_size=self._setup.microbatch).run(asyncio.Event())

        samples_per_s = self._setup.microbatch / self._setup.pace_s
        self.world.add_peer(main, link=simulated(self._setup.link), samples_per_s=samples_per_s)

    def _restart(self, slot: int) -> None:
        """The same peer comes back."""
        index = self._in_slot[slot]
        old = self._lives[index]
        self._place(index, self._ledger.new_life(slot, old.name, is_backbone=old.is_backbone))
        self.world.restart(index)

    def _link(self, life: Life) -> LabLink:
        return BACKBONE_LINK if life.is_backbone else self._setup.link

    def _place(self, index: int, life: Life) -> None:
        self._lives[index], self._in_slot[life.slot] = life, index

    def _say_up(self, index: int) -> Life:
        life = self._lives[index]
        self._ledger.note(life, "Up", {"at_s": self.now_s()})
        return life

    def _book(self, peer: SimPeer, event: Event) -> None:
        names = FIELDS.get(type(event))
        if names is not None:
            fields: dict[str, Any] = {name: getattr(event, name) for name in names}
            self._ledger.note(self._lives[peer.index], type(event).__name__, fields)
        peer.events.clear()  # an hour of two hundred peers would fill the memory

    # -- the stage -----------------------------------------------------------------------------------------------------

    def now_s(self) -> float:
        return EPOCH_S + self.world.time_s

    def call_at(self, at_s: float, action: Callable[[], None]) -> None:
        self.world.call_at(at_s - EPOCH_S, action)

    def strike(self, fault: Fault) -> None:
        indices = [self._in_slot[slot] for slot in fault.slots]
        if fault.kind is Kind.PARTITION:
            self.world.network.split([[self.world.peers[index].transport for index in indices]])
            return
        for index in indices:
            if fault.kind is Kind.KILL:
                self.world.kill(index)
                self.replicas.pop(self._lives[index].number, None)
            elif fault.kind is Kind.SLOW:
                self.world.set_link(index, simulated(self._link(self._lives[index]).scaled(SLOWED)))
            else:
                self.world.freeze(index)

    def release(self, fault: Fault) -> None:
        if fault.kind is Kind.PARTITION:
            self.world.network.heal()
            return
        for slot in fault.slots:
            index = self._in_slot[slot]
            if fault.kind is Kind.KILL and (slot == self._setup.backbone or self._setup.keeps_identity):
                self._restart(slot)
            elif fault.kind is Kind.KILL:
                self.start_trainer(slot)
            elif fault.kind is Kind.SLOW:
                self.world.set_link(index, simulated(self._link(self._lives[index])))
            else:
                self.world.thaw(index)


def run_virtual(setup: Setup, folder: Path, tell: Tell) -> Ledger:
    """Play the whole measurement: warm-up, fault-free phase, storm, calm."""
    ledger = Ledger()
    stage = VirtualStage(setup, ledger, folder)
    with stage.world as world:
        stage.start_backbone()
        for slot in range(setup.peers):
            stage.start_trainer(slot)
        world.run(until_s=START_LIMIT_S + setup.warm_up_s)

        def phase(name: str, seconds: float) -> None:
            began_s = stage.now_s()
            until_s = world.time_s + seconds
            while world.time_s < until_s:
                world.run(until_s=min(until_s, world.time_s + 60.0))
                tell(f"{name}: {world.time_s:.0f} virtual s, epoch {max(ledger.commits, default=0)}")
            ledger.ends_s[name] = began_s, stage.now_s()

        phase("baseline", setup.baseline_s)
        play(schedule(setup.forecast), stage.now_s(), stage, ledger, tell)
        phase("storm", setup.forecast.seconds)
        calm_down(stage, ledger)
        for number, replica in stage.replicas.items():
            ledger.note(ledger.lives[number], "Ending", ending_of(replica))
    return ledger


def calm_down(stage: VirtualStage, ledger: Ledger) -> None:
    """Until every fault is over, and everybody was in a step after that."""
    give_up_s = stage.world.time_s + 2 * CALM_LIMIT_S
    while stage.world.time_s < give_up_s:
        stage.world.run(until_s=stage.world.time_s + CALM_STEP_S)
        if all(strike.over_s is not None for strike in ledger.strikes):
            over_s = max((strike.over_s or 0.0 for strike in ledger.strikes), default=0.0)
            whole = [commit for commit in whole_commits(ledger) if commit.at_s > over_s]
            if whole and len(whole[-1].used) == len([life for life in ledger.trainers if life.killed_s is None]):
                return
