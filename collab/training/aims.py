"""What a trainer's next step takes, and how far it is: with all others, or alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from collab.strategies.base import Strategy
from collab.swarm.membership import Membership
from collab.training.replica import Replica
from collab.training.unit_replica import UnitReplica


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """Towards one step."""

    samples: float
    """That are computed, as far as is known."""
    target: float
    """All that it takes; 0: there is nothing to compute now."""
    samples_per_s: float
    """Of whoever computes for it."""


class Aims(Protocol):
    """Of one trainer."""

    is_own: bool
    """Whether its steps need no other trainer."""

    def now(self) -> Aim: ...


class SharedAims:
    """Of a trainer whose steps are the swarm's. Implements ``Aims``."""

    is_own = False

    def __init__(self, membership: Membership, batch_size: Callable[[int], float]) -> None:
        """
        Args:
            batch_size: samples of the step that follows an epoch.
        """
        self._membership, self._batch_size = membership, batch_size

    def now(self) -> Aim:
        view, record = self._membership.view, self._membership.our_record()
        return Aim(
            samples=view.samples(record.epoch, record.lineage),
            target=self._batch_size(record.epoch),
            samples_per_s=max(view.samples_per_s, record.samples_per_s),
        )


class OwnAims:
    """Of one that takes its steps alone, or pushes units of work, each of which is one. Implements ``Aims``."""

    is_own = True

    def __init__(self, membership: Membership, replica: Replica, batch_size: Callable[[int], float]) -> None:
        """
        Args:
            batch_size: samples of the step that follows an epoch, where there are no units.
        """
        self._membership, self._replica, self._batch_size = membership, replica, batch_size

    def now(self) -> Aim:
        speed = self._membership.our_record().samples_per_s
        if isinstance(replica := self._replica, UnitReplica):
            return Aim(samples=replica.unit_samples_done, target=replica.unit_samples, samples_per_s=speed)
        return Aim(samples=replica.samples, target=self._batch_size(replica.epoch), samples_per_s=speed)


def aims_of(
    strategy: Strategy, membership: Membership, replica: Replica, batch_size: Callable[[int], float]
) -> Aims:
    """As the run's strategy takes steps."""
    if strategy.follows_swarm:
        return SharedAims(membership, batch_size)
    return OwnAims(membership, replica, batch_size)
