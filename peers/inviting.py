"""``collab-peer invite``: invites for people, and who has one."""

import json
import math
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from collab.errors import BadMessage, ConfigError
from collab.swarm.access import MAX_DEVICES, MAX_PERSON_CHARACTERS, read_pass
from collab.swarm.bundle import Bundle
from collab.swarm.identity import Identity
from collab.swarm.invite import Invite, write_invite
from collab.swarm.mandate import Mandate
from collab.swarm.progress import SwarmView
from collab.swarm.statements import FOREVER, Ban
from collab.types import Role
from peers.event_words import count
from peers.ordered import plain, until_words, utc
from peers.owner import Estate, open_session, open_to_order
from peers.places import INVITES
from peers.process import announce

DAY_S = 86400.0
Users = dict[str, list[dict[str, str]]]
"""Ids and names of peers, by the id of the invite that they use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invited:
    """One line of the organiser's list."""

    id: str
    """Peer id of the invite's key: what is banned to revoke it."""
    person: str
    devices: int
    role: str
    made_at: float
    expires_at: float


def print_invite(directory: Path, person: str, *, devices: int, days: float, role: Role, as_json: bool) -> None:
    """Make an invite for one person: the word to give away goes to standard output.

    Raises:
        ConfigError: as ``invite``.
    """
    word, row = invite(directory, person, devices=devices, days=days, role=role)
    print(json.dumps({"invite": word, **asdict(row)}) if as_json else word)  # noqa: T201


def invite(directory: Path, person: str, *, devices: int, days: float, role: Role) -> tuple[str, Invited]:
    """A new invite for one person: the word to give away, and its line in the organiser's list.

    Raises:
        ConfigError: no backbone has served the run yet, the list cannot be written, or the name is too long.
    """
    if not 0 < len(person) <= MAX_PERSON_CHARACTERS or not 0 < devices <= MAX_DEVICES or not 0 < days < math.inf:
        raise ConfigError(
            f"an invite is for a name of 1 to {MAX_PERSON_CHARACTERS} characters, 1 to {MAX_DEVICES} devices and "
            f"some days; got {person!r}, {devices} and {days:g}",
            hint="for example: collab-peer invite DIR --name Anna --devices 5 --days 30",
        )
    estate = Estate.at(directory)
    key, now = Identity(Ed25519PrivateKey.generate()), time.time()
    papers = estate.papers(person, role, now + days * DAY_S, devices=devices, key=key)
    word = write_invite(
        Invite(
            run_id=estate.bundle.run.run_id,
            fingerprint=estate.bundle.fingerprint,
            owner=estate.owner.peer_id,
            addresses=estate.addresses(),
            papers=papers,
        ),
        estate.owner,
    )
    row = Invited(
        id=key.peer_id, person=person, devices=devices, role=role.value, made_at=now, expires_at=now + days * DAY_S
    )
    try:
        with (directory / INVITES).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row)) + "\n")
    except OSError as error:
        raise ConfigError(f"cannot write {directory / INVITES}: {error.strerror}", hint="make room for it") from error
    return word, row


def invited(directory: Path) -> list[Invited]:
    """All invites that were made here, oldest first.

    Raises:
        ConfigError: the list cannot be read.
    """
    try:
        lines = (directory / INVITES).read_text(encoding="utf-8").splitlines()
        return [Invited(**json.loads(line)) for line in lines]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"cannot read {directory / INVITES}: {error}", hint="restore it from a backup") from error


async def list_invites(directory: Path, *, as_json: bool) -> None:
    """Print who has an invite, what became of it, and which peers use it now, as their passes show."""
    async with open_session(directory) as session:
        users = users_of(session.view, session.estate.bundle) if session.started is not None else None
        rows = [_state_of(row, session.mandate, session.now(), users) for row in invited(directory)]
    if as_json:
        print(json.dumps({"invites": rows}))  # noqa: T201
        return
    for line in rows:
        print(_words(line))  # noqa: T201
    if not rows:
        announce("nobody has been invited by name yet")
    elif users is None:
        announce("no backbone answers: which peers use them now nobody can say")


def users_of(view: SwarmView, bundle: Bundle) -> Users:
    """Who is here with which invite, by the invite's id."""
    found: Users = {}
    for record in view.records:
        if not record.credential:
            continue
        with suppress(BadMessage):
            shown = read_pass(record.credential, bundle.fingerprint, bundle.owner)
            if shown.device == record.peer:
                found.setdefault(shown.grant.key, []).append({"id": record.peer, "name": record.name})
    return found


def _state_of(row: Invited, mandate: Mandate, now: float, users: Users | None) -> dict[str, Any]:
    """A line of the list as JSON values.

    Args:
        now: swarm time.
        users: None: nobody could be asked.
    """
    ban = mandate.ban_of(row.id, now)
    state = "revoked" if ban is not None else "expired" if now >= row.expires_at else "valid"
    return {
        **asdict(row),
        "state": state,
        "reason": None if ban is None else ban.reason,
        "revoked_until": None if ban is None or ban.until_s == FOREVER else ban.until_s,
        "used_by": None if users is None else users.get(row.id, []) if state == "valid" else [],
    }


def _words(line: dict[str, Any]) -> str:
    devices, ends = count(line["devices"], "device"), utc(line["expires_at"])
    words = f"{line['person']:<24} {line['state']:<8} until {ends}  {devices:>11}  {line['id']}"
    if line["state"] == "revoked":
        words += f"  revoked {until_words(line['revoked_until'])}: {plain(line['reason'])}"
    if line["used_by"]:
        words += f"  used by {', '.join(plain(user['name']) for user in line['used_by'])}"
    return words


async def revoke(directory: Path, person: str, reason: str, *, as_json: bool) -> None:
    """Make the invites of a person worthless, now.

    Raises:
        ConfigError: nobody of that name was invited.
    """
    rows = [row for row in invited(directory) if person in (row.person, row.id)]
    if not rows:
        raise ConfigError(f"nobody called {person!r} was invited", hint="see: collab-peer invite DIR --list")
    async with open_to_order(directory) as session:
        taken = True
        for row in rows:
            order = Ban(who=row.id, reason=reason or "the invite was revoked", name=row.person)
            taken = await session.say(order) and taken
    if as_json:
        print(json.dumps({"revoked": [row.id for row in rows], "is_known": taken}))  # noqa: T201
        return
    told = "the swarm knows" if taken else "the swarm will know when the backbone runs"
    announce(f"revoked {len(rows)} invite{'s' if len(rows) > 1 else ''} of {person}; {told}")
