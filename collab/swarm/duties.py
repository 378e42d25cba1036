"""What a backbone does for its run, each duty by a name: one may be switched off, and others hear that it is."""

from collections.abc import Collection
from enum import StrEnum


class Duty(StrEnum):
    """One thing that a backbone does, unless its owner says otherwise. It leads rounds and keeps votes in any case."""

    BOOTSTRAP = "bootstrap"
    """Lets newcomers in: tells the time and the run, keeps a part of the directory, is named in invites."""
    RELAY = "relay"
    """Passes on between peers that nobody can dial."""
    REDUCER = "reducer"
    """Averages spans in rounds."""
    STATE = "state"
    """Gives the run's newest state to newcomers, and to other backbones."""
    CHECKPOINTS = "checkpoints"
    """Writes the newest states to its disk."""
    METRICS = "metrics"
    """Writes down what happens, and shows it."""
    PARAMETERS = "parameters"
    """Hands out units of work and takes pushes, in runs with a parameter store."""


NOTHING_OFF: frozenset[Duty] = frozenset()
PUBLISHING = frozenset({Duty.STATE, Duty.CHECKPOINTS})
"""Whoever publishes snapshots needs both: others fetch its bytes, and its disk remembers what it may not publish. So
does who takes the state of a trainer that leaves: else it is lost, or nobody gets it."""


def read_duties(text: str) -> frozenset[Duty]:
    """Duties by name, with commas between them.

    Raises:
        ValueError: one of them there is not; the message lists all.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in set(Duty)]:
        raise ValueError(f"there is no duty {unknown[0]!r}: choose from {', '.join(Duty)}")
    return frozenset(map(Duty, names))


def duties_in_words(duties: Collection[Duty]) -> str:
    """By name, in the order in which they are defined."""
    return ", ".join(duty for duty in Duty if duty in duties)
