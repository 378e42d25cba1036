"""A replica that takes steps of its own between the swarm's: an anchor that all peers share, and own displacements."""

import logging
import math
from typing import Any

import torch

from collab.averaging.rows import padded
from collab.errors import ShapeMismatch
from collab.strategies.base import HandedOver, OwnWindows
from collab.swarm.snapshots import Snapshot
from collab.training.replica import MicrobatchReport
from collab.training.shared_state import whole_or_nobodys
from collab.training.stepping import SteppingReplica
from collab.training.windows import WindowBook
from collab.types import Lineage, Vector

logger = logging.getLogger(__name__)


class AnchoredReplica(SteppingReplica):
    """Parameters are ``anchor + own displacements that no committed round has used``.

    A microbatch is a step of the optimiser, and what accumulates is by how much it has moved the parameters, summed
    over the steps. What is handed over is that sum by samples; a global step moves the anchor.

    Shared, snapshotted and the same on all peers: the anchor. Private: the optimiser's state and the displacements. A
    newcomer begins with a fresh optimiser; who takes over a state keeps its own.

    Memory on the device, beside a ``Replica``'s: two vectors, and one more while the parameters are set.
    """

    num_windows = 1
    """That one round averages; with several the means of those that are here are in the parameters, too."""

    def __init__(self, *args: Any, device: torch.device, **kwargs: Any) -> None:
        """See ``Replica``."""
        super().__init__(*args, device=device, **kwargs)
        self._anchor = torch.empty(self.layout.num_elements, device=device)
        self.layout.gather_parameters(self._anchor)
        self._before = torch.empty_like(self._anchor)
        """Parameters before the present step."""
        self._handed_over = 0
        """Microbatches of the one window that is on its way."""
        self._paces: list[tuple[int, int]] = []

    @property
    def exchanged_elements(self) -> int:
        """See ``Replica``."""
        return self.num_elements if self.windows == 1 else self.windows * padded(self.num_elements)

    # -- windows -----------------------------------------------------------------------------------------------------

    @property
    def windows(self) -> int:
        """That one round averages."""
        return self.num_windows

    @property
    def microbatches_beside(self) -> int:
        """See ``Replica``; of several windows, since the oldest was over whose mean is not here."""
        if self.windows == 1:
            return self._beside
        book = self._gradient.book
        return 0 if book is None else book.late(self._beside)

    def begin_windows(self) -> OwnWindows:
        """Several windows for a round that is to begin; their vector is theirs."""
        self._beside = 0
        book = WindowBook(self.num_elements, self.windows)
        self._gradient.begin_windows(book)
        self.advanced.set()
        return _Windows(self, book)

    def close(self, book: WindowBook, row: int) -> None:
        """A window is over; beside a microbatch."""
        self._gradient.close(book, row, self._beside)

    def put(self, book: WindowBook, row: int, mean: Vector | None) -> None:
        """A mean takes the place of a window, in the parameters when the present microbatch is over."""
        self._gradient.put(book, row, mean, self._beside)
        self.advanced.set()

    @property
    def has_news(self) -> bool:
        """See ``Replica``."""
        return self._gradient.has_news

    def catch_up(self) -> None:
        """See ``Replica``."""
        self._level()

    def take_paces(self) -> list[tuple[int, int]]:
        """See ``Replica``."""
        paces, self._paces = self._paces, []
        return paces or self._gradient.take_paces()

    def hand_over(self) -> HandedOver:
        """See ``Replica``."""
        self._handed_over += self._beside
        return super().hand_over()

    # -- own steps ---------------------------------------------------------------------------------------------------

    def take_gradients(
        self, sample_ids: tuple[int, ...], loss: float | None, *, scale: float = 1.0
    ) -> MicrobatchReport:
        """One step with the gradients that stand in the parameters now, if they and the loss are finite."""
        moved = self._gradient.buffer()
        self.layout.gather_parameters(self._before)
        is_sound = self._own_step(loss, scale)
        self.layout.gather_parameters(moved)
        moved.sub_(self._before)
        report = self._add(moved, sample_ids, math.nan if loss is None else loss, is_sound=is_sound)
        if is_sound and report.skipped:
            self.layout.scatter_parameters(self._before)  # finite gradients, and a step beyond all numbers
        if self.has_news:
            self.catch_up()
        return report

    def abandon(self) -> None:
        """See ``Replica``. Its own step may have moved some parameters already."""
        super().abandon()
        self._level()

    # -- the swarm's -------------------------------------------------------------------------------------------------

    def step(self, update: Vector, lineage: Lineage, terms: str | None = None) -> None:
        """Move the anchor by ``update``; afterwards the replica is one epoch further on ``lineage``.

        Args:
            update: [num_elements] float32, finite. Equal bytes on equal anchors give equal anchors.
            terms: without a meaning here: the rates of own steps are those that this peer knows of.

        Raises:
            ShapeMismatch: another length.
        """
        if update.shape != (self.layout.num_elements,):
            raise ShapeMismatch(f"expected {self.layout.num_elements} elements, got shape {update.shape}")
        with self._changing, whole_or_nobodys(self):
            self._anchor.add_(torch.from_numpy(self._moved(update)).to(self._anchor.device))
            self.epoch += 1
            self.lineage = lineage
        self._level()

    def _moved(self, update: Vector) -> Vector:
        """By how much the anchor moves, the same bytes on every machine: by what the round has come to."""
        return update

    def settle(self, used: Any, round_id: str = "") -> None:
        """See ``Replica``. What the round has used is in the anchor now, and not in our displacements any more."""
        if used and self.windows == 1 and self.is_handed_over:
            self._paces.append((self._handed_over, self._beside))
            self._handed_over = 0
        super().settle(used, round_id)
        self._level()

    def forget(self) -> None:
        """See ``Replica``. The parameters are the anchor, until another state is taken over."""
        super().forget()
        self._level()

    def move_to(self, device: torch.device) -> None:
        """See ``Replica``."""
        super().move_to(device)
        with self._changing:
            self._anchor, self._before = self._anchor.to(device), self._before.to(device)

    def rest(self) -> None:
        """See ``Replica``: own steps that came too late for the last round are in no model."""
        self._gradient.forget()
        self._level()

    def _level(self) -> None:
        """Set the parameters to what they are by definition; steps one by one have rounded them otherwise."""
        held = self._gradient.held()
        self.layout.scatter_parameters(self._anchor if held is None else held.add_(self._anchor))

    # -- state -------------------------------------------------------------------------------------------------------

    def _shared(self) -> Snapshot:
        """The anchor in place of the parameters, and nothing of the optimiser."""
        state = super()._shared()
        anchor = self._anchor.cpu().numpy()
        tensors = {name: tensor for name, tensor in state.tensors.items() if not name.startswith("optimizer.")}
        for slot in self.layout.slots:
            tensors[f"model.{slot.name}"] = anchor[slot.start : slot.stop].reshape(slot.shape)
        return Snapshot(epoch=state.epoch, lineage=state.lineage, tensors=tensors, scalars={}, era=state.era)

    def load(self, snapshot: Snapshot) -> None:
        """Take over a snapshot as anchor. Own displacements stay: they are this peer's own work.

        Raises:
            ShapeMismatch: its tensors are not those of this model; nothing was changed.
        """
        super().load(snapshot)
        self._level()

    def _loaded(self, snapshot: Snapshot) -> None:
        self.layout.gather_parameters(self._anchor)

    def _optimizer_state(self, snapshot: Snapshot) -> dict[str, Any]:
        """Our own: it is private."""
        return self.optimizer.state_dict()


class _Windows:
    """Implements ``OwnWindows``."""

    def __init__(self, replica: AnchoredReplica, book: WindowBook) -> None:
        self._replica, self._book = replica, book
        self.vector = book.vector

    def close(self, row: int) -> None:
        self._replica.close(self._book, row)

    def put(self, row: int, mean: Vector | None) -> None:
        self._replica.put(self._book, row, mean)
