"""How much a link carries, judged by when things arrived that went through it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collab.swarm.bandwidth import CHANGE, QUEUEING_S, Rate

WINDOW_S = 0.25
"""A rate is what arrived in so much time: ten times the bursts of shapers and of busy machines."""
SHORT_S, STEADY = WINDOW_S / 4, 1.5
"""More than so much faster for a short time: there were pauses in between, and the link carries more."""
ALIKE = 0.8
"""Of the most; less came where there were pauses."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Passage:
    """Parts that went from one peer to another, one after the other."""

    sent_s: float
    """Departure of the last of them, by the sender's clock."""
    arrived_s: float
    """When we knew that they had arrived, by ours."""
    num_bytes: int


class Path:
    """What went to, or came from, one peer."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        """
        Args:
            passages: in order, at least one.
        """
        delays_s = np.array([passage.arrived_s - passage.sent_s for passage in passages])
        self._queues_s: Floats = delays_s - delays_s.min()
        self.times: Floats = np.array([passage.arrived_s for passage in passages])
        self._totals = np.cumsum([0.0, *(passage.num_bytes for passage in passages[1:])])  # since the first arrival

    def total_bytes(self, at_s: Floats) -> Floats:
        """What had arrived at each of these times."""
        totals: Floats = np.interp(at_s, self.times, self._totals)
        return totals

    def is_queueing(self, from_s: float, to_s: float) -> bool:
        """Whether what arrived between these times had mostly stood in a queue; nothing arrived: it had."""
        queues_s = self._queues_s[(from_s < self.times) & (self.times <= to_s)]
        return not len(queues_s) or float(np.median(queues_s)) >= QUEUEING_S


def rate_of(paths: Sequence[Path], others_bytes_per_s: float) -> Rate | None:
    """What a link carries, all paths through it together; None when it carried nothing.

    That is the most that came within ``WINDOW_S``. It was the limit if all of that had queued, and came steadily and
    not in bursts with pauses between them, and if those at the other ends together carry more. Then the median over all
    times like this one is nearer to the truth than the most.

    Args:
        others_bytes_per_s: what the other ends carry together, as far as they know it.
    """
    if not paths:
        return None
    starts = np.unique(np.concatenate([path.times for path in paths]))
    passed = _passed(paths, starts, WINDOW_S)
    best = int(np.argmax(passed))
    rate, from_s, to_s = float(passed[best]) / WINDOW_S, float(starts[best]), float(starts[best]) + WINDOW_S
    if rate <= 0:
        return None
    short = _passed(paths, starts[(from_s <= starts) & (starts <= to_s - SHORT_S)], SHORT_S)
    is_steady = to_s <= starts[-1] and float(short.max()) <= STEADY * rate * SHORT_S
    if not is_steady or not _is_queueing(paths, from_s) or others_bytes_per_s < CHANGE * rate:
        return Rate(rate, is_limit=False)
    is_as_full = (starts + WINDOW_S <= starts[-1]) & (passed >= ALIKE * passed[best])
    as_full = [
        num_bytes
        for start, num_bytes in zip(starts[is_as_full], passed[is_as_full], strict=True)
        if _is_queueing(paths, start)
    ]
    return Rate(float(np.median(as_full)) / WINDOW_S, is_limit=True)


def _is_queueing(paths: Sequence[Path], from_s: float) -> bool:
    """Whether all that arrived within ``WINDOW_S`` from then on had stood in a queue."""
    return all(path.is_queueing(from_s, from_s + WINDOW_S) for path in paths)


def _passed(paths: Sequence[Path], starts: Floats, seconds: float) -> Floats:
    """Bytes that arrived on all paths within ``seconds`` from each of these times."""
    passed: Floats = np.sum([path.total_bytes(starts + seconds) - path.total_bytes(starts) for path in paths], axis=0)
    return passed
