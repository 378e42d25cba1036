"""The swarm in words: whether all is well, what each peer is doing, why somebody was left out. Pure."""

import math
from dataclasses import dataclass

from collab.swarm.progress import HEARTBEAT_S, RECORD_LIFE_S
from collab.swarm.records import PeerRecord, PeerState
from collab.types import Lineage, Role
from peers.event_words import count
from peers.summary import ABSENT, DEFERRED, switched_off

GOOD, WAITING, TROUBLE = "good", "waiting", "trouble"
PATIENCE_STEPS, PATIENCE_S = 4.0, 30.0
"""A step that takes so many times what it should, and so long, is late."""
FIRST_PATIENCE_S = 300.0
"""The same while no round was seen: on slow links one takes minutes."""
MISSED_HEARTBEATS = 2.0
"""Of a peer that has not been heard for so many, it is said."""
REACHED = {
    "direct": "can be dialled",
    "hole-punched": "through its router",
    "relayed": "through a backbone",
    "client": "dials only",
}
WHY = {
    DEFERRED: "its upload would have held up the others",
    ABSENT: "was not there in time",
    "late": "came too late",
    "silent": "said nothing",
    "stalled": "stopped in the middle",
    "slow_sender": "sent too slowly",
    "slow_reducer": "averaged too slowly",
    "cut_off": "lost its connection",
    "member_lost": "was lost",
    "sender_lost": "was lost",
    "declined": "did not go into it",
    "bad_begin": "began a round that did not fit",
    "electors_left_out": "left out some who decide",
    "not_finite": "sent numbers that are none",
}


@dataclass(frozen=True, slots=True)
class Health:
    """Whether all is well."""

    level: str
    text: str
    hint: str = ""
    """What to do, or what it may be; empty: nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What there is to judge by."""

    epoch: int
    until_epoch: int | None
    trainers: int
    contributors: int
    """In the newest committed round; 0: none is known."""
    since_step_s: float
    """Infinite: no step was seen."""
    here_s: float = math.inf
    """For how long there have been trainers without a break; infinite: since before the last step."""
    step_s: float
    """That a step should take; infinite: nobody knows."""
    has_round: bool = True
    """Whether it is known what a round takes; else ``step_s`` is what computing does."""
    lost_reason: str
    """Why the newest round was lost; empty: it was not."""
    unit_s: float = 0.0
    """How long a unit of work may take, where each push of one is a step; 0: rounds are."""
    concern: str = ""
    """Why what is trained is not saved, or not published, or that a backbone is too old; empty: nothing of that."""
    concern_hint: str = ""
    """What to do about that."""


def health(now: Moment) -> Health:
    """In a sentence."""
    found = _progress(now)
    if found.level == TROUBLE or not now.concern:
        return found
    return Health(TROUBLE, f"{found.text}; but {now.concern}", now.concern_hint)


def _progress(now: Moment) -> Health:
    if now.until_epoch is not None and now.epoch >= now.until_epoch:
        return Health(GOOD, f"finished: all {now.until_epoch} steps are taken")
    if not now.trainers:
        return Health(WAITING, "waiting: no trainer is here", "whoever has an invite can join")
    if math.isinf(now.since_step_s):
        return Health(WAITING, f"waiting for the first step of {count(now.trainers, 'trainer')}")
    what, taken = ("push", "came") if now.unit_s else ("step", "was taken")
    ago = f"{what} {now.epoch} {taken} {span(now.since_step_s)} ago"
    if min(now.since_step_s, now.here_s) > _allowed_s(now):
        return Health(TROUBLE, *_standing_still(now, ago))
    if now.here_s < now.since_step_s:
        return Health(WAITING, f"waiting for the next {what} of {count(now.trainers, 'trainer')}: {ago}")
    whose = f" with the samples of {count(now.contributors, 'peer')}" if now.contributors and not now.unit_s else ""
    return Health(GOOD, f"healthy: {ago}{whose}")


def _allowed_s(now: Moment) -> float:
    """How long there may be trainers, and no step, before one is late."""
    if now.unit_s:
        return max(PATIENCE_S, now.unit_s)
    least_s = PATIENCE_S if now.has_round else FIRST_PATIENCE_S
    return max(least_s, PATIENCE_STEPS * now.step_s) if math.isfinite(now.step_s) else least_s


def _standing_still(now: Moment, ago: str) -> tuple[str, str]:
    if now.unit_s:
        reason = f"a unit of work may take {span(now.unit_s)}, and none has come back since"
        return f"standing still: {ago}", reason
    reason = f"the last round was lost: {now.lost_reason}" if now.lost_reason else "no round has come about since"
    expected = f", expected every {span(now.step_s)}" if math.isfinite(now.step_s) else ""
    return f"standing still: {ago}{expected}", reason


def doing(record: PeerRecord, consensus: tuple[int, Lineage] | None, now_s: float) -> str:
    """What a peer is busy with, from its last word."""
    unheard_s = now_s - record.said_at
    heartbeat_s = HEARTBEAT_S * record.life_s / RECORD_LIFE_S
    if unheard_s > MISSED_HEARTBEATS * heartbeat_s:
        return f"not heard for {span(unheard_s)}"
    if record.state in (PeerState.LEAVING, PeerState.LEFT):
        return "is leaving"
    if record.role is Role.BACKBONE:
        off = switched_off(record)
        return f"keeps the run, without {', '.join(off)}" if off else "keeps the run, averages"
    if record.role is Role.AUXILIARY:
        return "averages for others"
    if record.state is PeerState.SYNCING:
        return "fetches the model"
    if consensus is None or record.epoch > consensus[0]:
        return "trains"
    behind = consensus[0] - record.epoch
    if behind > 1:
        return f"{behind} steps behind"
    is_ours = behind or record.lineage == consensus[1]  # its last word may be from before the newest step
    return "trains" if is_ours else "has another history than most"


def why(reason: str) -> str:
    """A reason that is counted, for people."""
    return WHY.get(reason, reason.replace("_", " "))


def span(seconds: float) -> str:
    """A stretch of time, in one or two units."""
    if seconds < 1:
        return f"{max(seconds, 0.0):.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"
