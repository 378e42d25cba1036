"""Whom an organiser means by what was typed: a peer that is here, an invited person, or somebody who is banned."""

from collections.abc import Collection, Sequence

from collab.errors import ConfigError
from collab.swarm.identity import is_peer_id
from collab.swarm.invite import PREFIX
from collab.swarm.progress import SwarmView
from collab.swarm.statements import Ban
from collab.types import PeerId
from peers.inviting import Invited, Users
from peers.ordered import plain

MIN_BEGINNING, MIN_END = 8, 6
"""Characters that are enough of a peer id: the dashboard shows the last six, the panel the last eight."""
ELLIPSIS = "…"
"""Before the end of an id, on the dashboard."""
SHOWN = 60
"""Characters of what was typed."""


def find_peer(view: SwarmView, text: str) -> PeerId:
    """The peer that a person means: its id, the beginning or the end of it, or its name; any peer by its whole id.

    Raises:
        ConfigError: nobody, or more than one.
    """
    if is_peer_id(text):
        return PeerId(text)  # who is not here now can be named, too
    found: dict[str, str] = {r.peer: r.name for r in view.records if r.name == text or _is_part(text, r.peer)}
    if len(found) == 1:
        return PeerId(next(iter(found)))
    raise _unclear(text, found, "who is here, 'collab-peer status' says; whoever has gone is named by the whole id")


def find_keys(people: Sequence[Invited], users: Users, view: SwarmView, text: str) -> dict[str, str]:
    """Keys that a person means, and what they are called (empty: unknown): all invites of somebody, else one peer's.

    A peer may call itself what an invited person is called: that does not make it that person.

    Args:
        users: who uses which invite.

    Raises:
        ConfigError: nobody, or more than one.
    """
    names: dict[str, str] = {record.peer: record.name for record in view.records}
    if is_peer_id(text):
        persons = {row.id: row.person for row in people}
        return {text: persons.get(text) or names.get(text, "")}
    invites = {row.id: row.person for row in people if row.person == text}
    if not invites:
        peer = find_peer(view, text)
        return {peer: names.get(peer, "")}
    theirs = {user["id"] for key in invites for user in users.get(key, [])}
    if others := {peer: name for peer, name in names.items() if name == text and peer not in theirs}:
        words = f"whom do you mean by {text!r:.{SHOWN}}? The person whom you have invited: {', '.join(invites)}"
        hint = "name one by its id; that of an invite means all its machines"
        raise ConfigError(f"{words}; or who only calls itself so: {', '.join(others)}", hint=hint)
    return invites


def find_bans(bans: Collection[Ban], people: Sequence[Invited], view: SwarmView, text: str) -> list[Ban]:
    """The bans that a person means: of all invites of a person, else of one peer, by its id or what it was called.

    Args:
        bans: those in force.

    Raises:
        ConfigError: nobody is banned who is called that, or more than one.
    """
    ids = {row.id for row in people if text in (row.person, row.id)} | {text}
    if found := [ban for ban in bans if ban.who in ids]:
        return found
    here: dict[str, str] = {record.peer: record.name for record in view.records}
    names = {ban.who: (ban.name or "", here.get(ban.who, "")) for ban in bans}
    meant = [ban for ban in bans if text in filter(None, names[ban.who]) or _is_part(text, ban.who)]
    if len(meant) == 1:
        return meant
    listing = _listed({who: then or now for who, (then, now) in names.items()}) or "nobody"
    several = {ban.who: ban.name or here.get(ban.who, "") for ban in meant}
    raise _unclear(text, several, f"who is banned: {listing}")


def _is_part(text: str, peer: str) -> bool:
    end = text.removeprefix(ELLIPSIS)
    return (len(text) >= MIN_BEGINNING and peer.startswith(text)) or (len(end) >= MIN_END and peer.endswith(end))


def _listed(found: dict[str, str]) -> str:
    return ", ".join(f"{plain(peer)} ({plain(name)})" if name else plain(peer) for peer, name in found.items())


def _unclear(text: str, found: dict[str, str], hint: str) -> ConfigError:
    if found:
        return ConfigError(f"whom do you mean by {text!r:.{SHOWN}}? {_listed(found)}", hint="name one by its id")
    if "".join(text.split()).startswith(PREFIX):  # which is as good as a password: it is not shown
        hint = "name the person whom it was made for, or its id: collab-peer invite DIR --list"
        return ConfigError("this is an invite, and neither a name nor an id", hint=hint)
    return ConfigError(f"nobody is meant by {text!r:.{SHOWN}}: it is no peer id, and no name that is known", hint=hint)
