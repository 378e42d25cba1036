"""Where the swarm stands, told by a peer that trains nothing itself whenever the swarm has gone on."""

import math
from dataclasses import replace

from collab.metrics.records import EvaluationDone, SwarmReport
from collab.ports import Observer
from collab.swarm.mandate import Mandate
from collab.swarm.membership import Membership
from collab.swarm.progress import SwarmView
from collab.types import Lineage
from peers.credible import Credible
from peers.summary import learning_rate, newest_evaluation, swarm_loss


class Reporter:
    """Of one backbone or auxiliary peer."""

    def __init__(self, observer: Observer, mandate: Mandate, membership: Membership, credible: Credible) -> None:
        self.credible = credible
        self._observer, self._mandate, self._membership = observer, mandate, membership
        self._reported: tuple[int, Lineage] | None = None
        self._evaluated: tuple[str, int] = "", -1
        """Era and epoch of the newest evaluation that was told of."""

    def report(self, view: SwarmView) -> tuple[int, Lineage] | None:
        """Tell of it, if it is news; returns the history that the swarm is at, None: no trainer is here.

        Of what was rolled back, and of what follows a rollback that we have not heard of yet, nothing is told.
        """
        self.credible.came_s(view)
        view, history = self.credible.of(view), self.credible.history(view)
        if history is None or history == self._reported:
            self._tell_evaluation(view)
            return history
        self._reported = history
        epoch, lineage = history
        me = self._membership.our_record().peer
        eval_epoch, eval_loss, eval_accuracy = newest_evaluation(view, self._membership.era, epoch, me)
        self._evaluated = self._membership.era, eval_epoch
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
                learning_rate=learning_rate(self.credible.run, self._mandate, epoch),
            )
        )
        return history

    def epoch(self, view: SwarmView) -> int:
        """That the swarm is at; -1: no trainer is here."""
        history = self.credible.history(view)
        return history[0] if history is not None else -1

    def _tell_evaluation(self, view: SwarmView) -> None:
        """Tell of one that came after the report of its step: after that of the last step no other follows.

        Of what this peer has measured itself it has told.
        """
        era, ours = self._membership.era, self._membership.our_record()
        if self._reported is None or ours.eval_epoch >= 0:
            return
        others = replace(view, records=tuple(record for record in view.records if record.peer != ours.peer))
        epoch, loss, accuracy = newest_evaluation(others, era, self._reported[0])
        known = self._evaluated[1] if self._evaluated[0] == era else -1
        if epoch > known and math.isfinite(loss):
            self._evaluated = era, epoch
            done = EvaluationDone(at_s=view.at_s, epoch=epoch, loss=loss, seconds=math.nan, accuracy=accuracy)
            self._observer.observe(done)
