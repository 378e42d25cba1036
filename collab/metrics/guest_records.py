"""What happens to a peer as a guest on somebody's machine, as values; see ``collab.metrics.records``."""

import math
from dataclasses import dataclass

from collab.metrics.records import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused(Event):
    """The owner wants the machine: nothing is computed any more, and the device is free.

    Also that of a process which begins paused, and, while it is paused, that there is another reason.
    """

    reason: str
    seconds: float
    """Since it was asked for: what the last microbatch and the way out of the device took; 0: nothing was on it."""
    samples: int
    """Computed and in no step yet; they go into the next one, if it comes soon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(Event):
    """This machine works again."""

    paused_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Event):
    """Something that takes long is so far on: told on this machine only, about once a second."""

    what: str
    done_bytes: int
    whole_bytes: int
    """0: nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAwaited(Event):
    """Nothing that is worth a line happened for a minute: how far the next step is. Told on this machine only."""

    epoch: int
    """Global steps taken so far."""
    share: float
    """Of the next step's batch, that trainers have by now if they compute as they say, 0 .. 1; NaN: nobody knows."""
    next_s: float
    """Until the next step is due, its round included; 0: the whole batch is there; infinite: nobody knows."""
    step_s: float
    """That a step should take, its round included; infinite: nobody knows."""
    unit_share: float = math.nan
    """Of the samples of the unit of work that this machine computes, those that it has, 0 .. 1; NaN: there is none."""
    unit_left_s: float = math.inf
    """Until it has the others; infinite: nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinesMissed(Event):
    """In place of lines for programs that were not read in time: told on this machine only, where they are missing."""

    lines: int
