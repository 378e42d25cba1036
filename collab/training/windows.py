"""The own windows of one round: a row of the vector for each, and the swarm's means that took their place."""

from dataclasses import replace

import numpy as np
import torch

from collab.averaging.rows import folded, padded
from collab.strategies.base import Spans
from collab.training.sums import GradientSum
from collab.types import Vector


class WindowBook:
    """What one round has of ours, window by window. Memory: the vector, and what of its means is here.

    Its owner makes sure that one thread at a time uses it.
    """

    def __init__(self, num_elements: int, windows: int) -> None:
        self._num_elements, self._row_elements = num_elements, padded(num_elements)
        self.vector: Vector = np.zeros(windows * self._row_elements, np.float32)
        self.correction: Vector = np.zeros(num_elements, np.float32)
        """Of the parameters: means in place of own windows."""
        self.means: dict[int, Vector] = {}
        """That took the place of a window."""
        self.has_news = False
        """Whether ``correction`` has changed since somebody looked."""
        self._sums: list[GradientSum] = []
        self._ended_at: list[int] = []
        self._came_at: dict[int, int] = {}

    def add(self, piece: GradientSum | None, at: int) -> None:
        """The next window is over; None: nothing was computed in it.

        Args:
            at: microbatches since the round was begun.
        """
        total = torch.from_numpy(self.vector[len(self._sums) * self._row_elements :][: self._num_elements])
        if piece is None:
            piece = GradientSum(total, (), (), 0.0)
        else:
            total.copy_(piece.total)
        self._sums.append(replace(piece, total=total))
        self._ended_at.append(at)

    def put(self, row: int, mean: Vector | None, at: int) -> None:
        """A mean takes the place of our own window, or of what stood there; None: our own again."""
        if row >= len(self._sums):
            return
        own = self._sums[row].total.numpy()
        if (before := self.means.pop(row, None)) is not None:
            self.correction -= before - own
        if mean is not None:
            self.means[row] = mean[: self._num_elements]
            self.correction += self.means[row] - own
        self._came_at.setdefault(row, at)
        self.has_news = True

    @property
    def has_ended(self) -> bool:
        """Whether a window is over."""
        return bool(self._sums)

    def late(self, at: int) -> int:
        """Microbatches since the oldest window was over whose mean is not here; 0: all are."""
        return next((at - ended for row, ended in enumerate(self._ended_at) if row not in self._came_at), 0)

    def paces(self) -> list[tuple[int, int]]:
        """Of each window whose mean came: the microbatches in it, and those from its end until its mean was here. What
        was in the first one before the round is not known.
        """
        return [
            (ended - self._ended_at[row - 1], self._came_at[row] - ended)
            for row, ended in enumerate(self._ended_at)
            if row > 0 and row in self._came_at
        ]

    def pieces(self, used: Spans) -> list[tuple[GradientSum, Spans]]:
        """Our windows, and what of the elements of each a step has used.

        Args:
            used: (start, stop) in the vector.
        """
        length, size = self._row_elements, self._num_elements
        return [
            (replace(piece, total=piece.total.clone()), tuple(folded(used, row, length, size)))
            for row, piece in enumerate(self._sums)
        ]
