"""A peer whose upload would hold everybody up: nobody waits for it, and what it computes is committed in the end.

The fast peers' microbatches are shorter than the shortest time that a leader waits for anybody, so that what is
measured is the slow peer's doing. The vector is as small as a link is still measured by: a mebibyte a round. Nothing is
learnt with it: only samples, bytes and seconds are looked at.
"""

from pathlib import Path

from collab.metrics.records import EpochFinished, MicrobatchDone
from collab.simulation.links import Link
from collab.simulation.peer import SimPeer
from collab.simulation.swarm_file import NoTask
from collab.simulation.synthetic import SyntheticTask
from tests.simulation.swarm import SimSwarm

MBIT = 1e6 / 8
FAST, SLOW = Link(up_bytes_per_s=25 * MBIT, down_bytes_per_s=100 * MBIT), Link(up_bytes_per_s=2 * MBIT)
SAMPLES_PER_S = 16.0
"""Of a fast peer, in microbatches of four."""
STEADY_FROM = 2
"""Epoch: the first rounds are planned with what one second has shown of the links."""


class Seven:
    """Seven peers of 25 Mbit/s up with 295,000 parameters, and perhaps an eighth of 2 Mbit/s; the run is over."""

    def __init__(
        self, directory: Path, *, until: int, target: int, slow_samples_per_s: float | None, compression: str = "exact"
    ) -> None:
        self.swarm = SimSwarm(directory, until=until, target=target, compression=compression, every=until)
        self.swarm.task = SyntheticTask(NoTask(name="none", num_elements=295_000, samples=1400))
        self.swarm.add_backbone()
        self.fast = [
            self.swarm.add_trainer(samples_per_s=SAMPLES_PER_S, microbatch_size=4, link=FAST) for _ in range(7)
        ]
        self.slow: SimPeer | None = None
        if slow_samples_per_s is not None:
            self.slow = self.swarm.add_trainer(samples_per_s=slow_samples_per_s, microbatch_size=1, link=SLOW)
        self.swarm.world.run()

    def steps(self, peer: SimPeer) -> list[EpochFinished]:
        """In order."""
        return self.swarm.events(peer, EpochFinished)

    @property
    def samples_per_s(self) -> float:
        """Committed by all steps but the first ones and the last, in which nobody is left out, over their time."""
        steps = self.steps(self.fast[0])[STEADY_FROM:-1]
        return sum(step.swarm_samples for step in steps) / sum(step.seconds for step in steps)

    @property
    def uncommitted(self) -> int:
        """Samples that the slow peer has computed and no step has used."""
        if self.slow is None:
            return 0
        computed = sum(done.samples for done in self.swarm.events(self.slow, MicrobatchDone))
        return computed - sum(step.own_samples for step in self.steps(self.slow))


TARGET = int(7 * SAMPLES_PER_S * 20)  # 20 s of a batch


def test_a_slow_uploader_at_a_fiftieth_of_the_speed_costs_the_swarm_nothing(tmp_path: Path) -> None:
    without = Seven(tmp_path / "without", until=7, target=TARGET, slow_samples_per_s=None, compression="auto")
    beside = Seven(tmp_path / "with", until=7, target=TARGET, slow_samples_per_s=SAMPLES_PER_S / 50, compression="auto")
    assert min(step.contributors for step in beside.steps(beside.fast[0])) == 7
    assert beside.samples_per_s >= 0.99 * without.samples_per_s
    assert beside.uncommitted <= 1  # the microbatch that was under way when the run ended


def test_in_the_last_round_nobody_is_left_out(tmp_path: Path) -> None:
    beside = Seven(tmp_path, until=4, target=TARGET, slow_samples_per_s=SAMPLES_PER_S / 50)
    assert [step.contributors for step in beside.steps(beside.fast[0])] == [7, 7, 7, 8]
    assert beside.uncommitted <= 1


def test_what_a_slow_uploader_computes_while_it_is_left_out_is_committed_together_later(tmp_path: Path) -> None:
    seven = Seven(tmp_path, until=12, target=1120, slow_samples_per_s=SAMPLES_PER_S / 5)
    assert seven.slow is not None
    contributed = {step.epoch: step.own_samples for step in seven.steps(seven.slow) if step.own_samples}
    first, last = sorted(contributed)
    assert first >= 4
    step = next(step for step in seven.steps(seven.slow) if step.epoch == first)
    assert set(step.sample_epochs) == set(range(first))  # all that it has computed since
    assert last == 12
    computed = sum(done.samples for done in seven.swarm.events(seven.slow, MicrobatchDone))
    held = seven.swarm.replicas[seven.slow.index].samples
    assert sum(contributed.values()) + held == computed
    assert len({peer.result["lineage"] for peer in [*seven.fast, seven.slow]}) == 1
    assert {replica.epoch for replica in seven.swarm.replicas.values()} == {12}
