"""What a peer's part in rounds depends on."""

from dataclasses import dataclass

from collab.averaging.timeouts import RoundTimeouts
from collab.config import Run

MAX_WEIGHT_IN_TARGETS = 16.0
"""A peer that brings more than this many target batches is refused as absurd."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSettings:
    """What the engine needs to know of its run and its peer."""

    fingerprint: str
    codec: str
    can_reduce: bool
    max_weight: float
    """Samples; a heavier contribution is refused as absurd."""
    timeouts: RoundTimeouts = RoundTimeouts()

    @classmethod
    def of(cls, run: Run, fingerprint: str, *, can_reduce: bool) -> "RoundSettings":
        """As the run file says."""
        max_weight = MAX_WEIGHT_IN_TARGETS * run.strategy.target_batch_size
        return cls(fingerprint=fingerprint, codec=run.averaging.codec, can_reduce=can_reduce, max_weight=max_weight)
