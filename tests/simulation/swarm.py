"""A simulated swarm of real roles: the very trainers and backbone of a real run, in virtual time."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from collab.config import parse_run
from collab.metrics.records import EpochFinished, Event, RoundEnded
from collab.net.base import Transport
from collab.ports import Ports
from collab.simulation.churn import Churn
from collab.simulation.links import Link
from collab.simulation.peer import SimPeer
from collab.simulation.virtual_time import EPOCH_S
from collab.simulation.world import World
from collab.swarm.access import Papers
from collab.swarm.bundle import Bundle
from collab.swarm.duties import NOTHING_OFF, Duty
from collab.swarm.identity import Identity
from collab.swarm.parameter_store.base import ParameterStore
from collab.swarm.statements import Statement
from collab.tasks.base import Task
from collab.tasks.registry import build_task
from collab.training.participant_settings import ParticipantSettings
from collab.types import PeerId, Reachability
from peers.simulated_roles import SimulatedRoles, TrainerLife

E = TypeVar("E", bound=Event)
Tap = Callable[[Transport], Transport]
HOME = Link(up_bytes_per_s=2.5e6, down_bytes_per_s=12.5e6, latency_s=0.02)
"""20 Mbit/s up, 100 down, 20 ms one way."""
RUN = """\
run_id: simulated
access: {access}
orphan_after_h: {orphan_after_h}
when_alone: {when_alone}
seed: 5
microbatch_size: 8
until_epoch: {until}
task: {{name: image_classification, hidden_sizes: [{hidden}]}}
optimizer: {optimizer}
strategy: {{name: {strategy}}}
averaging: {{compression: {compression}, reduction: {reduction}, max_share: {max_share},
  worker_momentum: {worker_momentum}}}
checkpoints: {{every_epochs: {every}}}
"""


class SimSwarm:
    """One run in one world; peer 0 is the backbone."""

    def __init__(
        self,
        directory: Path,
        *,
        seed: int = 1,
        until: int = 10,
        target: int = 128,
        compression: str = "exact",
        optimizer: str = "{name: sgd, learning_rate: 0.2}",
        strategy: str = "dedloc",
        every: int = 5,
        reduction: str = "mean",
        max_share: float = 1.0,
        worker_momentum: float = 0.0,
        max_norm: float | None = 1.0,
        access: str = "open",
        orphan_after_h: float = 24.0,
        when_alone: str = "train",
        owner: Identity | None = None,
        foreign: str = "",
        hidden: int | str = 16,
        units: str = "",
        goal: str = "",
    ) -> None:
        """
        Args:
            units: options of ``vc_asgd``.
            goal: a line of the run file.
        """
        rule = foreign or f"{strategy}, max_gradient_norm: {json.dumps(max_norm)}"
        strategy = f"{rule}, {units}" if units else f"{rule}, target_batch_size: {target}"
        sizes = {"until": until, "every": every, "hidden": hidden}
        sends = {"compression": compression, "reduction": reduction, "worker_momentum": worker_momentum}
        rules = {"access": access, "orphan_after_h": orphan_after_h, "when_alone": when_alone}
        text = RUN.format(optimizer=optimizer, strategy=strategy, max_share=max_share, **sends, **sizes, **rules)
        self.directory, self.owner = directory, owner
        bundle = Bundle(parse_run(text + goal, origin="the test"), {}, owner.peer_id if owner else PeerId(""))
        task = build_task(bundle.run, assets={}, cache_dir=directory, peer_id="")
        self.world = World(seed)
        self.churn = Churn(self.world)
        self.taps: dict[int, Tap] = {}
        """Of backbones: what is put around their transports."""
        self.roles = roles = SimulatedRoles(self.world, bundle, task, directory, owner=owner)
        self.replicas, self.participants, self.backbones = roles.replicas, roles.participants, roles.backbones
        self.stops, self.papers = roles.stops, roles.papers
        self.backbones_stay_s = 0.0
        """After the last trainer has left."""

    @property
    def bundle(self) -> Bundle:
        """The run, until somebody puts another one in its place, before anybody is there."""
        return self.roles.bundle

    @bundle.setter
    def bundle(self, bundle: Bundle) -> None:
        self.roles.bundle = bundle

    @property
    def task(self) -> Task:
        """As the run says."""
        return self.roles.task

    @task.setter
    def task(self, task: Task) -> None:
        self.roles.task = task

    @property
    def store(self) -> ParameterStore:
        """Of all backbones, if the run has parameter servers, before any rollback."""
        return self.roles.stores.of("")

    def add_backbone(
        self, *, has_joined: bool = False, has_store: bool = True, off: frozenset[Duty] = NOTHING_OFF
    ) -> SimPeer:
        """A backbone on a good link; it ends when all trainers have.

        Args:
            has_joined: as with ``join --role backbone``: it never makes the run's first state, nor has the owner's key.
            has_store: in a run with parameter servers.
            off: what it does not do.
        """
        index = len(self.world.peers)

        async def main(ports: Ports) -> None:
            if index in self.taps:
                ports = replace(ports, transport=self.taps[index](ports.transport))
            await self.roles.serve(ports, index, has_joined=has_joined, has_store=has_store, off=off)

        return self.world.add_peer(main, link=Link(up_bytes_per_s=25e6, down_bytes_per_s=25e6, latency_s=0.01))

    def add_trainer(
        self,
        *,
        samples_per_s: float = 100.0,
        microbatch_size: int = 8,
        link: Link = HOME,
        client_mode: bool = False,
        task: Task | None = None,
        max_epochs: int | None = None,
        state_dir: Path | None = None,
        papers: Papers | None = None,
        allowed_modules: tuple[str, ...] = (),
        is_welcome: bool = True,
    ) -> SimPeer:
        """A trainer; ``task`` may be one that misbehaves, and one that is not welcome may be sent away."""
        index = len(self.world.peers)

        async def main(ports: Ports) -> dict[str, Any]:
            settings = ParticipantSettings(
                name=f"trainer-{index}",
                reach=Reachability.CLIENT if client_mode else Reachability.DIRECT,
                max_epochs=max_epochs,
                state_dir=state_dir,
                allowed_modules=allowed_modules,
            )
            life = TrainerLife(
                microbatch_size=microbatch_size, settings=settings, task=task, papers=papers, is_welcome=is_welcome
            )
            replica = await self.roles.train(ports, index, life)
            self._stop_backbones_when_alone(index)
            return {"epoch": replica.epoch, "lineage": replica.lineage}

        return self.world.add_peer(main, link=link, samples_per_s=samples_per_s, client_mode=client_mode)

    def add_auxiliary(self) -> SimPeer:
        """An auxiliary peer."""
        index = len(self.world.peers)

        async def main(ports: Ports) -> int:
            return await self.roles.assist(ports, index)

        return self.world.add_peer(main)

    def order(self, what: Statement, *, backbone: int = 0) -> None:
        """The organiser gives an order to a backbone, as its commands do."""
        assert self.owner is not None
        mandate = self.backbones[backbone].statutes.mandate
        mandate.take(len(mandate.book.orders), [mandate.book.signed(what, self.owner, EPOCH_S + self.world.time_s)])

    def ask_to_leave(self, peer: SimPeer) -> None:
        """As Ctrl+C does."""
        self.stops[peer.index].set()

    def ask_to_pause(self, peer: SimPeer) -> None:
        """As its owner does; it ends, and ``world.restart`` is what resuming comes to."""
        self.roles.pauses[peer.index].ask("the test wants it")

    def _stop_backbones_when_alone(self, index: int) -> None:
        others = [i for i in self.participants if i != index and self.world.peers[i].is_alive]
        if not others:
            self.world.call_at(self.world.time_s + self.backbones_stay_s, self._stop_backbones)

    def _stop_backbones(self) -> None:
        for number in self.backbones:
            self.stops[number].set()

    def events(self, peer: SimPeer, kind: type[E]) -> list[E]:
        """What a peer observed of one kind."""
        return [event for event in peer.events if isinstance(event, kind)]

    def finished_epochs(self) -> list[dict[str, Any]]:
        """All EpochFinished events of all peers, as the replay reads them."""
        return [asdict(event) for peer in self.world.peers for event in self.events(peer, EpochFinished)]

    def contributors(self, peer: SimPeer) -> list[int]:
        """Of each of its rounds, in order; 0 for a lost one."""
        return [event.contributors for event in self.events(peer, RoundEnded)]
