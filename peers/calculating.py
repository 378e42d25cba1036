"""One way of training on a described swarm, in virtual time, with everything between the trainers calculated."""

import hashlib
from collections.abc import Mapping

import torch

from collab import config
from collab.errors import ConfigError
from collab.simulation.account import Account
from collab.simulation.calculated.swarm import CalculatedSwarm
from collab.simulation.residents import residents_of
from collab.simulation.swarm_file import Contender, NoTask, SwarmFile
from collab.swarm.bundle import Bundle
from collab.swarm.identity import Identity
from collab.tasks.base import Task
from peers.figures import Outcome, outcome_of
from peers.simulating import LONGEST_S, LOOK_S, LOOKS
from peers.worth import worth_of


class Calculation:
    """One contender on one swarm; use it once. What ``Simulation`` is, with rounds by their closed forms."""

    def __init__(self, swarm: SwarmFile, contender: Contender, task: Task, assets: Mapping[str, bytes]) -> None:
        """
        Raises:
            ConfigError: the contender is one that only its roles can play.
        """
        if isinstance(contender.strategy, config.Dts) and contender.strategy.windows > 1:
            text = f"{contender.title}: rounds of several windows cannot be calculated"
            raise ConfigError(text, hint="simulate without --calculated, or with `windows: 1`")
        torch.manual_seed(swarm.seed)
        owner = Identity.from_seed(hashlib.sha256(f"owner {swarm.seed}".encode()).digest())
        self._swarm, self._contender, self._task = swarm, contender, task
        self._end_s = swarm.minutes * 60.0 if swarm.minutes is not None else LONGEST_S
        self._residents = residents_of(swarm, end_s=self._end_s)
        self._account = Account(has_rounds=not isinstance(contender.strategy, config.Solo | config.VcAsgd))
        self._calculated = CalculatedSwarm(
            Bundle(swarm.run_of(contender), assets, owner.peer_id),
            task,
            self._residents,
            self._account,
            thinned=swarm.task.thinned if isinstance(swarm.task, NoTask) else 1,
            equal_shares=contender.equal_shares,
        )

    def run(self) -> Outcome:
        """All of it."""
        slice_s = self._end_s / LOOKS if self._swarm.minutes is not None else LOOK_S
        with self._calculated as calculated:
            self._look()
            while not self._is_over():
                calculated.run(until_s=min(calculated.time_s + slice_s, self._end_s))
                self._look()
            return outcome_of(
                self._contender.title, self._account, self._residents, held=calculated.held_samples,
                target_loss=self._swarm.target_loss, digest=calculated.digest(),
            )  # fmt: skip

    def _look(self) -> None:
        calculated = self._calculated
        self._account.look(worth_of(self._task, calculated.store.read(), calculated.replicas), at_s=calculated.time_s)

    def _is_over(self) -> bool:
        until, calculated = self._swarm.epochs, self._calculated
        return calculated.time_s >= self._end_s or (until is not None and calculated.epoch >= until)
