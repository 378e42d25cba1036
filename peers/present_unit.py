"""How far a machine's unit of work is, in runs where a push of one is a step: from what its trainer tells."""

import math

from collab.metrics.guest_records import Paused
from collab.metrics.records import Event, MicrobatchDone, MicrobatchSkipped, UnitBegun


class PresentUnit:
    """The one that is computed now, or was computed last. Implements ``Sink``."""

    def __init__(self) -> None:
        self._begun: UnitBegun | None = None
        self._samples, self._seconds = 0, 0.0
        """Computed, and in which time."""

    def observe(self, event: Event) -> None:
        if isinstance(event, UnitBegun):
            self._begun, self._samples, self._seconds = event, 0, 0.0
        elif isinstance(event, Paused):
            self._begun = None  # it was given back
        elif isinstance(event, MicrobatchDone | MicrobatchSkipped) and self._begun is not None:
            self._samples += event.samples
            self._seconds = event.at_s - self._begun.at_s

    @property
    def share(self) -> float:
        """Of its samples, that are computed, 0 .. 1; NaN: there is no unit."""
        return min(self._samples / self._begun.samples, 1.0) if self._begun is not None else math.nan

    @property
    def left_s(self) -> float:
        """Until the others are, at the pace of those; infinite: nobody knows."""
        share = self.share
        return self._seconds * (1 - share) / share if share > 0 else math.inf
