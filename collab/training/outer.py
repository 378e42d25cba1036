"""A replica whose anchor moves by an optimiser of its own, which all peers share: the outer one."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from collab.errors import ShapeMismatch
from collab.swarm.snapshots import Snapshot
from collab.training.anchored import AnchoredReplica
from collab.types import Vector

KEY = "outer_momentum"
"""Of the outer momentum in a snapshot, behind each parameter's name."""


@dataclass(frozen=True, slots=True)
class Nesterov:
    """``v <- momentum v + u``, and a step of ``learning_rate (u + momentum v)``."""

    learning_rate: float
    momentum: float

    def step(self, update: Vector, velocity: Vector) -> Vector:
        """[num_elements] float32, the step; ``velocity`` is changed in place.

        On the CPU and one operation after the other, so that it comes to the same bytes on every machine.
        """
        velocity *= np.float32(self.momentum)
        velocity += update
        moved: Vector = velocity * np.float32(self.momentum)
        moved += update
        moved *= np.float32(self.learning_rate)
        return moved


class OuterReplica(AnchoredReplica):
    """Parameters are ``anchor + own displacements``, and the anchor moves by ``rule`` of the mean displacement.

    Shared and snapshotted, beside the anchor: the velocity of the outer rule.
    Memory beside an ``AnchoredReplica``'s: one vector, on the CPU.
    """

    rule = Nesterov(learning_rate=1.0, momentum=0.0)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """See ``Replica``."""
        super().__init__(*args, **kwargs)
        self._velocity = np.zeros(self.layout.num_elements, np.float32)

    def _moved(self, update: Vector) -> Vector:
        return self.rule.step(update, self._velocity)

    def _shared(self) -> Snapshot:
        """With the velocity, in the optimiser's part."""
        state = super()._shared()
        outer = {
            f"optimizer.{slot.name}.{KEY}": self._velocity[slot.start : slot.stop].reshape(slot.shape)
            for slot in self.layout.slots
        }
        return Snapshot(
            epoch=state.epoch, lineage=state.lineage, tensors={**state.tensors, **outer}, scalars={}, era=state.era
        )

    def load(self, snapshot: Snapshot) -> None:
        """See ``Replica``.

        Raises:
            ShapeMismatch: its tensors are not those of this model; nothing was changed.
        """
        for slot in self.layout.slots:
            there = snapshot.tensors.get(f"optimizer.{slot.name}.{KEY}")
            if there is not None and tuple(there.shape) != slot.shape:
                raise ShapeMismatch(f"outer momentum of {slot.name} has shape {tuple(there.shape)}, not {slot.shape}")
        super().load(snapshot)

    def _loaded(self, snapshot: Snapshot) -> None:
        super()._loaded(snapshot)
        for slot in self.layout.slots:  # a checkpoint of another strategy has none: the first step is a plain one
            there = snapshot.tensors.get(f"optimizer.{slot.name}.{KEY}")
            self._velocity[slot.start : slot.stop] = 0 if there is None else there.reshape(-1)
