"""The roles of a real run over the ports of a simulation: how each one is put together, and what became of it."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from collab.errors import CollabError
from collab.ports import Ports
from collab.simulation.virtual_time import EPOCH_S
from collab.simulation.world import World
from collab.swarm.access import Grant, Papers, pack_grant
from collab.swarm.bundle import Bundle
from collab.swarm.duties import NOTHING_OFF, Duty
from collab.swarm.identity import Identity
from collab.swarm.parameter_store.eras import EraStores
from collab.swarm.parameter_store.in_process import InProcessStore
from collab.tasks.base import Task
from collab.training.copy_layout import CopyLayout
from collab.training.genesis import build_replica, make_genesis
from collab.training.judging import evaluate_state
from collab.training.participant import Participant
from collab.training.participant_settings import ParticipantSettings
from collab.training.pausing import Pause
from collab.training.replica import Replica
from collab.training.shared_state import model_forms
from collab.training.trainer import Trainer
from collab.types import Role
from peers.auxiliary import Auxiliary, AuxiliarySettings
from peers.backbone import Backbone
from peers.backbone_settings import BackboneSettings
from peers.places import DataDir
from peers.workshop import Workshop

FOR_EVER_S = 1e9
"""Virtual time that no simulation sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerLife:
    """What is one trainer's own."""

    microbatch_size: int
    settings: ParticipantSettings
    task: Task | None = None
    """Another one than the run's: one that misbehaves."""
    papers: Papers | None = None
    is_welcome: bool = True
    """One that is not may be sent away."""


class SimulatedRoles:
    """Lives that peers of one world can lead; everything by the peer's index in that world."""

    def __init__(
        self, world: World, bundle: Bundle, task: Task, directory: Path, *, owner: Identity | None = None
    ) -> None:
        """
        Args:
            directory: where backbones keep their checkpoints.
            owner: of the run, who names its backbones; None: nobody owns it.
        """
        self.world, self.bundle, self.task = world, bundle, task
        self.directory, self.owner = directory, owner
        self.replicas: dict[int, Replica] = {}
        self.participants: dict[int, Participant] = {}
        self.backbones: dict[int, Backbone] = {}
        self.auxiliaries: dict[int, Auxiliary] = {}
        self.stores = EraStores(lambda _era: InProcessStore())
        """Of all backbones, if the run has parameter servers."""
        self.stops: dict[int, asyncio.Event] = {}
        self.pauses: dict[int, Pause] = {}

    async def serve(
        self,
        ports: Ports,
        index: int,
        *,
        has_joined: bool = False,
        has_store: bool = True,
        off: frozenset[Duty] = NOTHING_OFF,
    ) -> None:
        """Be a backbone until stopped.

        Args:
            has_joined: as with ``join --role backbone``: it never makes the run's first state, nor has the owner's key.
            has_store: in a run with parameter servers.
            off: what it does not do.
        """
        identity, owner = self._identity(index), None if has_joined else self.owner
        if self.owner is not None:
            show(ports, self.papers("backbone", key=identity, role=Role.BACKBONE))
        place = DataDir(self.directory / f"backbone-{index}")
        settings = BackboneSettings(
            name="backbone", data_dir=place, stores=self.stores if has_store else None, owner=owner, off=off
        )
        workshop = Workshop(
            make_first_state=None if has_joined else lambda: make_genesis(self.bundle, self.task),
            checkpoint_files=self.task.checkpoint_files,
            evaluate=lambda state: evaluate_state(self.task, state),
            copied_names=lambda: CopyLayout(self.task.build_model()).names,
            model_forms=lambda: model_forms(self.task.build_model),
        )
        self.backbones[index] = backbone = Backbone(ports, identity, self.bundle, workshop, settings)
        self.stops[index] = asyncio.Event()
        await backbone.begin()
        await backbone.run(self.stops[index])

    async def train(self, ports: Ports, index: int, life: TrainerLife) -> Replica:
        """Be a trainer until stopped, or until there is nothing left to do."""
        show(ports, life.papers)
        self.replicas[index] = replica = build_replica(self.bundle, self.task, torch.device("cpu"))
        self.participants[index] = Participant(ports, self._identity(index), self.bundle, replica, life.settings)
        self.stops[index] = asyncio.Event()
        self.pauses[index] = Pause()
        trainer = Trainer(self.participants[index], life.task or self.task, microbatch_size=life.microbatch_size)
        with suppress(*(() if life.is_welcome else (CollabError,))):
            await trainer.run(self.stops[index], self.pauses[index])
        return replica

    async def assist(self, ports: Ports, index: int) -> int:
        """Be an auxiliary peer until stopped; in how many committed rounds."""
        self.auxiliaries[index] = auxiliary = Auxiliary(
            ports, self._identity(index), self.bundle, AuxiliarySettings("auxiliary")
        )
        self.stops[index] = asyncio.Event()
        await auxiliary.run(self.stops[index])
        return auxiliary.assistant.rounds_committed

    def papers(
        self,
        person: str,
        *,
        key: Identity,
        role: Role = Role.TRAINER,
        devices: int = 5,
        ends_s: float = FOR_EVER_S,
        signer: Identity | None = None,
    ) -> Papers:
        """What the owner, or a forger, gives to one person; ``ends_s`` in virtual seconds.

        Raises:
            ValueError: the run has no owner.
        """
        owner = signer or self.owner
        if owner is None:
            raise ValueError("nobody owns this run, so nobody can invite")
        grant = Grant(
            fingerprint=self.bundle.fingerprint,
            key=key.peer_id,
            person=person,
            devices=devices,
            expires_at=EPOCH_S + ends_s,
            role=role,
        )
        return Papers(grant=pack_grant(grant, owner), key=key)

    def _identity(self, index: int) -> Identity:
        return self.world.peers[index].identity


def show(ports: Ports, papers: Papers | None) -> None:
    """Let a peer show what it was given, whenever it is asked."""
    if papers is not None:
        ports.entrance.credential = papers.credentials(ports.transport.peer_id, ports.clock.now).current
