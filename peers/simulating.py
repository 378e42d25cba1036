"""One way of training on a described swarm, in virtual time, by the very roles of a real run."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from collab import config
from collab.ports import Ports
from collab.simulation.account import Account
from collab.simulation.blind import BlindTransport
from collab.simulation.peer import SimPeer
from collab.simulation.residents import Resident, Session, residents_of
from collab.simulation.swarm_file import Contender, NoTask, SwarmFile
from collab.simulation.world import World
from collab.swarm.bundle import Bundle
from collab.swarm.identity import Identity
from collab.tasks.base import Evaluation, Task
from collab.training.participant_settings import ParticipantSettings
from collab.types import Reachability
from peers.figures import Outcome, outcome_of
from peers.simulated_roles import SimulatedRoles, TrainerLife
from peers.worth import worth_of

LOOKS = 60
"""At the model while it learns; they cost no virtual time."""
LOOK_S = 30.0
"""Between two of them where only the number of epochs is given."""
LONGEST_S = 7 * 86_400.0
"""Of virtual time, where only the number of epochs is given."""
LEAVING_S = 1.0
"""How much later a machine comes back that is still about to leave."""


class Simulation:
    """One contender on one swarm; use it once."""

    def __init__(
        self, swarm: SwarmFile, contender: Contender, task: Task, assets: Mapping[str, bytes], folder: Path
    ) -> None:
        self._swarm, self._contender, self._task = swarm, contender, task
        owner = Identity.from_seed(hashlib.sha256(f"owner {swarm.seed}".encode()).digest())
        bundle = Bundle(swarm.run_of(contender), assets, owner.peer_id)
        self.end_s = swarm.minutes * 60.0 if swarm.minutes is not None else LONGEST_S
        self.residents = residents_of(swarm, end_s=self.end_s)
        self.world = World(swarm.seed)
        self.world.place = str(folder)
        if isinstance(swarm.task, NoTask):
            self.world.network.bulk_weight = swarm.task.thinned
        self.roles = SimulatedRoles(self.world, bundle, task, folder, owner=owner)
        self.account = Account(has_rounds=not isinstance(contender.strategy, config.Solo | config.VcAsgd))
        self.account.watch(self.world)
        self._peers: dict[str, SimPeer] = {}

    def begin(self) -> None:
        """Everybody will come when they are to come; nothing runs yet."""
        torch.manual_seed(self._swarm.seed)
        for resident in self.residents:
            for session in resident.sessions:
                self._at(session.joins_s, resident, session)

    def run(self) -> Outcome:
        """All of it."""
        self.begin()
        slice_s = self.end_s / LOOKS if self._swarm.minutes is not None else LOOK_S
        with self.world as world:
            self.account.look(self._worth(), at_s=world.time_s)
            while not self._is_over():
                world.run(until_s=min(world.time_s + slice_s, self.end_s))
                self.account.look(self._worth(), at_s=world.time_s)
            held = sum(self.roles.replicas[i].samples for i in self.roles.replicas if world.peers[i].is_alive)
            return outcome_of(
                self._contender.title, self.account, self.residents, held=held, target_loss=self._swarm.target_loss,
                digest=world.digest(),
            )  # fmt: skip

    # -- who is there --------------------------------------------------------------------------------------------------

    def _at(self, at_s: float, resident: Resident, session: Session) -> None:
        if at_s <= self.world.time_s:
            self._join(resident, session)
        elif at_s < self.end_s:
            self.world.call_at(at_s, lambda: self._join(resident, session))

    def _join(self, resident: Resident, session: Session) -> None:
        peer = self._peers.get(resident.name)
        if peer is not None and peer.is_alive:
            return self._at(self.world.time_s + LEAVING_S, resident, session)
        if session.ends_s <= self.world.time_s or self._has_all_epochs():
            return None
        if peer is not None:
            self.world.restart(peer.index)
        else:
            peer = self._peers[resident.name] = self._added(resident)
        self.account.follow(peer.name, peer.transport.access)
        index = peer.index
        if session.ends_s < self.end_s:
            self.world.call_at(session.ends_s, lambda: self._end(index, session))
        return None

    def _end(self, index: int, session: Session) -> None:
        if not self.world.peers[index].is_alive:
            return
        if session.is_killed or index not in self.roles.stops:
            self.world.kill(index)
        else:
            self.roles.stops[index].set()

    def _added(self, resident: Resident) -> SimPeer:
        index, roles = len(self.world.peers), self.roles

        async def main(ports: Ports) -> None:
            if self._contender.equal_shares:
                ports = replace(ports, transport=BlindTransport(ports.transport))
            if resident.role == "backbone":
                await roles.serve(ports, index)
            elif resident.role == "auxiliary":
                await roles.assist(ports, index)
            else:
                reach = Reachability.CLIENT if resident.client_mode else Reachability.DIRECT
                settings = ParticipantSettings(name=resident.name, reach=reach)
                await roles.train(
                    ports, index, TrainerLife(microbatch_size=self._swarm.microbatch_size, settings=settings)
                )

        peer = self.world.add_peer(
            main,
            link=resident.link,
            samples_per_s=resident.samples_per_s or 1.0,
            client_mode=resident.client_mode,
            name=resident.name,
        )
        if resident.role == "backbone":
            self.world.network.relays[peer.peer_id] = None
        return peer

    def _has_all_epochs(self) -> bool:
        until = self._swarm.epochs
        return until is not None and any(replica.epoch >= until for replica in self.roles.replicas.values())

    def _is_over(self) -> bool:
        if self.world.time_s >= self.end_s:
            return True
        return self._has_all_epochs() and not any(self.world.peers[index].is_alive for index in self.roles.replicas)

    # -- what has become of it -----------------------------------------------------------------------------------------

    def _worth(self) -> Evaluation:
        if not isinstance(self._contender.strategy, config.VcAsgd):
            return worth_of(self._task, None, list(self.roles.replicas.values()))
        stored = self.roles.stores.of("").read()
        return worth_of(self._task, stored, [])
