"""Where the swarm stands, told by a peer that trains nothing itself whenever the swarm has gone on."""

from collab.config import Run
from collab.metrics.records import SwarmReport
from collab.ports import Observer
from collab.swarm.mandate import Mandate
from collab.swarm.membership import Membership
from collab.swarm.progress import SwarmView
from collab.types import Lineage
from peers.summary import history_of, learning_rate, newest_evaluation, swarm_loss


class Reporter:
    """Of one backbone or auxiliary peer."""

    def __init__(self, observer: Observer, run: Run, mandate: Mandate, membership: Membership) -> None:
        self._observer, self._run, self._mandate, self._membership = observer, run, mandate, membership
        self._reported: tuple[int, Lineage] | None = None

    def report(self, view: SwarmView) -> tuple[int, Lineage] | None:
        """Tell of it, if it is news; returns the history that the swarm is at, None: no trainer is here."""
        history = history_of(self._run, view)
        if history is None or history == self._reported:
            return history
        self._reported = history
        epoch, lineage = history
        most = epoch + 1  # some may be a step ahead
        eval_epoch, eval_loss, eval_accuracy = newest_evaluation(view, self._membership.era, most)
        self._observer.observe(
            SwarmReport(
                at_s=view.at_s,
                epoch=epoch,
                lineage=lineage,
                loss=swarm_loss(view),
                eval_loss=eval_loss,
                eval_epoch=eval_epoch,
                eval_accuracy=eval_accuracy,
                samples_per_s=view.samples_per_s,
                trainers=len(view.all_trainers()),
                peers=view.num_peers,
                learning_rate=learning_rate(self._run, self._mandate, epoch),
            )
        )
        return history
