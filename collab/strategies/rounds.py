"""What strategies that go on round by round have in common: one accumulation, one round, one step."""

from collab.averaging.base import Aborted, Committed, Contribution, Outcome
from collab.strategies.base import (
    NOTHING,
    Decision,
    HandedOver,
    OutOfStep,
    Ready,
    Replica,
    Stepped,
    Swarm,
    Target,
    Waiting,
)
from collab.types import Vector


class RoundByRound:
    """Accumulate until the swarm has its target batch, average what is accumulated, and apply the mean.

    What the mean is and does is the strategy's: see ``apply``. Of a lost round nothing is applied and nothing is
    forgotten; all that is accumulated is brought to the next attempt.
    """

    follows_swarm = True
    is_synchronous = True

    def __init__(self, *, target: Target) -> None:
        self._target = target

    async def after_microbatch(self, replica: Replica, swarm: Swarm) -> Decision:
        has_reached = swarm.progress.has_reached(self._target(replica.epoch), is_patient=self.is_synchronous)
        return Ready() if await has_reached and replica.samples > 0 else Waiting()

    def patience_s(self, replica: Replica, usual_s: float) -> float:
        return usual_s if self.is_synchronous else 0.0

    async def contribute(self, replica: Replica, swarm: Swarm) -> Outcome:
        epoch, lineage = replica.epoch, replica.lineage
        ours = await swarm.worker.beside(replica.hand_over)
        return await swarm.averager.average(
            Contribution(
                epoch=epoch,
                lineage=lineage,
                vector=self.sent(ours),
                weight=float(ours.samples),
                weights=ours.weights,
            )
        )

    def sent(self, ours: HandedOver) -> Vector:
        """[num_elements] what is averaged by samples: the mean of what was accumulated, by sample."""
        return ours.mean

    async def take(self, replica: Replica, swarm: Swarm, outcome: Outcome) -> Decision:
        if isinstance(outcome, Aborted):
            await swarm.worker.run(lambda: replica.doubt(outcome.rounds))
            return Waiting(outcome.text)
        record = outcome.record
        used, round_id = (record.used_of(swarm.peer_id), record.round_id) if record is not None else (NOTHING, "")
        if not isinstance(outcome, Committed):
            await swarm.worker.run(lambda: replica.settle(used, round_id))
            return OutOfStep(outcome.text)
        await swarm.worker.run(lambda: self.apply(replica, outcome))
        await swarm.worker.run(lambda: replica.settle(used, round_id))
        return Stepped(
            contributors=len(outcome.record.contributors), swarm_samples=outcome.record.weight, was_ours_used=bool(used)
        )

    def apply(self, replica: Replica, committed: Committed) -> None:
        """The step of a committed round, the same on every peer; see ``Strategy``."""
        raise NotImplementedError
