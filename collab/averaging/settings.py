"""What a peer's part in rounds depends on."""

from dataclasses import dataclass
from typing import Protocol

from collab.averaging.contribution_plan import Policy
from collab.averaging.timeouts import FIRST, RoundTimeouts
from collab.config import Dts, Run, waits_for_rounds

MOST_TARGETS = 16.0
"""What a peer brings counts as at most this many target batches; one that claims more is refused."""
MOST_TARGETS_BESIDE = 1024.0
"""The same where trainers compute on while rounds take as long as they do."""


class Terms(Protocol):
    """What the organiser may change from one step of a run to the next."""

    def mark_at(self, epoch: int) -> str:
        """Names all that counts for the step after ``epoch`` ones, beside the run file; empty: nothing does."""
        ...

    def target_batch_size(self, epoch: int) -> float:
        """Samples of the swarm's batch for that step."""
        ...

    @property
    def until_epoch(self) -> int | None:
        """At which the run ends; nobody is left out of its last round."""
        ...

    def note_step(self, epoch: int, mark: str) -> None:
        """The swarm has taken the step after ``epoch`` ones, under the terms of this mark."""
        ...


@dataclass(frozen=True, slots=True)
class FixedTerms:
    """Implements ``Terms``: of a run that nobody can change."""

    target_samples: float
    until_epoch: int | None = None

    def mark_at(self, epoch: int) -> str:
        """Nothing was ever changed."""
        return ""

    def target_batch_size(self, epoch: int) -> float:
        """The same for all steps."""
        return self.target_samples

    def note_step(self, epoch: int, mark: str) -> None:
        """Changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSettings:
    """What the engine needs to know of its run and its peer."""

    fingerprint: str
    policy: Policy
    """How exactly vectors travel."""
    can_reduce: bool
    terms: Terms
    """Among them the swarm's batch; a contribution much heavier than that is refused as absurd."""
    reduction: str = "mean"
    """Rule by which contributions become one."""
    max_share: float = 1.0
    """Of the weight in a round, that one contributor may have."""
    timeouts: RoundTimeouts = FIRST
    is_synchronous: bool = True
    """Whether trainers wait for rounds; else these go on beside the training, and nobody loses time by a later one."""
    period_samples: int = 0
    """That the swarm's batch has of each trainer at least, as a mean over them."""

    @classmethod
    def of(cls, run: Run, fingerprint: str, terms: Terms, *, can_reduce: bool) -> "RoundSettings":
        """As the run file says."""
        period = run.strategy.period if isinstance(run.strategy, Dts) else None
        return cls(
            fingerprint=fingerprint,
            policy=run.averaging.compression,
            can_reduce=can_reduce,
            terms=terms,
            reduction=run.averaging.reduction,
            max_share=run.averaging.max_share,
            is_synchronous=waits_for_rounds(run.strategy),
            period_samples=(period or 0) * run.microbatch_size,
        )

    def batch_size(self, epoch: int, trainers: int) -> float:
        """Samples that so many trainers together have before the step after ``epoch`` ones."""
        return max(self.terms.target_batch_size(epoch), float(self.period_samples * trainers))

    def max_weight(self, epoch: int) -> float:
        """Samples; a heavier contribution is refused."""
        return (MOST_TARGETS if self.is_synchronous else MOST_TARGETS_BESIDE) * self.batch_size(epoch, 1)
