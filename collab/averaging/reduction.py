"""One reducer's work in one round: the weighted mean over its span, part by part."""

import asyncio
import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from collab.compression.base import Buffer, Codec
from collab.errors import BadPart
from collab.types import PeerId, Vector

OwnPart = Callable[[int, int], Vector]
"""The reducer's own contribution to the elements ``start .. stop - 1`` of the span: it travels nowhere."""
Encode = Callable[[int, Vector], Buffer]
"""Encodes the mean of the part that begins at an element of the span, and remembers what the encoding lost."""


def part_edges(num_elements: int, part_elements: int) -> list[tuple[int, int]]:
    """Where a span of ``num_elements`` is cut into parts; the same on every peer."""
    return [(start, min(start + part_elements, num_elements)) for start in range(0, num_elements, part_elements)]


class SenderFailed(BadPart):
    """A reduction failed because of one contributor, ``culprit``."""

    def __init__(self, culprit: PeerId, error: BadPart) -> None:
        super().__init__(error.reason, str(error))
        self.culprit = culprit


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a reducer needs to know of its span."""

    num_elements: int
    """Length of the span."""
    part_elements: int
    """Length of a part; the last one may be shorter."""
    weights: Mapping[PeerId, float]
    """Samples of every contributor, all positive, in the group's order."""
    codecs: Mapping[PeerId, Codec]
    """Of the parts of every contributor but the reducer itself."""
    own_part: OwnPart
    """Asked only when the reducer contributes."""
    encode: Encode
    """Makes the bytes that every receiver gets."""
    readers: int
    """How often each result will be taken before it may be forgotten."""


class Reduction:
    """Collects the parts of all contributors and averages each as soon as the last one is there.

    The sum runs in float32 in the group's order, so that arrival order never changes the bytes. Memory: the decoded
    parts that wait for a slower contributor, and the encoded results that somebody has still to take.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._edges = part_edges(work.num_elements, work.part_elements)
        total_weight = math.fsum(work.weights.values())
        self._factors = {peer: np.float32(weight / total_weight) for peer, weight in work.weights.items()}
        self._failure: BadPart | None = None
        self._num_added = 0
        self._waiting: list[dict[PeerId, Vector] | None] = [{} for _ in self._edges]
        self._results: list[Buffer | None] = [None] * len(self._edges)
        self._readers_left = [work.readers] * len(self._edges)
        self._hashes: list[bytes] = [b""] * len(self._edges)
        self._finished = [asyncio.Event() for _ in self._edges]
        self._product = np.empty(min(work.part_elements, work.num_elements), np.float32)
        if not work.codecs:
            for index in range(len(self._edges)):
                self._finish(index, {})

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
        for waiting in self._waiting:
            if waiting is not None:
                return [peer for peer in self._work.codecs if peer not in waiting]
        return []

    def expects(self, peer: PeerId) -> bool:
        """Whether ``peer`` is a contributor who has to send."""
        return peer in self._work.codecs

    def add(self, peer: PeerId, index: int, data: Buffer) -> None:
        """Add one encoded part; after ``fail`` it is dropped, since its sender is not to blame.

        Raises:
            BadPart: from a stranger, twice, out of range, of a wrong length, or not finite; nothing was changed.
        """
        codec = self._work.codecs.get(peer)
        if codec is None:
            raise BadPart("not_a_contributor", f"{peer} is no contributor of this round")
        if not 0 <= index < len(self._edges):
            raise BadPart("no_such_part", f"part {index} of {len(self._edges)} from {peer}")
        if self._failure is not None:
            return
        waiting = self._waiting[index]
        if waiting is None or peer in waiting:
            raise BadPart("twice", f"part {index} came twice from {peer}")
        start, stop = self._edges[index]
        values = codec.decode(data, stop - start)
        if not np.isfinite(values).all():
            raise BadPart("not_finite", f"part {index} from {peer} has NaN or Inf")
        waiting[peer] = values
        self._num_added += 1
        if len(waiting) == len(self._work.codecs):
            self._finish(index, waiting)

    def _finish(self, index: int, values: dict[PeerId, Vector]) -> None:
        start, stop = self._edges[index]
        product, total = self._product[: stop - start], np.zeros(stop - start, np.float32)
        for peer, factor in self._factors.items():
            if peer not in values:
                values[peer] = self._work.own_part(start, stop)
                if not np.isfinite(values[peer]).all():
                    self.fail(SenderFailed(peer, BadPart("not_finite", f"part {index} of {peer} has NaN or Inf")))
                    return
            np.multiply(values[peer], factor, out=product)
            np.add(total, product, out=total)
        data = self._work.encode(start, total)
        self._hashes[index] = hashlib.sha256(data).digest()
        self._waiting[index] = None
        self._results[index] = data if self._work.readers else None
        self._finished[index].set()

    async def result(self, index: int) -> Buffer:
        """Encoded mean of part ``index``, once every contributor's part is there; each reader takes it once.

        Raises:
            BadPart: the reduction failed; the reason says why.
        """
        if not self._finished[index].is_set():
            await self._finished[index].wait()
        data = self._results[index]
        if data is None:
            raise self._failure or BadPart("over", "the result was given away already")
        self._readers_left[index] -= 1
        if not self._readers_left[index]:
            self._results[index] = None
        return data

    async def finished(self) -> None:
        """Returns when every part is reduced.

        Raises:
            BadPart: the reduction failed before.
        """
        for index, finished in enumerate(self._finished):
            await finished.wait()
            if not self._hashes[index]:
                raise self._failure or BadPart("over", "the reduction was given up")

    def fail(self, error: BadPart) -> None:
        """Give up: everybody who waits for a result that is not there yet gets ``error``."""
        if self._failure is None:
            self._failure = error
        for finished in self._finished:
            finished.set()

    def digest(self) -> str:
        """SHA-256 over the SHA-256 of each encoded result, in order; of a reduction whose parts are all finished."""
        return hashlib.sha256(b"".join(self._hashes)).hexdigest()
