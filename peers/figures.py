"""What one way of training on a simulated swarm has come to."""

import hashlib
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from collab.simulation.account import Account, Look
from collab.simulation.residents import Resident

LAST = 0.05
"""Of the time, over which the training loss at the end is taken."""
SETTLED = 0.25
"""Of the steps, after which a swarm is taken to go on as it will."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one way of training has come to; NaN: there is no such thing here."""

    title: str
    virtual_s: float
    steps: int
    step_s: float
    """Mean of those after the first quarter."""
    round_s: float
    """Median of committed rounds, as members saw them."""
    rounds_committed: int
    """As members saw them: of one round as many as it had."""
    rounds_lost: int
    samples_per_s: float
    """Committed, after the first quarter of the steps."""
    computed_samples: int
    committed_samples: float
    held_samples: int
    """Computed, and on their way into a later step when the time was over."""
    lost_share: float
    """Of the samples computed, that are in no step and never will be."""
    training_loss: float
    held_out_loss: float
    accuracy: float
    seconds_to_loss: float
    sent_bytes: int
    """By all peers."""
    sent_bytes_of_a_trainer: float
    """Mean."""
    compute_use: float
    """Share of the time that trainers were there in which they computed."""
    uplink_use: float
    """Share of what trainers' uplinks could have carried."""
    money: float
    digest: str
    """Of everything that happened, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Figures, and the way to them."""

    figures: Figures
    looks: tuple[Look, ...]


def outcome_of(
    title: str, account: Account, residents: Sequence[Resident], *, held: int, target_loss: float | None, digest: str
) -> Outcome:
    """What an account comes to, of which the last look was taken when the time was over.

    Args:
        held: samples that trainers had in hand then.
        digest: of everything that happened.
    """
    last, time_s = account.looks[-1], account.looks[-1].at_s
    trainers = [resident for resident in residents if resident.role == "trainer"]
    tallies = [account.tallies[trainer.name] for trainer in trainers if trainer.name in account.tallies]
    there_s = math.fsum(trainer.seconds_until(time_s) for trainer in trainers)
    could_send = math.fsum(trainer.seconds_until(time_s) * trainer.link.up_bytes_per_s for trainer in trainers)
    sent, computed = sum(tally.sent_bytes for tally in tallies), account.computed_samples
    reached = [look.at_s for look in account.looks if target_loss is not None and look.loss <= target_loss]
    step_s, samples_per_s = account.pace(SETTLED)
    figures = Figures(
        title=title,
        virtual_s=time_s,
        steps=account.steps,
        step_s=step_s,
        round_s=statistics.median(account.round_s) if account.round_s else math.nan,
        rounds_committed=account.rounds_committed,
        rounds_lost=account.rounds_lost,
        samples_per_s=samples_per_s,
        computed_samples=computed,
        committed_samples=account.committed_samples,
        held_samples=held,
        lost_share=max(1.0 - (account.committed_samples + held) / computed, 0.0) if computed else 0.0,
        training_loss=account.training_loss(since_s=(1.0 - LAST) * time_s),
        held_out_loss=last.loss,
        accuracy=last.accuracy,
        seconds_to_loss=min(reached, default=math.inf) if target_loss is not None else math.nan,
        sent_bytes=account.sent_bytes,
        sent_bytes_of_a_trainer=sent / max(len(tallies), 1),
        compute_use=math.fsum(tally.busy_s for tally in tallies) / there_s if there_s else 0.0,
        uplink_use=sent / could_send if could_send else 0.0,
        money=math.fsum(resident.price_until(time_s) for resident in residents),
        digest=digest,
    )
    return Outcome(figures=figures, looks=tuple(account.looks))


def digest_of(outcomes: list[Outcome]) -> str:
    """SHA-256 over all figures and looks: equal digests mean equal simulations."""
    text = json.dumps([asdict(outcome) for outcome in outcomes], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
