"""One trainer with any strategy, on a small model and without a network: its replica and strategy as a run makes them.

Its rounds have it as their only contributor, and come to what a test says; its units are kept in a store in memory.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from collab import config
from collab.averaging.base import Committed, Contribution, Outcome
from collab.config import parse_run
from collab.data.work_units import Unit
from collab.strategies.base import Decision, HandedOver, Swarm, decide
from collab.strategies.registry import build_strategy
from collab.strategies.vc_asgd import alpha_of
from collab.swarm.parameter_store.base import Kept, Push, Verdict
from collab.swarm.parameter_store.in_process import InProcessStore
from collab.swarm.snapshots import PackedSnapshot, pack
from collab.training.genesis import replica_of
from collab.training.optimizers import build_optimizer
from collab.training.replica import Replica
from collab.training.unit_replica import UnitReplica
from collab.types import PeerId, Vector
from tests.averaging.records import make_record
from tests.fakes import FakeCompute
from tests.training.toy import Plain, batch, loss, seeded

ME = PeerId("a")
MICROBATCH, WINDOW = 6, 2
"""Samples of a microbatch, and microbatches of a step of the swarm or of a unit."""
SAMPLES = MICROBATCH * WINDOW
MOST_NORM = 0.5
"""Of gradients, where the strategy clips them."""
FINGERPRINT = "f" * 64
RUN = """\
run_id: alone
task: {{name: image_classification}}
optimizer: {optimizer}
strategy: {{name: {strategy}}}
"""


class Rounds:
    """Implements ``Averager`` for one trainer."""

    def __init__(self) -> None:
        self.brought: list[Contribution] = []
        self.comes_to: Callable[[Contribution], Outcome] = self.committed

    async def average(self, contribution: Contribution) -> Outcome:
        self.brought.append(contribution)
        return self.comes_to(contribution)

    def committed(self, contribution: Contribution) -> Committed:
        """A round of this contribution alone."""
        attempts = sum(each.epoch == contribution.epoch for each in self.brought)
        record = make_record(
            round_id=f"round {contribution.epoch}-{attempts}",
            epoch=contribution.epoch,
            lineage=contribution.lineage,
            contributors=((ME, contribution.weight),),
            members=(ME,),
            pieces=((ME, 0, len(contribution.vector)),),
        )
        return Committed(mean=contribution.vector.copy(), record=record)


@dataclass
class Samples:
    """Implements ``Progress`` for one trainer."""

    replica: Replica

    async def has_reached(self, target_samples: float, *, is_patient: bool = True) -> bool:
        return self.replica.samples >= target_samples


class OneUnit:
    """Implements ``Units``: one after the other, of the pass and shard that the store is at."""

    is_single = True

    def __init__(self, replica: UnitReplica, section: config.VcAsgd) -> None:
        self._replica, self._section = replica, section
        self.store = InProcessStore()
        self.store.begin(Kept.at_first(replica.copy_layout.vector()))
        self._based_on, self._is_begun = 0, False
        self._under_way: HandedOver | None = None
        self.answers_lost = 0
        """Of pushes to come: the store has mixed them, and the client hears nothing, and pushes again."""

    @property
    def is_over(self) -> bool:
        return self._is_begun and self._replica.is_unit_over

    def begin(self) -> None:
        """The next unit, with the parameters that are stored now."""
        stored = self.store.read()
        assert stored is not None
        self._replica.restart(stored, SAMPLES)
        self._based_on, self._is_begun = stored.version, True

    def push(self, copy: HandedOver) -> None:
        self._under_way, self._is_begun = copy, False

    async def answer(self, *, waits: bool) -> tuple[HandedOver, Verdict] | None:
        if (copy := self._under_way) is None:
            return None
        number, shard = divmod(self._based_on, self._section.shards)
        unit = Unit(number + 1, shard)
        push = Push(
            unit=unit, lease=f"lease {unit}", values=copy.mean, based_on=self._based_on,
            alpha=alpha_of(self._section, unit.pass_number),
        )  # fmt: skip
        while self.answers_lost:
            self.store.assimilate(push)
            self.answers_lost -= 1
        self._under_way = None
        return copy, self.store.assimilate(push).verdict


class Trainer:
    """Takes one step after the other, each on samples of its own."""

    def __init__(
        self, strategy: str, optimizer: config.Optimizer, model: type[torch.nn.Module] = Plain, seed: int = 0
    ) -> None:
        """
        Args:
            strategy: its section in the run file, without braces and ``name:``.
        """
        inner = optimizer.model_dump_json()
        self.run = parse_run(RUN.format(optimizer=inner, strategy=strategy), origin="the test")
        made = seeded(model, seed)
        self.replica = replica_of(self.run, made, build_optimizer(self.run.optimizer, made), torch.device("cpu"))
        self.strategy = build_strategy(self.run.strategy, lambda _: SAMPLES, ("sign_rule",))
        self.rounds, self.units = Rounds(), None
        if isinstance(self.run.strategy, config.VcAsgd):
            assert isinstance(self.replica, UnitReplica)
            self.units = OneUnit(self.replica, self.run.strategy)
        self.swarm = Swarm(
            peer_id=ME, progress=Samples(self.replica), averager=self.rounds, worker=FakeCompute(), units=self.units
        )

    def compute(self, number: int, turn: int) -> None:
        """A microbatch of a step."""
        ids = batch(SAMPLES * number + MICROBATCH * turn, MICROBATCH)
        assert not self.replica.accumulate(ids, loss).skipped

    async def step(self, number: int) -> Decision:
        """All of one step of the swarm, or one unit; what was decided last."""
        if self.units is not None:
            self.units.begin()
        decisions = []
        for turn in range(WINDOW):
            self.compute(number, turn)
            decisions.append(await decide(self.strategy, self.replica, self.swarm))
        return decisions[-1]

    @property
    def parameters(self) -> Vector:
        return self.replica.layout.parameters_vector()

    @property
    def result(self) -> Vector:
        """What the swarm has: the parameters, or where servers have them, what is stored."""
        if self.units is None:
            return self.parameters
        stored = self.units.store.read()
        assert stored is not None
        return stored.values

    def packed(self) -> PackedSnapshot:
        """What others would get."""
        return pack(self.replica.snapshot(), fingerprint=FINGERPRINT)
