"""One member's share of one exchange: what it sends, what it gets, and the bytes in between."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from collab.averaging.base import Windows
from collab.averaging.buffers import Buffers
from collab.averaging.division import Job
from collab.averaging.encodings import Encodings
from collab.averaging.flow import Part
from collab.averaging.gate import Gate
from collab.averaging.messages import Group, Member
from collab.averaging.reduction import Reduction, Result, Runs, Work, part_edges, span_digest
from collab.averaging.robust import capped, rule_by_name
from collab.averaging.weights import Weights
from collab.compression.base import Buffer, codec_by_name
from collab.errors import BadMessage, BadPart
from collab.types import AnyVector, PeerId, Vector

AHEAD_BYTES = 64 << 20
"""Of all contributors' parts together that a reducer may hold for want of the slowest contributor's."""
SMALLEST_AHEAD = 4
"""Parts that a contributor may always be ahead of the results, so that a round trip does not stop it."""
EXACT = codec_by_name("none")


@dataclass(frozen=True, slots=True)
class Ruling:
    """How a run's reducers make one of many."""

    rule: str = "mean"
    """See ``robust.RULES``."""
    max_share: float = 1.0
    """Of the weight in a round, that one contributor may have."""


MEAN = Ruling()


@dataclass(frozen=True, slots=True)
class Bring:
    """What a member brings into a round."""

    vector: AnyVector | None = None
    """[num_elements] float32 or float16 of a contributor, or of a member that only wants the result (then its values
    are not used); not changed. None: it only reduces."""
    weights: Weights | None = None
    """Samples behind each element; None: its weight in the group everywhere."""
    windows: Windows | None = None
    """Which fill the rows of the vector while the round goes on; None: it is whole."""


class Exchange:
    """What one member brings to a group and takes from it."""

    def __init__(
        self,
        group: Group,
        me: PeerId,
        bring: Bring,
        encodings: Encodings,
        buffers: Buffers,
        ruling: Ruling = MEAN,
    ) -> None:
        vector, weights = bring.vector, bring.weights
        self.group, self.me, self.vector, self._encodings = group, me, vector, encodings
        self.peers = [member.peer for member in group.members]
        member = next(member for member in group.members if member.peer == me)
        self.weight, self._codec = member.weight, codec_by_name(member.codec)
        self._ruling = ruling
        self._weights = None if weights is None or weights.is_uniform else weights
        self._result_codec = codec_by_name(group.result_codec)
        self.mean: AnyVector | None = None if vector is None else buffers.take(group.num_elements, vector.dtype)
        self._keeps_bytes = vector is not None and vector.dtype != np.float32 and self._result_codec.name != "float16"
        part_bytes = 4 * group.part_elements * len(group.contributors)
        self.ahead_parts = max(SMALLEST_AHEAD, AHEAD_BYTES // part_bytes)
        self.is_silenced = False
        """The others go on without what has not left us yet."""
        self.gate: Gate | None = None
        """Of the rows of our vector; None: all of it may leave at any time."""
        if bring.windows is not None and self.mean is not None and self.weight > 0:
            self.gate = Gate(group, bring.windows, self.mean)
        encodings.begin(group.num_elements, vector)

    @property
    def contributes(self) -> bool:
        """Whether our vector goes into the mean."""
        return self.weight > 0 and self.vector is not None and not self.is_silenced

    @property
    def receivers(self) -> frozenset[PeerId]:
        """Members other than ourselves that want the result."""
        return frozenset(member.peer for member in self.group.members if member.receives and member.peer != self.me)

    def reduction(self, holding: "Holding") -> Reduction:
        """The work on one of our own spans."""
        span, contributors = holding.job.span, self.group.contributors
        return Reduction(
            Work(
                num_elements=span.num_elements,
                part_elements=self.group.part_elements,
                weights=capped({member.peer: self._counts(member) for member in contributors}, self._ruling.max_share),
                codecs={member.peer: codec_by_name(member.codec) for member in contributors if member.peer != self.me},
                own_part=lambda start, stop: self._own_part(span.start + start, span.start + stop),
                own_runs=self._own_runs(span.start),
                own_is_ready=None if self.gate is None else lambda stop: self.is_final(span.start + stop),
                encode=lambda start, mean: self._encodings.result(self._result_codec, span.start + start, mean),
                finished=holding.take,  # what everybody gets, not what we summed
                readers=len(self.receivers),
                rule=None if self._ruling.rule == "mean" else rule_by_name(self._ruling.rule),
            )
        )

    def result_bytes(self, num_elements: int) -> int:
        """Length of the encoded result of so many elements."""
        return self._result_codec.encoded_bytes(num_elements)

    def part_bytes(self, num_elements: int) -> int:
        """Length of an encoded part of ours, which is what its receiver acknowledges."""
        return self._codec.encoded_bytes(num_elements)

    def encode_part(self, start: int, stop: int) -> Buffer:
        """Our elements ``start .. stop - 1``, encoded."""
        return self._encodings.part(self._codec, start, self._values(start, stop), self._samples(start, stop))

    def runs(self, start: int, stop: int) -> Runs | None:
        """Samples behind them; None: our weight everywhere."""
        return None if self._weights is None else self._weights.runs(start, stop)

    def take_result(self, start: int, stop: int, result: Result) -> Buffer | None:
        """Decode the mean of elements ``start .. stop - 1``; the bytes to keep when the mean cannot tell them again.

        Raises:
            BadPart: it has another length, or is not finite.
        """
        values = self._result_codec.decode(result.data, stop - start)
        if not np.isfinite(values).all():
            raise BadPart("not_finite", "the result has NaN or Inf")
        if self.mean is not None:
            self.mean[start:stop] = values
        if self.gate is not None:
            mine = [member.peer for member in self.group.contributors].index(self.me)
            self.gate.came(start, stop, has_ours=mine not in result.missing)
        return bytes(result.data) if self._keeps_bytes else None

    def encode_again(self, start: int, stop: int) -> Buffer:
        """The bytes of a result that we took: the decoding of an encoding is encoded to the same."""
        if self.mean is None:
            raise ValueError("a peer without a vector has no result to hand on")
        return self._result_codec.encode(self.mean[start:stop].astype(np.float32, copy=False))

    def is_final(self, stop: int) -> bool:
        """Whether our elements before ``stop`` may be used."""
        return self.gate is None or self.gate.is_open(stop)

    def _counts(self, member: Member) -> float:
        """What a contributor's part weighs."""
        return 1.0 if self.group.rows > 1 else member.weight

    def _own_runs(self, offset: int) -> Callable[[int, int], Runs] | None:
        weights = self._weights
        return None if weights is None else lambda start, stop: weights.runs(offset + start, offset + stop)

    def _values(self, start: int, stop: int) -> AnyVector:
        if self.vector is None:
            raise ValueError("a peer without a vector has no part to send")
        return self.vector[start:stop]

    def _own_part(self, start: int, stop: int) -> Vector:
        samples = self._samples(start, stop)
        return EXACT.decode(self._encodings.part(EXACT, start, self._values(start, stop), samples), stop - start)

    def _samples(self, start: int, stop: int) -> float | Vector:
        """Behind our elements ``start .. stop - 1``, as a reducer counts them."""
        if self.group.rows > 1:
            return 1.0  # rows are of windows, whatever samples are behind them
        return self.weight if self._weights is None else self._weights.dense(start, stop)


class Holding:
    """What this member has of one job's results, always the first ones; and its own part of the job."""

    def __init__(self, exchange: Exchange, job: Job) -> None:
        self.job, self._exchange = job, exchange
        self.edges = part_edges(job.span.num_elements, exchange.group.part_elements)
        self.is_frozen = False
        """Nothing is taken until the leader has said how to go on."""
        self._digests: list[bytes] = []
        self.missing: dict[int, tuple[int, ...]] = {}
        """Of each result that lacks somebody, whom."""
        self.kept: dict[int, Buffer] = {}
        """Results whose bytes the mean cannot tell again."""
        self._advanced = asyncio.Event()
        peers = exchange.peers
        places = (peers.index(job.span.reducer) - peers.index(exchange.me)) % len(peers)
        self._stagger = places / len(peers)

    @property
    def num_held(self) -> int:
        """Results that we have."""
        return len(self._digests)

    @property
    def is_whole(self) -> bool:
        """Whether we have all that stand."""
        return not self.is_frozen and self.num_held >= self.job.valid

    def follow(self, job: Job) -> None:
        """Go on as the leader has said: so many parts stand, and come from there; drop what does not stand."""
        self.job, self.is_frozen = job, False
        for index in range(job.valid, len(self._digests)):
            self.missing.pop(index, None)
            self.kept.pop(index, None)
        del self._digests[job.valid :]

    def take(self, index: int, result: Result) -> None:
        """The next result.

        Raises:
            BadMessage: it is not the next one.
            BadPart: its bytes are no result.
        """
        if self.is_frozen:
            raise BadPart("over", "the leader has stopped this span")
        if index != self.num_held:
            raise BadMessage(f"expected result {self.num_held}, got {index}")
        start, stop = self._elements(index)
        kept = self._exchange.take_result(start, stop, result)
        if kept is not None:
            self.kept[index] = kept
        if result.missing:
            self.missing[index] = result.missing
        self._digests.append(result.digest())
        self._advanced.set()

    def result(self, index: int) -> Result:
        """One that we have, to hand it on.

        Raises:
            BadPart: we do not have it, or its reducer's bytes were no encoding that can be made again.
        """
        if index >= self.num_held:
            raise BadPart("over", f"part {index} is not here")
        data = self.kept[index] if index in self.kept else self._exchange.encode_again(*self._elements(index))
        result = Result(data, self.missing.get(index, ()))
        if result.digest() != self._digests[index]:
            raise BadPart("results_differ", f"part {index} was encoded as no honest reducer does")
        return result

    async def may_send(self, index: int) -> None:
        """Wait until part ``index`` is final, and not too far ahead of the results."""
        if self._exchange.gate is not None:
            await self._exchange.gate.until_open(self._elements(index)[1])
        while index >= self.num_held + self._exchange.ahead_parts:
            self._advanced.clear()
            await self._advanced.wait()

    def part(self, index: int) -> Part:
        """Part ``index`` of ours. All spans advance together, and reducers begin with different senders."""
        start, stop = self._elements(index)
        runs = self._exchange.runs(start, stop)
        return Part(
            kind="part",
            index=index,
            num_bytes=self._exchange.part_bytes(stop - start),
            encode=lambda: self._exchange.encode_part(start, stop),
            order=(index + self._stagger) / len(self.edges),
            extra={} if runs is None else {"runs": [list(run) for run in runs]},
        )

    def result_bytes(self, index: int) -> int:
        """Length of one encoded result."""
        start, stop = self.edges[index]
        return self._exchange.result_bytes(stop - start)

    def digest(self) -> str:
        """Of all results that stand."""
        return span_digest(self._digests[: self.job.valid])

    def gaps(self) -> list[tuple[PeerId, int, int]]:
        """Contributors of whom something is missing in what stands, with the elements (start, stop)."""
        contributors = self._exchange.group.contributors
        return [
            (contributors[place].peer, *self._elements(index))
            for index, places in sorted(self.missing.items())
            for place in places
            if index < self.job.valid
        ]

    def _elements(self, index: int) -> tuple[int, int]:
        start, stop = self.edges[index]
        return self.job.span.start + start, self.job.span.start + stop
