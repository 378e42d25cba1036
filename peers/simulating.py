"""One way of training on a described swarm, in virtual time, by the very roles of a real run."""

import hashlib
import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
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
from collab.training.copy_layout import CopyLayout
from collab.training.judging import evaluate_state
from collab.training.participant_settings import ParticipantSettings
from collab.types import Reachability
from peers.simulated_roles import SimulatedRoles, TrainerLife

LOOKS = 60
"""At the model while it learns; they cost no virtual time."""
LOOK_S = 30.0
"""Between two of them where only the number of epochs is given."""
LONGEST_S = 7 * 86_400.0
"""Of virtual time, where only the number of epochs is given."""
LAST = 0.05
"""Of the time, over which the training loss at the end is taken."""
SETTLED = 0.25
"""Of the steps, after which a swarm is taken to go on as it will."""
LEAVING_S = 1.0
"""How much later a machine comes back that is still about to leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How far it was at one moment."""

    at_s: float
    samples: float
    """Committed by then."""
    sent_bytes: int
    """By all peers."""
    loss: float
    accuracy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one way of training has come to; NaN: there is no such thing here."""

    title: str
    virtual_s: float
    steps: int
    step_s: float
    """Mean of those after the first quarter."""
    round_s: float
    """Median of committed rounds, as members saw them."""
    rounds_committed: int
    """As members saw them: of one round as many as it had."""
    rounds_lost: int
    samples_per_s: float
    """Committed, after the first quarter of the steps."""
    computed_samples: int
    committed_samples: float
    held_samples: int
    """Computed, and on their way into a later step when the time was over."""
    lost_share: float
    """Of the samples computed, that are in no step and never will be."""
    training_loss: float
    held_out_loss: float
    accuracy: float
    seconds_to_loss: float
    sent_bytes: int
    """By all peers."""
    sent_bytes_of_a_trainer: float
    """Mean."""
    compute_use: float
    """Share of the time that trainers were there in which they computed."""
    uplink_use: float
    """Share of what trainers' uplinks could have carried."""
    money: float
    digest: str
    """Of everything that happened, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Figures, and the way to them."""

    figures: Figures
    looks: tuple[Look, ...]


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
        self.account = Account(self.world, has_rounds=not isinstance(contender.strategy, config.Solo | config.VcAsgd))
        self._peers: dict[str, SimPeer] = {}
        self._looks: list[Look] = []

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
            self._look()
            while not self._is_over():
                world.run(until_s=min(world.time_s + slice_s, self.end_s))
                self._look()
            return Outcome(figures=self._figures(), looks=tuple(self._looks))

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
        self.account.follow(peer)
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

        return self.world.add_peer(
            main,
            link=resident.link,
            samples_per_s=resident.samples_per_s or 1.0,
            client_mode=resident.client_mode,
            name=resident.name,
        )

    def _has_all_epochs(self) -> bool:
        until = self._swarm.epochs
        return until is not None and any(replica.epoch >= until for replica in self.roles.replicas.values())

    def _is_over(self) -> bool:
        if self.world.time_s >= self.end_s:
            return True
        return self._has_all_epochs() and not any(self.world.peers[index].is_alive for index in self.roles.replicas)

    # -- what has become of it -----------------------------------------------------------------------------------------

    def _look(self) -> None:
        worth = self._worth()
        self._looks.append(
            Look(
                at_s=self.world.time_s,
                samples=self.account.committed_samples,
                sent_bytes=self.account.sent_bytes,
                loss=worth.loss,
                accuracy=worth.accuracy,
            )
        )

    def _worth(self) -> Evaluation:
        """Of the model that the swarm shares: the servers', or that of the trainer that is furthest."""
        if isinstance(self._swarm.task, NoTask):
            return Evaluation(math.nan)
        if isinstance(self._contender.strategy, config.VcAsgd):
            stored = self.roles.stores.of("").read()
            if stored is None:
                return Evaluation(math.nan)
            model = self._task.build_model()
            CopyLayout(model).scatter(torch.tensor(stored.values))
            return self._task.evaluate(model)
        with_state = [replica for replica in self.roles.replicas.values() if replica.lineage]
        if not with_state:
            return Evaluation(math.nan)
        return evaluate_state(self._task, max(with_state, key=lambda replica: replica.epoch).snapshot())

    def _figures(self) -> Figures:
        account, time_s, last = self.account, self.world.time_s, self._looks[-1]
        trainers = [resident for resident in self.residents if resident.role == "trainer"]
        tallies = [account.tallies[self._peers[r.name].index] for r in trainers if r.name in self._peers]
        there_s = math.fsum(resident.seconds_until(time_s) for resident in trainers)
        could_send = math.fsum(r.seconds_until(time_s) * r.link.up_bytes_per_s for r in trainers)
        sent = sum(tally.sent_bytes for tally in tallies)
        held = sum(self.roles.replicas[i].samples for i in self.roles.replicas if self.world.peers[i].is_alive)
        computed, committed = account.computed_samples, account.committed_samples
        target, reached = self._swarm.target_loss, [look.at_s for look in self._looks if self._is_reached(look)]
        step_s, samples_per_s = account.pace(SETTLED)
        return Figures(
            title=self._contender.title,
            virtual_s=time_s,
            steps=account.steps,
            step_s=step_s,
            round_s=statistics.median(account.round_s) if account.round_s else math.nan,
            rounds_committed=account.rounds_committed,
            rounds_lost=account.rounds_lost,
            samples_per_s=samples_per_s,
            computed_samples=computed,
            committed_samples=committed,
            held_samples=held,
            lost_share=max(1.0 - (committed + held) / computed, 0.0) if computed else 0.0,
            training_loss=account.training_loss(since_s=(1.0 - LAST) * time_s),
            held_out_loss=last.loss,
            accuracy=last.accuracy,
            seconds_to_loss=min(reached, default=math.inf) if target is not None else math.nan,
            sent_bytes=account.sent_bytes,
            sent_bytes_of_a_trainer=sent / max(len(tallies), 1),
            compute_use=math.fsum(tally.busy_s for tally in tallies) / there_s if there_s else 0.0,
            uplink_use=sent / could_send if could_send else 0.0,
            money=math.fsum(resident.price_until(time_s) for resident in self.residents),
            digest=self.world.digest(),
        )

    def _is_reached(self, look: Look) -> bool:
        return self._swarm.target_loss is not None and look.loss <= self._swarm.target_loss


def digest_of(outcomes: list[Outcome]) -> str:
    """SHA-256 over all figures and looks: equal digests mean equal simulations."""
    text = json.dumps([asdict(outcome) for outcome in outcomes], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
