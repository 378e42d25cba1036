"""Error feedback: what a sender's encodings lose is kept, and sent with a later round.

Source: Seide et al., "1-Bit Stochastic Gradient Descent" (2014); Karimireddy et al., "Error Feedback Fixes SignSGD"
(2019). Here the residual is weighted, since each round brings another number of samples, and settled with the round.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator

import numpy as np

from collab.compression.base import Buffer, Codec
from collab.types import Vector

KEPT_OF_OWED = {"topk_sign": 0.6}
"""Of what is owed, so much is still when a part is encoded again, by codec; with the others, all. Peers go on from
parameters without what was left out, and do a part of it again. Source: SparseLoCo (2025), with 0.95; decision 0044."""


class ErrorFeedback:
    """The residual of one sender's vector, in units of weight x value, changed by committed rounds only.

    Over committed rounds, the sum of weight x decoded plus the residual is the sum of weight x values, to float32
    rounding, but for what fades with codecs of ``KEPT_OF_OWED``. A round that was aborted leaves no trace.

    Memory: 4 bytes an element, of which the system hands out the pages that a lossy codec has written to; from encoding
    to commit or abort another 4 bytes an element for what was encoded lossily. With an exact codec neither.
    """

    def __init__(self, num_elements: int) -> None:
        self._residual: Vector = np.zeros(num_elements, np.float32)
        self._pending: dict[tuple[int, int], Vector | None] = {}  # by (start, stop), oldest first; None: nothing lost

    def fork(self) -> "ErrorFeedback":
        """Another round over the same residual, whose memory it shares; what is pending here is not pending there."""
        fork = ErrorFeedback(0)
        fork._residual = self._residual
        return fork

    @property
    def residual(self) -> Vector:
        """[num_elements] float32, weight x value; a read-only view."""
        view = self._residual.view()
        view.flags.writeable = False
        return view

    def encode(self, codec: Codec, start: int, values: Vector, weight: float | Vector) -> Buffer:
        """Encode one part together with what earlier parts lost there.

        Encoding an element again, by any codec and in any part, replaces what is pending for it. The residual of a span
        that needs no encoding is spent by an exact codec, whose decoding is what to add.

        An element's residual that float32 cannot hold is forgotten; carried on, it would make every later part useless.
        NaN and Inf in ``values`` are encoded as such, and never enter the residual.

        Args:
            start: position of the part in the vector.
            values: [part] contiguous float32; not changed. The encoding may share its memory.
            weight: samples behind the vector, > 0; [part] where they differ. Where an element has none, nothing that
                is sent of it counts, and what is owed there stays.

        Raises:
            ValueError: the part does not lie within the vector, or the weight is not positive and finite.
        """
        stop = start + len(values)
        if not 0 <= start <= stop <= len(self._residual):
            raise ValueError(f"the part from {start} to {stop} is not within {len(self._residual)} elements")
        least = weight if isinstance(weight, float | int) else float(weight.min(initial=math.inf))
        if not (math.isfinite(least) and least >= 0 and (least > 0 or isinstance(weight, np.ndarray))):
            raise ValueError(f"the weight {least} is not positive and finite")
        owed = self._residual[start:stop]
        if (kept := KEPT_OF_OWED.get(codec.name, 1.0)) < 1:
            owed = owed * np.where(np.asarray(weight) > 0, np.float32(kept), np.float32(1))
        with np.errstate(all="ignore"):
            whole = _with_owed(values, owed, weight)
            data = codec.encode(whole)
            self._pending.pop((start, stop), None)  # so that the newest comes last
            is_spent = codec.is_exact and least > 0
            self._pending[start, stop] = None if is_spent else _lost(codec, data, values, owed, weight)
        return data

    def commit(self, spans: Iterable[tuple[int, int]] | None = None) -> None:
        """Settle the parts that a committed round used: what they lost becomes the residual there.

        Args:
            spans: (start, stop) of the elements that were used, in any order; what was encoded beyond them keeps its
                old residual. None: all that was encoded since the last commit or abort.
        """
        used = _merged([(0, len(self._residual))] if spans is None else spans)
        for (start, stop), lost in self._pending.items():
            for low, high in _overlaps(start, stop, used):
                if lost is not None:
                    self._residual[low:high] = lost[low - start : high - start]
                elif self._residual[low:high].any():  # writing zeros over zeros would cost memory
                    self._residual[low:high] = 0
        self._pending.clear()

    def abort(self) -> None:
        """Forget what was encoded since the last commit or abort: the round never happened."""
        self._pending.clear()


def _with_owed(values: Vector, owed: Vector, weight: float | Vector) -> Vector:
    """The part to encode: values + owed / weight, or ``values`` alone where that would overflow and spoil the part."""
    if not owed.any():
        return values
    samples: Vector = np.asarray(weight, np.float32)
    whole = owed / samples
    whole += values
    is_finite = np.isfinite(whole)
    if not is_finite.all():
        np.copyto(whole, values, where=~is_finite)
    return whole


def _lost(codec: Codec, data: Buffer, values: Vector, owed: Vector, weight: float | Vector) -> Vector:
    """What remains owed: weight x (values - decoded) + owed, so that the rounding of the sum is not lost either."""
    lost = values - codec.decode(data, len(values))
    lost *= np.asarray(weight, np.float32)
    lost += owed
    is_finite = np.isfinite(lost)
    if not is_finite.all():
        lost[~is_finite] = 0
    return lost


def _merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same elements as sorted spans that do not overlap."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def _overlaps(start: int, stop: int, spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Where sorted ``spans`` overlap with start..stop."""
    first = max(bisect_right(spans, start, key=lambda span: span[0]) - 1, 0)
    for index in range(first, len(spans)):
        low, high = max(start, spans[index][0]), min(stop, spans[index][1])
        if spans[index][0] >= stop:
            return
        if low < high:
            yield low, high
