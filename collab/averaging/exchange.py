"""One member's share of one exchange: what it sends, what it gets, and the bytes in between."""

import asyncio
import hashlib

import numpy as np

from collab.averaging.buffers import Buffers
from collab.averaging.encodings import Encodings
from collab.averaging.flow import Part
from collab.averaging.messages import Group
from collab.averaging.plan import Span
from collab.averaging.reduction import Reduction, Work, part_edges
from collab.compression.base import Buffer, codec_by_name
from collab.errors import BadMessage, BadPart
from collab.types import AnyVector, PeerId, Vector

AHEAD_BYTES = 64 << 20
"""Of all contributors' parts together that a reducer may hold for want of the slowest contributor's."""
SMALLEST_AHEAD = 4
"""Parts that a contributor may always be ahead of the results, so that a round trip does not stop it."""
EXACT = codec_by_name("none")


class Exchange:
    """What one member brings to a group and takes from it."""

    def __init__(
        self, group: Group, me: PeerId, vector: AnyVector | None, encodings: Encodings, buffers: Buffers
    ) -> None:
        """
        Args:
            vector: [group.num_elements] float32 or float16, not changed; None: this peer only reduces.
        """
        self.group, self.me, self.vector, self._encodings = group, me, vector, encodings
        self.peers = [member.peer for member in group.members]
        member = next(member for member in group.members if member.peer == me)
        self.weight, self._codec = member.weight, codec_by_name(member.codec)
        self._result_codec = codec_by_name(group.result_codec)
        self.mean: AnyVector | None = None if vector is None else buffers.take(group.num_elements, vector.dtype)
        part_bytes = 4 * group.part_elements * len(group.contributors)
        self.ahead_parts = max(SMALLEST_AHEAD, AHEAD_BYTES // part_bytes)
        encodings.begin(group.num_elements, vector)

    @property
    def contributes(self) -> bool:
        """Whether our vector goes into the mean."""
        return self.weight > 0 and self.vector is not None

    def reduction(self, span: Span) -> Reduction:
        """The work on our own span."""
        contributors = self.group.contributors
        codecs = {member.peer: codec_by_name(member.codec) for member in contributors if member.peer != self.me}
        return Reduction(
            Work(
                num_elements=span.num_elements,
                part_elements=self.group.part_elements,
                weights={member.peer: member.weight for member in contributors},
                codecs=codecs,
                own_part=lambda start, stop: self._own_part(span.start + start, span.start + stop),
                encode=lambda start, mean: self._encode_result(span.start + start, mean),
                readers=len(self.receivers),
            )
        )

    @property
    def receivers(self) -> frozenset[PeerId]:
        """Members other than ourselves that want the result."""
        return frozenset(member.peer for member in self.group.members if member.receives and member.peer != self.me)

    def result_bytes(self, span: Span) -> tuple[int, ...]:
        """Length of each encoded result of a span."""
        return tuple(self._result_codec.encoded_bytes(stop - start) for start, stop in self.edges(span))

    def edges(self, span: Span) -> list[tuple[int, int]]:
        """Where a span is cut into parts."""
        return part_edges(span.num_elements, self.group.part_elements)

    def part_bytes(self, num_elements: int) -> int:
        """Length of an encoded part of ours."""
        return self._codec.encoded_bytes(num_elements)

    def encode_part(self, start: int, stop: int) -> Buffer:
        """Our elements ``start .. stop - 1``, encoded."""
        return self._encodings.part(self._codec, start, self._values(start, stop), self.weight)

    def take_result(self, start: int, stop: int, data: Buffer) -> None:
        """Decode the mean of elements ``start .. stop - 1``.

        Raises:
            BadPart: it has another length, or is not finite.
        """
        values = self._result_codec.decode(data, stop - start)
        if not np.isfinite(values).all():
            raise BadPart("not_finite", "the result has NaN or Inf")
        if self.mean is not None:
            self.mean[start:stop] = values

    def _values(self, start: int, stop: int) -> AnyVector:
        if self.vector is None:
            raise ValueError("a peer without a vector has no part to send")
        return self.vector[start:stop]

    def _own_part(self, start: int, stop: int) -> Vector:
        return EXACT.decode(self._encodings.part(EXACT, start, self._values(start, stop), self.weight), stop - start)

    def _encode_result(self, start: int, mean: Vector) -> Buffer:
        data = self._encodings.result(self._result_codec, start, mean)
        self.take_result(start, start + len(mean), data)  # what everybody gets, not what we summed
        return data


class SpanFlow:
    """Our part of one remote span on its way out, and its mean on its way in."""

    def __init__(self, exchange: Exchange, span: Span) -> None:
        self.span, self._exchange = span, exchange
        self.edges = exchange.edges(span)
        self.num_received = 0
        self._hashes: list[bytes] = []
        self._advanced = asyncio.Event()
        peers = exchange.peers
        places = (peers.index(span.reducer) - peers.index(exchange.me)) % len(peers)
        self._stagger = places / len(peers)

    async def may_send(self, index: int) -> None:
        """Wait until part ``index`` is not too far ahead of the results."""
        while index >= self.num_received + self._exchange.ahead_parts:
            self._advanced.clear()
            await self._advanced.wait()

    def part(self, index: int) -> Part:
        """Part ``index`` of ours. All spans advance together, and reducers begin with different senders."""
        start, stop = self.edges[index]
        return Part(
            kind="part",
            index=index,
            num_bytes=self._exchange.part_bytes(stop - start),
            encode=lambda: self._exchange.encode_part(self.span.start + start, self.span.start + stop),
            order=(index + self._stagger) / len(self.edges),
        )

    def take_result(self, index: int, data: Buffer) -> None:
        """The next result of the reducer.

        Raises:
            BadMessage: it is not the next one.
            BadPart: its bytes are no result.
        """
        if index != self.num_received:
            raise BadMessage(f"expected result {self.num_received}, got {index}")
        start, stop = self.edges[index]
        self._exchange.take_result(self.span.start + start, self.span.start + stop, data)
        self._hashes.append(hashlib.sha256(data).digest())
        self.num_received += 1
        self._advanced.set()

    def digest(self) -> str:
        """As ``Reduction.digest``."""
        return hashlib.sha256(b"".join(self._hashes)).hexdigest()
