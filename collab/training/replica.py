"""The model as the swarm sees it: one vector of accumulated gradient in, one mean gradient out, a state to hand on."""

import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from collab import config
from collab.strategies.base import HandedOver, Spans
from collab.swarm.snapshots import PackedSnapshot, Snapshot, sealed, serialised
from collab.tasks.base import Batch
from collab.training.accumulator import Accumulator
from collab.training.backward import Backward, LossFunction
from collab.training.layout import VectorLayout
from collab.training.momentum import Outgoing, PlainGradient
from collab.training.one_window import OneWindow
from collab.training.precision import Precision
from collab.training.schedule import learning_rate_factor
from collab.training.shared_state import as_numpy, model_tensors, move, optimizer_state, tensors_of, whole_or_nobodys
from collab.training.sums import GradientSum, Used
from collab.types import Lineage, Vector

logger = logging.getLogger(__name__)

RateFactor = Callable[[int, str | None], float]
"""From an epoch and the mark of the terms of its step; None: those that this peer knows of."""


@dataclass(frozen=True, slots=True)
class MicrobatchReport:
    """What one forward and backward did."""

    samples: int
    loss: float
    """Mean over the samples; may be NaN or Inf when skipped."""
    skipped: str
    """Why nothing was accumulated; empty when it was."""


class Replica(OneWindow):
    """Model, optimiser, and the gradient accumulated since the last step.

    One worker drives it; only ``hand_over``, ``snapshot``, ``packed`` and reading may happen beside it.

    The accumulated gradient is touched only by microbatches that are finite as a whole, so that one bad microbatch
    (overflow, broken sample) stays its own.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        schedule: config.Schedule,
        *,
        device: torch.device,
        precision: Precision = Precision.FLOAT32,
        outgoing: Outgoing | None = None,
    ) -> None:
        """
        Args:
            model: float32 parameters, already on ``device``.
            optimizer: over the model's parameters; its present learning rates are the schedule's factor 1.
            outgoing: makes what is handed over of the mean gradient; None: it is the mean gradient.
        """
        super().__init__()
        self.model, self.optimizer = model, optimizer
        self.layout = VectorLayout(model)
        self.epoch = 0
        self.lineage, self.era = Lineage(""), ""
        self._schedule, self.device, self._backward = schedule, device, Backward(self.layout, precision)
        self._base_rates = [float(group["lr"]) for group in optimizer.param_groups]
        self.rate_factor: RateFactor = lambda _epoch, _terms: 1.0
        """What the organiser has made of the learning rate since the run began."""
        self._gradient = Accumulator(self.layout.num_elements, device)
        self._outgoing = PlainGradient() if outgoing is None else outgoing
        self._beside = 0
        """Microbatches since the last ``hand_over``."""
        self._changing = threading.Lock()
        """Held while the state changes, and while it is copied."""

    # -- accumulation ------------------------------------------------------------------------------------------------

    @property
    def samples(self) -> int:
        """Samples behind the accumulated gradient, handed over or not."""
        return self._gradient.num_samples

    @property
    def sample_ids(self) -> tuple[int, ...]:
        """Ids of these samples, in order."""
        return self._gradient.sample_ids

    @property
    def num_elements(self) -> int:
        """Length of what a step takes."""
        return self.layout.num_elements

    @property
    def exchanged_elements(self) -> int:
        """Length of what travels in a round."""
        return self.layout.num_elements

    @property
    def microbatches_beside(self) -> int:
        """Accumulated since the last ``hand_over``."""
        return self._beside

    @property
    def is_handed_over(self) -> bool:
        """Whether a gradient is on its way into a step."""
        return self._gradient.is_handed_over

    def take_used(self) -> Used:
        """What of ours has gone into steps since this was last asked; samples of which something is held have not."""
        return self._gradient.take_used()

    @property
    def precision(self) -> Precision:
        """Of forward and backward, by now."""
        return self._backward.precision

    @property
    def learning_rate(self) -> float:
        """Of the next step, first parameter group."""
        factor = learning_rate_factor(self._schedule, self.epoch) * self.rate_factor(self.epoch, None)
        return self._base_rates[0] * factor

    def accumulate(self, batch: Batch, loss_function: LossFunction) -> MicrobatchReport:
        """Forward and backward on ``batch``; adds its gradient, weighted by samples, if all of it is finite."""
        tensors = {name: tensor.to(self.device, non_blocking=True) for name, tensor in batch.tensors.items()}
        self.model.train()
        loss, scale = self._backward.compute(self.model, tensors, loss_function)
        return self.take_gradients(batch.sample_ids, loss, scale=scale)

    def take_gradients(
        self, sample_ids: tuple[int, ...], loss: float | None, *, scale: float = 1.0
    ) -> MicrobatchReport:
        """Accumulate the gradients that stand in the parameters now (mean over the samples, times ``scale``).

        Args:
            loss: mean over the samples; None when the caller does not know it.
        """
        samples = len(sample_ids)
        buffer = self._gradient.buffer()
        self.layout.gather_gradients(buffer)
        self.layout.clear_gradients()
        is_sound = loss is None or math.isfinite(loss)
        loss = math.nan if loss is None else loss
        return self._add(buffer.mul_(samples / scale), sample_ids, loss, is_sound=is_sound)

    def _add(
        self, total: torch.Tensor, sample_ids: tuple[int, ...], loss: float, *, is_sound: bool
    ) -> MicrobatchReport:
        """Accumulate what a microbatch came to, if it is finite."""
        samples = len(sample_ids)
        microbatch = GradientSum(total, sample_ids, (self.epoch,) * samples, loss * samples)
        is_finite = self._gradient.add(microbatch, is_sound=is_sound)
        self._backward.note(loss, was_finite=is_finite)
        self._beside += is_finite
        return MicrobatchReport(samples, loss, "" if is_finite else "the loss or its gradient is not finite")

    def abandon(self) -> None:
        """A microbatch could not be finished: nothing of it stays."""
        self.layout.clear_gradients()

    def hand_over(self) -> HandedOver:
        """What is accumulated, as its mean gradient or as what the run sends instead; microbatches that end from now on
        accumulate beside it.

        May be called while a microbatch is computed.

        Raises:
            ValueError: no samples yet.
        """
        self._beside = 0
        return self._outgoing.bring(self._gradient.hand_over(), self.epoch)

    def settle(self, used: Spans, round_id: str = "") -> None:
        """What was handed over is in a step in the elements of ``used``; elsewhere it is accumulated as before."""
        self._gradient.settle(used, round_id)
        self._outgoing.settle(used, round_id)

    def doubt(self, rounds: frozenset[str]) -> None:
        """What was handed over is accumulated as before, apart from what comes later while one of ``rounds`` may have
        used it.
        """
        self._gradient.doubt(rounds)
        self._outgoing.doubt(rounds)

    def disown(self, used: Spans, round_id: str) -> None:
        """A round that we had given up has used what we brought, in these elements: never bring it again.

        Where that round is none of those in doubt, what came in later is lost with it: rather that than to count
        anything twice. A round that is settled has taken what it used already.
        """
        if self._gradient.is_settled(round_id):
            return
        if used and self.samples and not (self._gradient.is_in_doubt(round_id) or self._gradient.has_windows):
            self._gradient.hand_over()
        self.settle(used, round_id)

    def forget(self) -> None:
        """Our history, and all that was accumulated on it, does not count any more."""
        self._gradient.forget()
        self._outgoing.forget()
        with self._changing:
            self.lineage = Lineage("")

    def move_to(self, device: torch.device) -> None:
        """Keep everything on another device; between two microbatches, on the worker."""
        with self._changing:
            move(self.model, self.optimizer, device)
            self._gradient.move_to(device)
            self.device = device

    def rest(self) -> None:
        """The run is over: the parameters are what all peers share."""

    # -- the global step ---------------------------------------------------------------------------------------------

    def step(self, update: Vector, lineage: Lineage, terms: str | None = None) -> None:
        """One optimiser step with a gradient; afterwards the replica is one epoch further on ``lineage``.

        Args:
            update: [num_elements] float32, finite. Equal bytes on equal replicas give equal replicas.
            terms: mark of the organiser's orders under which the swarm takes this step; None: those that we know of.
        """
        self.model.zero_grad(set_to_none=True)  # of what is not in the vector, too, which the optimiser may have
        self.layout.scatter_gradients(update)
        self._set_rates(terms)
        with self._changing, whole_or_nobodys(self):
            self.optimizer.step()
            self.epoch += 1
            self.lineage = lineage
        self.layout.clear_gradients()

    def _set_rates(self, terms: str | None) -> None:
        """Of the next step, by schedule and orders."""
        factor = learning_rate_factor(self._schedule, self.epoch) * self.rate_factor(self.epoch, terms)
        for group, base in zip(self.optimizer.param_groups, self._base_rates, strict=True):
            group["lr"] = base * factor

    # -- state -------------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """A copy of everything shared: parameters, buffers, optimiser state, epoch, lineage.

        May be made while a microbatch is computed, which changes none of it; a step waits until it is made.
        """
        with self._changing:
            shared = self._shared()
            return replace(shared, tensors={name: tensor.copy() for name, tensor in shared.tensors.items()})

    def packed(self, fingerprint: str) -> PackedSnapshot:
        """``snapshot`` as bytes, for which it is copied once and not twice."""
        with self._changing:
            shared = self._shared()
            data = serialised(shared)
        return sealed(shared, data, fingerprint=fingerprint)

    def _shared(self) -> Snapshot:
        """The state itself, as far as it is in this machine's memory."""
        tensors: dict[str, Any] = {}
        scalars: dict[str, Any] = {}
        for name, tensor in model_tensors(self.model).items():
            tensors[f"model.{name}"] = as_numpy(tensor)
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    tensors[f"optimizer.{name}.{key}"] = as_numpy(value)
                else:
                    scalars[f"optimizer.{name}.{key}"] = value
        return Snapshot(epoch=self.epoch, lineage=self.lineage, tensors=tensors, scalars=scalars, era=self.era)

    def load(self, snapshot: Snapshot) -> None:
        """Take over a snapshot. What was accumulated stays: it is this peer's own work.

        Raises:
            ShapeMismatch: its tensors are not those of this model or optimiser; nothing was changed.
        """
        own, theirs = model_tensors(self.model), tensors_of(snapshot, self.model)
        state = self._optimizer_state(snapshot)
        with self._changing, whole_or_nobodys(self), torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(torch.from_numpy(np.array(theirs[name])))
            self.optimizer.load_state_dict(state)
            self._loaded(snapshot)
            self.epoch, self.lineage, self.era = snapshot.epoch, snapshot.lineage, snapshot.era

    def _loaded(self, snapshot: Snapshot) -> None:
        """The parameters are those of a snapshot now; nobody reads them yet."""

    def _optimizer_state(self, snapshot: Snapshot) -> dict[str, Any]:
        return optimizer_state(snapshot, self.model, self.optimizer)
