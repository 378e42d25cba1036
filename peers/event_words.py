"""What happens in a peer, in words."""

import math
from collections.abc import Sequence

from collab.metrics.guest_records import Paused, Progress, Resumed, StepAwaited
from collab.metrics.records import (
    CheckpointOnHub,
    CheckpointSaved,
    DataCovered,
    EpochFinished,
    EvaluationDone,
    Event,
    MicrobatchSkipped,
    Notice,
    RoundEnded,
    StateFetched,
    SwarmReport,
    WindowsAveraged,
)
from collab.metrics.refusals import Refused

BAR = 24
"""Characters of what shows how far something is."""
AGAIN = "nothing needs to be done: the next attempt follows by itself, with what is in hand"
"""What follows a lost round."""


def words(event: Event) -> str:
    """An event in words; empty when it is not worth a line."""
    if isinstance(event, EpochFinished):
        share = 100 * event.own_samples / event.swarm_samples if event.swarm_samples else 0.0
        loss = f"{event.loss:.4f}" if math.isfinite(event.loss) else "-"
        rate = f"swarm {event.swarm_samples / event.seconds:.1f} samples/s  " if event.seconds > 0 else ""
        return f"epoch {event.epoch}  loss {loss}  {rate}{company_words(event)}  you gave {share:.0f} %"
    if isinstance(event, SwarmReport):
        loss = f"{event.loss:.4f}" if math.isfinite(event.loss) else "-"
        speed = f"swarm {event.samples_per_s:.1f} samples/s"
        return f"epoch {event.epoch}  loss {loss}  {speed}  {count(event.trainers, 'trainer')}"
    if isinstance(event, WindowsAveraged):
        return pace_words(event.period, event.delay)
    if isinstance(event, RoundEnded) and not event.committed:
        return f"a round of epoch {event.epoch} was lost, nothing of your work with it: {event.reason}\n  -> {AGAIN}"
    if isinstance(event, MicrobatchSkipped):
        return f"left out one microbatch of {event.samples} samples: {event.reason}"
    if isinstance(event, EvaluationDone):
        right = f", {100 * event.accuracy:.1f} % right" if math.isfinite(event.accuracy) else ""
        return f"epoch {event.epoch}  loss on held-out data {event.loss:.4f}{right}"
    if isinstance(event, StateFetched):
        return f"took over epoch {event.epoch} ({event.num_bytes / 1e6:.1f} MB in {event.seconds:.1f} s)"
    if isinstance(event, CheckpointSaved):
        return f"saved epoch {event.epoch} in {event.path} ({event.num_bytes / 1e6:.1f} MB)"
    if isinstance(event, CheckpointOnHub):
        return f"epoch {event.epoch} is on the Hub: {event.place} ({event.num_bytes / 1e6:.1f} MB)"
    if isinstance(event, Paused):
        rest = f"; {count(event.samples, 'sample')} go into the swarm's next step" if event.samples else ""
        return f"paused: {event.reason}; the device is free after {event.seconds:.1f} s{rest}"
    if isinstance(event, Progress):
        return progress_words(event)
    if isinstance(event, StepAwaited):
        return awaited_words(event)
    if isinstance(event, Resumed):
        return f"works again after {duration_words(event.paused_s)}"
    if isinstance(event, DataCovered):
        done = "is done" if event.is_complete else f"{100 * event.share:.0f} % done"
        return f"data: pass {event.pass_number + 1} {done}{trained_words(event.samples, event.samples_again)}"
    if isinstance(event, Notice):
        return f"{'problem: ' if event.is_problem else ''}{event.text}" + (f"\n  -> {event.hint}" if event.hint else "")
    return ""


def company_words(step: EpochFinished) -> str:
    """With whom a step was taken; who had nothing in it was not one of those whose samples are."""
    others = step.contributors - (1 if step.own_samples else 0)
    return f"averaged with {count(others, 'other')}"


def progress_words(progress: Progress) -> str:
    """How far something is, with a bar where it is known how much it will be."""
    done, whole = progress.done_bytes, progress.whole_bytes
    if whole <= 0:
        return f"{progress.what}: {done / 1e6:.1f} MB so far"
    share = min(done / whole, 1.0)
    full = round(BAR * share)
    return f"{progress.what}: [{'#' * full}{'.' * (BAR - full)}] {100 * share:3.0f} % of {whole / 1e6:.1f} MB"


def awaited_words(awaited: StepAwaited) -> str:
    """How far the next step is; where pushes of units are steps, how far this machine's unit is."""
    if not math.isnan(awaited.unit_share):
        unit = unit_words(awaited.unit_share, awaited.unit_left_s)
        return f"epoch {awaited.epoch}: of this machine's unit of work {unit}"
    if math.isnan(awaited.share):
        return f"epoch {awaited.epoch}: no step for a minute, and when the next one comes nobody can say"
    if awaited.next_s <= 0:
        return f"epoch {awaited.epoch}: the whole batch is there, the next step is on its way"
    share = f"{min(round(100 * awaited.share), 99)} % of the batch is there"
    share = "the whole batch is there" if awaited.share >= 1 else share
    return f"epoch {awaited.epoch}: {share}, the next step in about {duration_words(awaited.next_s)}"


def unit_words(share: float, left_s: float) -> str:
    """How far a unit of work is.

    Args:
        share: of its samples, that are computed.
        left_s: until the others are; infinite: nobody knows.
    """
    if share >= 1:
        return "all is computed"
    rest = f", the rest takes about {duration_words(left_s)}" if math.isfinite(left_s) else ""
    return f"{min(round(100 * share), 99)} % is computed{rest}"


def eta_words(next_s: float, step_s: float, steps_left: int | None) -> str:
    """When the next step is due, and the run's end; empty: nobody knows."""
    if not (math.isfinite(next_s) and math.isfinite(step_s)):
        return ""
    end = "" if steps_left is None else f"; the run ends in about {duration_words(steps_left * step_s)}"
    due = f"in about {duration_words(next_s)}" if next_s > 0 else "averaging now"
    return f"{due}, one takes {duration_words(step_s)}{end}"


def duration_words(seconds: float) -> str:
    """In the largest unit that leaves more than one of it."""
    for unit, name in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def pace_words(period: float, delay: float) -> str:
    """How windows of own steps came out."""
    return f"windows of about {period:.2g} own steps, each averaged about {delay:.2g} steps after its end"


def trained_words(samples: int | None, samples_again: int | None) -> str:
    """What was trained of the data; nothing where nobody knows how many samples there are."""
    again = f", {samples_again} of them more than once" if samples_again else ""
    return f": {samples} samples trained{again}" if samples is not None else ""


def count(number: int, noun: str) -> str:
    """``1 trainer``, ``2 trainers``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def refused_words(refused: Sequence[Refused]) -> str:
    """Whom we refused, in a line; most first."""
    worst, peers = refused[0], len({row.peer for row in refused})
    total = sum(row.count for row in refused)
    return f"{count(total, 'time')}, {count(peers, 'peer')}; most: {worst.reason} of {worst.peer[-8:]}"
