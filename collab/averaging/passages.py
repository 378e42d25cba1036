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
    """The most that a link carried within ``WINDOW_S``, all paths through it together; None when it carried nothing.

    It was the limit if all that it carried had queued, and came steadily and not in bursts with pauses between them,
    and if those at the other ends together carry more.

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
    is_full = is_steady and all(path.is_queueing(from_s, to_s) for path in paths)
    return Rate(rate, is_limit=bool(is_full) and others_bytes_per_s >= CHANGE * rate)


def _passed(paths: Sequence[Path], starts: Floats, seconds: float) -> Floats:
    """Bytes that arrived on all paths within ``seconds`` from each of these times."""
    passed: Floats = np.sum([path.total_bytes(starts + seconds) - path.total_bytes(starts) for path in paths], axis=0)
    return passed
