"""What a trainer knows of itself: speed, loss, totals; the source of its record."""

import math

from collab.metrics.records import Notice
from collab.swarm.records import PeerState
from collab.tasks.base import Evaluation
from collab.training.replica import MicrobatchReport
from collab.training.sums import Used

SMOOTHING = 0.3
"""Weight of the newest microbatch in the running mean: follows a change of speed within about five."""
SKIPS_BEFORE_RENEWAL = 8
"""Microbatches in a row that are not finite before the replica itself is suspected."""


class Vitals:
    """Running figures of one trainer."""

    def __init__(self) -> None:
        self.state = PeerState.SYNCING
        self.samples_per_s = 0.0
        self.microbatch_s = 0.0
        self.loss = math.nan
        """Mean over our samples of the last step that used any."""
        self.total_samples = 0
        self.epochs_contributed = 0
        self.skipped_in_a_row = 0
        self.remedy = "taking over the swarm's state"
        """What is done when many microbatches in a row were not finite."""
        self.period = self.delay = 0.0
        """Own steps in a window, and until its mean is here; medians of the last round that had any of ours."""
        self._evaluated = (-1, "", Evaluation(math.nan))
        self._busy_since_s: float | None = None

    def note_evaluation(self, epoch: int, era: str, found: Evaluation) -> None:
        """Our state was evaluated.

        Args:
            era: of that state; after a rollback the same epoch is another state.
        """
        self._evaluated = (epoch, era, found)

    def evaluation_in(self, era: str) -> tuple[int, Evaluation]:
        """Epoch and worth of what was evaluated last, as far as it is of ``era``; (-1, NaN): nothing."""
        epoch, of_era, found = self._evaluated
        return (epoch, found) if of_era == era else (-1, Evaluation(math.nan))

    def begin_microbatch(self, now_s: float) -> None:
        """A forward and backward begins."""
        self._busy_since_s = now_s

    def pause(self) -> None:
        """Nothing is computed."""
        self._busy_since_s = None

    def stop(self) -> None:
        """Nothing is computed any more, so that nobody waits for our share of a batch."""
        self.pause()
        self.samples_per_s = 0.0

    def end_microbatch(self, report: MicrobatchReport, seconds: float) -> None:
        """It ended after ``seconds``; a skipped one tells nothing of our speed."""
        self.pause()
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if report.skipped else 0
        if report.skipped or seconds <= 0:
            return
        share = SMOOTHING if self.microbatch_s else 1.0
        self.microbatch_s += share * (seconds - self.microbatch_s)
        self.samples_per_s += share * (report.samples / seconds - self.samples_per_s)

    def busy_for_s(self, now_s: float) -> float:
        """Expected seconds until the present microbatch is done; one that is late may take as long again."""
        if self._busy_since_s is None:
            return 0.0
        elapsed_s = now_s - self._busy_since_s
        return max(self.microbatch_s - elapsed_s, elapsed_s, 0.0)

    @property
    def is_suspicious(self) -> bool:
        """One microbatch that is not finite is bad luck; many in a row are a broken replica."""
        return self.skipped_in_a_row > 0 and self.skipped_in_a_row % SKIPS_BEFORE_RENEWAL == 0

    def suspicion(self, at_s: float) -> Notice | None:
        """What to tell a person of it; None: nothing is wrong."""
        if not self.is_suspicious:
            return None
        return Notice(
            at_s=at_s,
            text=f"{self.skipped_in_a_row} microbatches in a row were not finite; {self.remedy}",
            hint="if this goes on, check this machine's memory and drivers; the swarm never sees these gradients",
            is_problem=True,
        )

    def end_epoch(self, used: Used) -> None:
        """A step used our samples."""
        self.loss = used.loss
        self.total_samples += len(used.sample_ids)
        self.epochs_contributed += 1
