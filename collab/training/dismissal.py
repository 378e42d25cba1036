"""Why a peer must stop by itself: the organiser has said so, or nobody is left who could."""

import asyncio
import math
from collections.abc import Callable

from collab.errors import Dismissed
from collab.metrics.records import Notice
from collab.ports import Ports
from collab.swarm.access import Grant
from collab.swarm.admission import banned
from collab.swarm.dates import utc
from collab.swarm.mandate import Mandate
from collab.swarm.membership import Membership
from collab.swarm.statutes import Statutes
from collab.version import VERSION

LOOK_S = 1.0
"""How soon a peer stops that is not wanted any more."""
DAY_S = 86400.0
GOODBYE_S = 60.0
"""Before its invite ends a peer leaves: then nobody would take its word, or the newest state if only it has that."""
NOTICE_DAYS = 5
"""In which an invite's end is told of before it comes, once a day."""


def dismissal(ports: Ports, statutes: Statutes, membership: Membership, epoch: int) -> Dismissed | None:
    """Why this peer stops before the step after ``epoch`` ones; None: it goes on."""
    mandate, now = statutes.mandate, ports.clock.now()
    if (why := turned_away(ports, statutes)) is not None:
        return why
    if (why := too_old(mandate, epoch)) is not None:
        return why
    limit_h = statutes.bundle.run.orphan_after_h
    said = mandate.book.orders[-1].said_at if mandate.book.orders else 0.0
    if membership.without_backbone_s() >= limit_h * 3600 and now - said >= limit_h * 3600:
        text = f"no backbone of this run, and nothing of its owner, was seen for {limit_h:g} hours"
        hint = "your copy of the state is kept; join again when the organiser is back, or carry the run on yourself"
        return Dismissed(text, hint=hint)
    return None


def too_old(mandate: Mandate, epoch: int) -> Dismissed | None:
    """Why this version takes no part in the step after ``epoch`` ones; None: it may."""
    if (needed := mandate.needed_version(epoch)) is None:
        return None
    text = f"from epoch {epoch} on this run needs version {needed} of collab, this is {VERSION}"
    hint = "upgrade with the line that the organiser has for it, and join again: your state is kept"
    return Dismissed(text, hint=hint)


def turned_away(ports: Ports, statutes: Statutes, *, is_backbone: bool = False) -> Dismissed | None:
    """Why nobody deals with this peer any more: it is banned, or its invite has run out; None: neither."""
    now, voice = ports.clock.now(), statutes.admission.voice_of(ports.transport.peer_id)
    for who in dict.fromkeys((ports.transport.peer_id, voice)):
        if (ban := statutes.mandate.ban_of(who, now)) is not None:
            return Dismissed(banned(ban).text, hint="what this machine has given stays in the model; ask the organiser")
    grant = _needed_grant(statutes, is_backbone=is_backbone)
    if grant is not None and now >= grant.expires_at - GOODBYE_S:
        text = f"the invite of {grant.person or 'yours'} has run out: it ends on {utc(grant.expires_at)}"
        hint = "ask the organiser for a new invite, and join with it: what this machine has is kept"
        return Dismissed(text, hint=hint)
    return None


async def until_dismissed(
    look: Callable[[], Dismissed | None], ports: Ports, statutes: Statutes, *, is_backbone: bool = False
) -> None:
    """Returns when ``look`` finds why this peer must stop; until then tells of an invite that ends soon."""
    told_at = -math.inf
    while look() is None:
        told_at = tell_of_end(ports, statutes, told_at, is_backbone=is_backbone)
        await asyncio.sleep(LOOK_S)


def tell_of_end(ports: Ports, statutes: Statutes, told_at: float, *, is_backbone: bool = False) -> float:
    """Tell a person that this peer's invite ends soon, unless that was done within a day.

    Args:
        told_at: swarm time at which it was done last.

    Returns:
        The same as of now.
    """
    now, grant = ports.clock.now(), _needed_grant(statutes, is_backbone=is_backbone)
    if grant is None or grant.expires_at - now > NOTICE_DAYS * DAY_S or now - told_at < DAY_S:
        return told_at
    text = f"the invite of {grant.person or 'yours'} ends on {utc(grant.expires_at)}, and this peer stops then"
    hint = "ask the organiser for a new invite; end this peer, and join with that: what this machine has is kept"
    ports.observer.observe(Notice(at_s=now, text=text, hint=hint, is_problem=True))
    return now


def _needed_grant(statutes: Statutes, *, is_backbone: bool) -> Grant | None:
    """Without which nobody deals with us, or takes our word for a backbone's; None: there is none, or no need."""
    return statutes.own_grant() if statutes.admission.is_closed or is_backbone else None
