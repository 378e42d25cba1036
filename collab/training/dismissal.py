"""Why a peer must stop by itself: the organiser has said so, or nobody is left who could."""

from collab.errors import Dismissed
from collab.ports import Ports
from collab.swarm.admission import banned
from collab.swarm.membership import Membership
from collab.swarm.statutes import Statutes
from collab.version import VERSION


def dismissal(ports: Ports, statutes: Statutes, membership: Membership, epoch: int) -> Dismissed | None:
    """Why this peer stops before the step after ``epoch`` ones; None: it goes on."""
    mandate, now = statutes.mandate, ports.clock.now()
    voice = statutes.admission.voice_of(ports.transport.peer_id)
    for who in dict.fromkeys((ports.transport.peer_id, voice)):
        if (ban := mandate.ban_of(who, now)) is not None:
            return Dismissed(banned(ban).text, hint="what this machine has given stays in the model; ask the organiser")
    if (needed := mandate.needed_version(epoch)) is not None:
        text = f"from epoch {epoch} on this run needs version {needed} of collab, this is {VERSION}"
        hint = "upgrade with the line that the organiser has for it, and join again: your state is kept"
        return Dismissed(text, hint=hint)
    limit_h = statutes.bundle.run.orphan_after_h
    said = mandate.book.orders[-1].said_at if mandate.book.orders else 0.0
    if membership.without_backbone_s() >= limit_h * 3600 and now - said >= limit_h * 3600:
        text = f"no backbone of this run, and nothing of its owner, was seen for {limit_h:g} hours"
        hint = "your copy of the state is kept; join again when the organiser is back, or carry the run on yourself"
        return Dismissed(text, hint=hint)
    return None
