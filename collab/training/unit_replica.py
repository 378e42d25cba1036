"""A replica that trains a copy of the parameter servers' parameters, one work unit after the other."""

import copy
import math
from typing import Any

import numpy as np
import torch

from collab.errors import ConfigError, ShapeMismatch
from collab.strategies.base import HandedOver, Spans
from collab.swarm.parameter_store.base import Stored, lineage_of
from collab.swarm.snapshots import Snapshot
from collab.training.accumulator import Accumulator
from collab.training.copy_layout import COUNT, CopyLayout
from collab.training.replica import MicrobatchReport
from collab.training.shared_state import as_numpy, whole_or_nobodys
from collab.training.stepping import SteppingReplica
from collab.types import Vector

ALL: Spans = ((0, 1),)
"""Of what is accumulated: which samples, and nothing of the parameters."""


class UnitReplica(SteppingReplica):
    """Parameters are the copy; what is shared is what the unit began with.

    Its epoch is the version of the parameters that the unit began with. Each unit begins with a fresh optimiser. The
    running statistics of norms are part of the copy; all other buffers are those of the state that was taken over.

    Memory, beside model and optimiser: one vector on the CPU, one more while a copy is handed over, and the buffers
    that are in no copy once more.
    """

    def __init__(self, *args: Any, device: torch.device, **kwargs: Any) -> None:
        """See ``Replica``."""
        super().__init__(*args, device=device, **kwargs)
        self._gradient = Accumulator(1, device)
        self._fresh = copy.deepcopy(self.optimizer.state_dict())
        self.copy_layout = CopyLayout(self.model)
        self._begun_with: Vector
        self._others: dict[str, torch.Tensor]
        """Buffers that are in no copy, as they were taken over."""
        self._begin_with_present()
        self.unit_samples = self._to_compute = 0
        """Of the present unit, 0 when it was handed over; and how many of them are left."""

    # -- units -------------------------------------------------------------------------------------------------------

    @property
    def is_unit_over(self) -> bool:
        """Whether every sample of the unit was computed, or left out because it was not finite."""
        return self._to_compute <= 0

    @property
    def unit_samples_done(self) -> int:
        """Of the present unit those that were computed, or left out."""
        return self.unit_samples - self._to_compute

    def restart(self, stored: Stored, num_samples: int, era: str = "") -> None:
        """A unit of so many samples begins with these parameters; what came of one that was not handed over is dropped.

        Args:
            era: mark of the rollback since which they were made; empty: there was none.

        Raises:
            ShapeMismatch: they are those of another model.
        """
        if stored.values.shape != (self.copy_layout.num_elements,):
            raise ShapeMismatch(
                f"expected {self.copy_layout.num_elements} parameters, the servers have {len(stored.values)}",
                hint="they serve another model",
            )
        self.unit_samples = self._to_compute = num_samples
        self._gradient.drop_later()
        with self._changing, whole_or_nobodys(self):
            self._begun_with = stored.values
            self.copy_layout.scatter(torch.from_numpy(np.array(stored.values)).to(self.device))
            for name, tensor in self.copy_layout.others().items():
                tensor.copy_(self._others[name])
            self.optimizer.load_state_dict(copy.deepcopy(self._fresh))
            self.epoch, self.lineage, self.era = stored.version, lineage_of(stored.version, era), era

    def take_gradients(
        self, sample_ids: tuple[int, ...], loss: float | None, *, scale: float = 1.0
    ) -> MicrobatchReport:
        """One step with the gradients that stand in the parameters now, if they and the loss are finite."""
        is_sound = self._own_step(loss, scale)
        self._to_compute -= len(sample_ids)  # not of one for whose step there was no room
        nothing, known = self._gradient.buffer().zero_(), math.nan if loss is None else loss
        return self._add(nothing, sample_ids, known, is_sound=is_sound)

    def hand_over(self) -> HandedOver:
        """The copy, and how many samples have made it. Not beside a microbatch: that changes it.

        Raises:
            ConfigError: the unit has changed a buffer that no copy has.
        """
        self._check_others()
        samples = self._gradient.hand_over().samples
        self._beside = self.unit_samples = self._to_compute = 0
        values = self.copy_layout.vector()
        start = self.copy_layout.num_parameters
        is_known = np.isfinite(values[start:])  # of norms that a microbatch has passed which was left out
        values[start:] = np.where(is_known, values[start:], self._begun_with[start:])
        return HandedOver(values, samples)

    def settle(self, used: Spans, round_id: str = "") -> None:
        """What was handed over is in the servers' parameters, or, with nothing used, in nothing, and never will be."""
        if used:
            self._gradient.settle(ALL)
        else:
            self._gradient.drop()

    def _check_others(self) -> None:
        for name, tensor in self.copy_layout.others().items():
            if name.rpartition(".")[2] != COUNT and not torch.equal(tensor, self._others[name]):
                text = f"training changes the model's buffer {name}, and nobody has said how servers should mix it"
                hint = "train this model with dedloc, or leave the buffer out of its state: persistent=False"
                raise ConfigError(f"vc_asgd: {text}", hint=hint)

    def move_to(self, device: torch.device) -> None:
        """See ``Replica``."""
        super().move_to(device)
        with self._changing:
            self._others = {name: tensor.to(device) for name, tensor in self._others.items()}

    # -- state -------------------------------------------------------------------------------------------------------

    def _shared(self) -> Snapshot:
        """What the unit began with, and nothing of the optimiser."""
        state = super()._shared()
        tensors = {name: tensor for name, tensor in state.tensors.items() if not name.startswith("optimizer.")}
        for slot in self.copy_layout.slots:
            tensors[f"model.{slot.name}"] = self._begun_with[slot.start : slot.stop].reshape(slot.shape)
        for name, tensor in self._others.items():
            tensors[f"model.{name}"] = as_numpy(tensor)
        return Snapshot(epoch=state.epoch, lineage=state.lineage, tensors=tensors, scalars={}, era=state.era)

    def _loaded(self, snapshot: Snapshot) -> None:
        self._begin_with_present()

    def _begin_with_present(self) -> None:
        """What the model is now is what a unit would begin with."""
        self._begun_with = self.copy_layout.vector()
        self._others = {name: tensor.clone() for name, tensor in self.copy_layout.others().items()}

    def _optimizer_state(self, snapshot: Snapshot) -> dict[str, Any]:
        """Fresh: it is private, and lasts for a unit."""
        return copy.deepcopy(self._fresh)
