"""What this peer's lossy encodings owe: of its own vector to the swarm, and of the means it reduces to everybody."""

from collections.abc import Iterable

import numpy as np

from collab.compression.base import Buffer, Codec
from collab.compression.error_feedback import ErrorFeedback
from collab.types import AnyVector, Vector

Spans = Iterable[tuple[int, int]]


class Encodings:
    """Encodes with error feedback; what is owed changes only when a round commits.

    A float16 vector owes nothing: its owner has chosen to keep no more than half precision, and its residuals would
    take twice its own memory.
    """

    def __init__(self) -> None:
        self._sent: ErrorFeedback | None = None
        self._reduced: ErrorFeedback | None = None
        self._num_elements = 0
        self._keeps_residuals = True

    def fork(self) -> "Encodings":
        """For a round of its own: it owes what this does, and what it commits is owed here, too; until then, nothing
        that it encodes shows here.
        """
        fork = Encodings()
        fork._num_elements, fork._keeps_residuals = self._num_elements, self._keeps_residuals
        fork._sent = None if self._sent is None else self._sent.fork()
        fork._reduced = None if self._reduced is None else self._reduced.fork()
        return fork

    def begin(self, num_elements: int, vector: AnyVector | None) -> None:
        """A round over vectors of ``num_elements`` begins; what is owed for vectors of another length is void."""
        if num_elements != self._num_elements:
            self._sent = self._reduced = None
            self._num_elements = num_elements
        self.abort()
        self._keeps_residuals = vector is None or vector.dtype == np.float32

    def part(self, codec: Codec, start: int, values: AnyVector, weight: float | Vector) -> Buffer:
        """Encoding of a part of our vector that begins at element ``start``, with what earlier rounds lost there.

        Args:
            weight: samples behind it; [part] where they differ.
        """
        single = values.astype(np.float32, copy=False)
        if self._sent is None:
            if codec.is_exact or not self._keeps_residuals:
                return codec.encode(single)
            self._sent = ErrorFeedback(self._num_elements)
        return self._sent.encode(codec, start, single, weight)

    def result(self, codec: Codec, start: int, mean: Vector) -> Buffer:
        """Encoding of a mean that we reduced, with what the means before it lost there."""
        if self._reduced is None:
            if codec.is_exact or not self._keeps_residuals:
                return codec.encode(mean)
            self._reduced = ErrorFeedback(self._num_elements)
        return self._reduced.encode(codec, start, mean, 1.0)

    def commit(self, sent: Spans | None = None, reduced: Spans | None = None) -> None:
        """The round happened: what it lost is owed now.

        Args:
            sent: (start, stop) of what the mean has of our vector; None: all that was encoded.
            reduced: of what it has of our reducing.
        """
        for feedback, spans in ((self._sent, sent), (self._reduced, reduced)):
            if feedback is not None:
                feedback.commit(spans)

    def abort(self) -> None:
        """The round never happened."""
        for feedback in (self._sent, self._reduced):
            if feedback is not None:
                feedback.abort()
