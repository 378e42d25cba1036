"""The swarm in a few numbers, from what its peers say."""

import math
import statistics
from collections import Counter
from collections.abc import Sequence

from collab.averaging.agreement import CommitRecord
from collab.averaging.robust import capped
from collab.config import Run, VcAsgd
from collab.metrics.backbone_events import RoundShared
from collab.swarm.duties import Duty
from collab.swarm.mandate import Mandate
from collab.swarm.progress import SwarmView
from collab.swarm.records import PeerRecord
from collab.swarm.vouching import contributors_of, furthest
from collab.training.schedule import learning_rate_factor
from collab.types import Lineage, PeerId, Role

DEFERRED, ABSENT = "deferred", "absent"
"""Why a trainer's samples are not in a round: it was there, and its upload would have held up others; it was not."""


FURTHEST = 4.0
"""Times the median distance from the median loss: honest losses, of few and other samples, are seldom further off."""


def swarm_loss(view: SwarmView) -> float:
    """Mean of the trainers' losses, weighted by their speeds; NaN when none has one.

    All of this is what they claim. A speed counts as far as the run lets a trainer's samples weigh in its mean, and a
    loss that is far from the others' counts as the furthest that would be believed, whatever weight is behind it.
    """
    losses = {record.peer: record.loss for record in view.all_trainers() if math.isfinite(record.loss)}
    if not losses:
        return math.nan
    speeds = {record.peer: max(record.samples_per_s, 1e-9) for record in view.all_trainers() if record.peer in losses}
    weights = capped(speeds, view.max_share) if len(speeds) * view.max_share >= 1 else speeds
    middle = statistics.median(losses.values())
    furthest = FURTHEST * statistics.median(abs(loss - middle) for loss in losses.values())
    believed = {peer: min(max(loss, middle - furthest), middle + furthest) for peer, loss in losses.items()}
    return sum(believed[peer] * weight for peer, weight in weights.items()) / sum(weights.values())


def era_of(view: SwarmView) -> str:
    """Mark of the last rollback, for one who only looks and does not know the orders: as most trainers have it.

    Without trainers, as most backbones have it; of two eras with as many peers, that of who knows more orders.
    """
    asked = view.all_trainers() or tuple(view.backbones())
    counts = Counter(record.era for record in asked)
    orders = {record.era: record.orders for record in sorted(asked, key=lambda record: record.orders)}
    return max(sorted(counts), key=lambda era: (counts[era], orders[era]), default="")


def history_of(run: Run, view: SwarmView) -> tuple[int, Lineage] | None:
    """Epoch and lineage that a run is at: those of most trainers, or the newest where each push is a step."""
    return view.newest() if isinstance(run.strategy, VcAsgd) else view.consensus()


def without_impossible(records: Sequence[PeerRecord], rounds: Sequence[CommitRecord]) -> tuple[PeerRecord, ...]:
    """All but trainers that say to be beyond the rounds that were seen, and were in none of these: anybody may say so.

    Args:
        rounds: the last ones that committed; none: nobody knows better than the records.
    """
    if not rounds:
        return tuple(records)
    most, known = furthest(rounds, 0) + 1, contributors_of(rounds)
    return tuple(one for one in records if one.role is not Role.TRAINER or one.epoch <= most or one.peer in known)


def epoch_of(view: SwarmView, consensus: int) -> int:
    """The epoch that a run is at, where most trainers are at ``consensus``.

    A trainer that was killed seems to be there for some seconds more; when all others have gone, backbones know better.
    """
    kept = view.kept_beyond(consensus, era_of(view))
    return max((record.checkpoint_epoch for record in kept), default=consensus)


def newest_evaluation(
    view: SwarmView, era: str, most: float = math.inf, measured_by: PeerId | None = None
) -> tuple[int, float, float]:
    """Epoch, loss and accuracy of the newest evaluation that peers tell of: the middle one of the same epoch.

    (-1, NaN, NaN) when there is none.

    Args:
        era: mark of the last rollback: states of another era are not the run's any more.
        most: no later epoch can have been evaluated: whoever says so is not believed.
        measured_by: whose word counts, if it has one, before all others'.
    """
    told = [record for record in view.records if record.era == era and 0 <= record.eval_epoch <= most]
    told = [record for record in told if math.isfinite(record.eval_loss)]
    told = [record for record in told if record.peer == measured_by] or told
    newest = max((record.eval_epoch for record in told), default=-1)
    there = [record for record in told if record.eval_epoch == newest]
    accuracies = [record.eval_accuracy for record in there if math.isfinite(record.eval_accuracy)]
    loss = statistics.median([record.eval_loss for record in there] or [math.nan])
    return newest, loss, statistics.median(accuracies or [math.nan])


def told(figure: float) -> float | None:
    """As JSON has it: nothing for NaN."""
    return figure if math.isfinite(figure) else None


def learning_rate(run: Run, mandate: Mandate, epoch: int) -> float:
    """Of the step after ``epoch`` ones, as run file and organiser say."""
    return run.optimizer.learning_rate * learning_rate_factor(run.schedule, epoch) * mandate.rate_factor(epoch)


def shares_of(record: CommitRecord, view: SwarmView) -> RoundShared:
    """Who did what in a round, and who had something for it that is not in it, as far as the view goes."""
    length, contributors = record.num_elements, dict(record.contributors)
    brought = tuple(
        (peer, weight * sum(stop - start for start, stop in record.used_of(peer)) / length)
        for peer, weight in record.contributors
    )
    reduced: dict[PeerId, float] = {}
    for peer, start, stop in record.pieces:
        reduced[peer] = reduced.get(peer, 0.0) + (stop - start) / length
    here = [one for one in view.trainers(record.epoch, record.lineage) if one.samples and one.peer not in contributors]
    return RoundShared(
        at_s=view.at_s,
        epoch=record.epoch,
        round_id=record.round_id,
        brought=brought,
        reduced=tuple(reduced.items()),
        left_out=tuple((one.peer, DEFERRED if one.peer in record.members else ABSENT) for one in here),
    )


def switched_off(record: PeerRecord) -> list[str]:
    """Duties that a backbone says it does not have, of those that there are."""
    return [duty.value for duty in Duty if not record.does(duty)] if record.role is Role.BACKBONE else []
