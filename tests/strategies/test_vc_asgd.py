"""What VC-ASGD decides, with a store in memory in place of servers."""

import numpy as np
import pytest

from collab import config
from collab.data.work_units import Unit
from collab.strategies.base import Decision, HandedOver, Stepped, Swarm, Waiting
from collab.strategies.vc_asgd import VcAsgd, alpha_of
from collab.swarm.parameter_store.base import Kept, Push, Verdict
from collab.swarm.parameter_store.in_process import InProcessStore
from collab.types import PeerId, Vector
from tests.fakes import FakeCompute, run
from tests.strategies.test_strategies import FakeAverager, FakeProgress, FakeReplica

FIRST = np.array([4.0, 0.0], np.float32)


class FakeUnits:
    """One unit after the other, over a store; the answer to a push comes when it is ``let_through``."""

    def __init__(self, store: InProcessStore, shards: list[int], *, is_single: bool = True) -> None:
        self.store, self.is_single, self.is_over = store, is_single, False
        self._shards, self._based_on = shards, 0
        self._under_way: HandedOver | None = None
        self.let_through = True

    def end(self, *, based_on: int) -> None:
        """The last sample of the present unit is computed."""
        self.is_over, self._based_on = True, based_on

    def push(self, copy: HandedOver) -> None:
        assert self._under_way is None, "one at a time"
        self._under_way, self.is_over = copy, False

    async def answer(self, *, waits: bool) -> tuple[HandedOver, Verdict] | None:
        copy = self._under_way
        if copy is None or not (waits or self.let_through):
            return None
        self._under_way, shard = None, self._shards.pop(0)
        push = Push(
            unit=Unit(1, shard), lease=f"lease {shard} {id(self)}", values=copy.mean, based_on=self._based_on, alpha=0.5
        )
        return copy, self.store.assimilate(push).verdict


def store() -> InProcessStore:
    made = InProcessStore()
    made.begin(Kept.at_first(FIRST))
    return made


def stored(units: FakeUnits) -> Vector:
    now = units.store.read()
    assert now is not None
    return now.values


def client(units: FakeUnits) -> Swarm:
    return Swarm(
        peer_id=PeerId("a"), progress=FakeProgress(0), averager=FakeAverager(), worker=FakeCompute(), units=units
    )


async def decided(units: FakeUnits, replica: FakeReplica) -> Decision:
    return await VcAsgd().after_microbatch(replica, client(units))


def test_two_clients_copies_are_mixed_in_as_they_come() -> None:
    async def main() -> None:
        shared = store()
        first, second = FakeUnits(shared, [0]), FakeUnits(shared, [1])
        for units, copy, samples in ((first, [2.0, 0.0], 3), (second, [0.0, 8.0], 5)):
            replica = FakeReplica(copy, samples)
            assert await decided(units, replica) == Waiting(), "the unit is not over"
            units.end(based_on=0)
            expected = Stepped(contributors=1, swarm_samples=float(samples), was_ours_used=True)
            assert await decided(units, replica) == expected
            assert replica.samples == 0
        # 0.5 [4, 0] + 0.5 [2, 0] = [3, 0]; 0.5 [3, 0] + 0.5 [0, 8] = [1.5, 4]
        np.testing.assert_array_equal(stored(second), np.array([1.5, 4.0], np.float32))

    run(main())


def test_what_somebody_else_has_done_meanwhile_is_in_nothing_and_is_said() -> None:
    async def main() -> None:
        shared = store()
        first, late = FakeUnits(shared, [0]), FakeUnits(shared, [0])
        first.end(based_on=0)
        await decided(first, FakeReplica([2.0, 0.0], 3))
        late.end(based_on=0)
        decision = await decided(late, FakeReplica([9.0, 9.0], 3))
        assert isinstance(decision, Waiting)
        assert "done" in decision.reason
        np.testing.assert_array_equal(stored(late), np.array([3.0, 0.0], np.float32))

    run(main())


def test_with_several_units_at_once_the_next_one_goes_on_beside_the_push() -> None:
    async def main() -> None:
        units = FakeUnits(store(), [0, 1], is_single=False)
        units.let_through = False
        replica = FakeReplica([2.0, 0.0], 3)
        units.end(based_on=0)
        assert await decided(units, replica) == Waiting(), "nobody waits for the answer"
        assert await decided(units, replica) == Waiting()
        replica.samples = 4
        units.end(based_on=0)
        decision = await decided(units, replica)  # the push before is settled first: one is on its way at a time
        assert isinstance(decision, Stepped)
        assert units.store.version() == 1
        units.let_through = True
        assert isinstance(await decided(units, replica), Stepped)
        assert units.store.version() == 2

    run(main())


def test_what_is_kept_grows_with_the_passes_or_is_constant() -> None:
    growing = config.VcAsgd(name="vc_asgd")
    assert [alpha_of(growing, number) for number in (1, 2, 4)] == [0.5, pytest.approx(2 / 3), 0.8]
    constant = config.VcAsgd(name="vc_asgd", alpha=0.95)
    assert [alpha_of(constant, number) for number in (1, 40)] == [0.95, 0.95]
