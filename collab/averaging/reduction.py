"""One reducer's work in one round: the weighted mean over its span, part by part."""

import asyncio
import hashlib
import math

import numpy as np

from collab.compression.base import Buffer, Codec
from collab.errors import BadPart
from collab.types import PeerId, Vector

PART_ELEMENTS = 16_384
"""64 KiB of float32: small enough to keep every link busy while others finish, large enough to be cheap."""


def part_edges(num_elements: int) -> list[tuple[int, int]]:
    """Where a span of ``num_elements`` is cut into parts; the same on every peer."""
    return [(start, min(start + PART_ELEMENTS, num_elements)) for start in range(0, num_elements, PART_ELEMENTS)]


class Reduction:
    """Collects the parts of all contributors and averages each as soon as the last one is there.

    The sum runs in float32 in the group's order, so that arrival order never changes the bytes.
    """

    def __init__(self, num_elements: int, weights: dict[PeerId, float], codec: Codec) -> None:
        """
        Args:
            num_elements: length of the span.
            weights: samples of each contributor, in the group's order; all positive.
            codec: of both contributions and results.
        """
        self._edges = part_edges(num_elements)
        self._weights = weights
        self._codec = codec
        self._total_weight = math.fsum(weights.values())
        self._has_failed = False
        self._num_added = 0
        self._waiting: list[dict[PeerId, Vector]] = [{} for _ in self._edges]
        self._results: list[asyncio.Future[Buffer]] = [asyncio.get_running_loop().create_future() for _ in self._edges]

    @property
    def num_parts(self) -> int:
        """Parts of the span."""
        return len(self._edges)

    @property
    def num_added(self) -> int:
        """Parts that have come so far, of all contributors; grows until the reduction is finished."""
        return self._num_added

    def missing(self) -> list[PeerId]:
        """Contributors that hold up the first unfinished part; empty when all parts are finished."""
        for result, waiting in zip(self._results, self._waiting, strict=True):
            if not result.done():
                return [peer for peer in self._weights if peer not in waiting]
        return []

    def expects(self, peer: PeerId) -> bool:
        """Whether ``peer`` is a contributor."""
        return peer in self._weights

    def add_own(self, peer: PeerId, span: Vector) -> None:
        """Add the reducer's own contribution: it travels nowhere, so it is neither encoded nor cut."""
        for index, (start, stop) in enumerate(self._edges):
            self._put(peer, index, span[start:stop])

    def add(self, peer: PeerId, index: int, data: Buffer) -> None:
        """Add one encoded part; after ``fail`` it is dropped, since its sender is not to blame.

        Raises:
            BadPart: from a stranger, twice, out of range, of a wrong length, or not finite; nothing was changed.
        """
        if peer not in self._weights:
            raise BadPart("not_a_contributor", f"{peer} is no contributor of this round")
        if not 0 <= index < len(self._edges):
            raise BadPart("no_such_part", f"part {index} of {len(self._edges)} from {peer}")
        if self._has_failed:
            return
        if self._results[index].done() or peer in self._waiting[index]:
            raise BadPart("twice", f"part {index} came twice from {peer}")
        start, stop = self._edges[index]
        values = self._codec.decode(data, stop - start)
        if not np.isfinite(values).all():
            raise BadPart("not_finite", f"part {index} from {peer} has NaN or Inf")
        self._put(peer, index, values)

    def _put(self, peer: PeerId, index: int, values: Vector) -> None:
        waiting = self._waiting[index]
        waiting[peer] = values
        self._num_added += 1
        if len(waiting) < len(self._weights):
            return
        total = np.zeros_like(values)
        for contributor, weight in self._weights.items():
            total += waiting[contributor] * np.float32(weight / self._total_weight)
        waiting.clear()
        if not self._results[index].done():
            self._results[index].set_result(self._codec.encode(total))

    async def result(self, index: int) -> Buffer:
        """Encoded mean of part ``index``, once every contributor's part is there.

        Raises:
            BadPart: the reduction failed; the reason says why.
        """
        return await asyncio.shield(self._results[index])

    def fail(self, error: BadPart) -> None:
        """Give up: everybody who waits for a result that is not there yet gets ``error``."""
        self._has_failed = True
        for future in self._results:
            if not future.done():
                future.set_exception(error)
                future.exception()  # retrieved: nobody may be waiting

    async def finished_span(self) -> Vector:
        """[num_elements] float32: the decoding of the very bytes that every other member gets."""
        pieces = [
            self._codec.decode(await self.result(index), stop - start)
            for index, (start, stop) in enumerate(self._edges)
        ]
        return np.concatenate(pieces)

    async def digest(self) -> str:
        """SHA-256 of all encoded results, in order."""
        digest = hashlib.sha256()
        for index in range(len(self._edges)):
            digest.update(await self.result(index))
        return digest.hexdigest()
