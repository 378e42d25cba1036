"""What a peer's part in rounds depends on."""

from dataclasses import dataclass

from collab.averaging.contribution_plan import Policy
from collab.averaging.timeouts import FIRST, RoundTimeouts
from collab.config import Run

MAX_WEIGHT_IN_TARGETS = 16.0
"""What a peer brings counts as at most this many target batches; one that claims more is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSettings:
    """What the engine needs to know of its run and its peer."""

    fingerprint: str
    policy: Policy
    """How exactly vectors travel."""
    can_reduce: bool
    target_samples: float
    """Of the swarm's batch; a contribution much heavier than that is refused as absurd."""
    until_epoch: int | None = None
    """At which the run ends; nobody is left out of its last round."""
    reduction: str = "mean"
    """Rule by which contributions become one."""
    max_share: float = 1.0
    """Of the weight in a round, that one contributor may have."""
    timeouts: RoundTimeouts = FIRST

    @classmethod
    def of(cls, run: Run, fingerprint: str, *, can_reduce: bool) -> "RoundSettings":
        """As the run file says."""
        return cls(
            fingerprint=fingerprint,
            policy=run.averaging.compression,
            can_reduce=can_reduce,
            target_samples=float(run.strategy.target_batch_size),
            until_epoch=run.until_epoch,
            reduction=run.averaging.reduction,
            max_share=run.averaging.max_share,
        )

    @property
    def max_weight(self) -> float:
        """Samples; a heavier contribution is refused."""
        return MAX_WEIGHT_IN_TARGETS * self.target_samples
