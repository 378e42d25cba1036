"""What happens to a peer as a guest on somebody's machine, as values; see ``collab.metrics.records``."""

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
