"""How far a machine's unit of work is, in runs where a push of one is a step: from what its trainer tells."""

import math

from collab.metrics.guest_records import Paused
from collab.metrics.records import Event, MicrobatchDone, MicrobatchSkipped, UnitBegun


class PresentUnit:
    """The one that is computed now, or was computed last. Implements ``Sink``."""

    def __init__(self) -> None:
        self._unit: tuple[UnitBegun, int, float] | None = None
        """With its samples that are computed, and in which time. Never changed in place: a panel is drawn by another
        thread.
        """

    def observe(self, event: Event) -> None:
        if isinstance(event, UnitBegun):
            self._unit = event, 0, 0.0
        elif isinstance(event, Paused):
            self._unit = None  # it was given back
        elif isinstance(event, MicrobatchDone | MicrobatchSkipped) and self._unit is not None:
            begun, samples, _ = self._unit
            self._unit = begun, samples + event.samples, event.at_s - begun.at_s

    def so_far(self) -> tuple[float, float]:
        """Of its samples those that are computed, 0 .. 1, and seconds until the others are, at the pace of these.

        NaN: there is no unit. Infinite: nobody knows.
        """
        if (unit := self._unit) is None:
            return math.nan, math.inf
        begun, samples, seconds = unit
        share = min(samples / begun.samples, 1.0)
        return share, seconds * (1 - share) / share if share > 0 else math.inf
