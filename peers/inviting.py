"""``collab-peer invite``: invites for people, and who has one."""

import fcntl
import json
import math
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from collab.durable import sync_directory
from collab.errors import BadMessage, ConfigError
from collab.swarm.access import MAX_DEVICES, MAX_PERSON_CHARACTERS, read_pass
from collab.swarm.bundle import Bundle
from collab.swarm.dates import utc
from collab.swarm.identity import Identity, is_peer_id
from collab.swarm.invite import Invite, write_invite
from collab.swarm.mandate import Mandate
from collab.swarm.progress import SwarmView
from collab.swarm.statements import FOREVER, Ban
from collab.types import Role
from peers.disk_remedy import remedy
from peers.event_words import count
from peers.ordered import plain, until_words
from peers.owner import Estate, open_session, open_to_order
from peers.places import INVITES
from peers.process import announce
from peers.served import check_is_served

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
        ConfigError: no backbone has served the run yet, or it serves another one; the list cannot be written, or the
            name is too long.
    """
    person = person.strip()
    if not 0 < len(person) <= MAX_PERSON_CHARACTERS or not 0 < devices <= MAX_DEVICES or not 0 < days < math.inf:
        raise ConfigError(
            f"an invite is for a name of 1 to {MAX_PERSON_CHARACTERS} characters, 1 to {MAX_DEVICES} devices and "
            f"some days; got {person!r}, {devices} and {days:g}",
            hint="for example: collab-peer invite DIR --name Anna --devices 5 --days 30",
        )
    estate = Estate.at(directory)
    check_is_served(directory, estate.bundle.fingerprint)
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
    path = directory / INVITES
    try:
        _append(path, json.dumps(asdict(row)))
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}", hint=remedy(path, error)) from error
    return word, row


def _append(path: Path, line: str) -> None:
    """Add a line that outlives a power cut, whatever the last one left behind; where that fails, nothing is added.

    Raises:
        OSError: the disk is full or not writable.
    """
    with path.open("a+b", buffering=0) as file:
        with suppress(OSError):  # a network's file system may have no locks
            fcntl.flock(file, fcntl.LOCK_EX)  # of two at once neither takes the other's line back
        size = file.seek(0, os.SEEK_END)
        is_torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
        rest = ("\n" * is_torn + line + "\n").encode()
        try:
            while rest:
                rest = rest[file.write(rest) :]  # a disk that is almost full takes a part
            os.fsync(file.fileno())
            if size == 0:
                sync_directory(path.parent)
        except OSError:
            with suppress(OSError):
                file.truncate(size)
            raise


def invited(directory: Path) -> list[Invited]:
    """All invites that were made here, oldest first; a line that cannot be read is left out, and said.

    Raises:
        ConfigError: none of the list can be read.
    """
    path = directory / INVITES
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", hint=remedy(path, error)) from error
    found: list[Invited] = []
    torn: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue  # as an editor leaves behind
        try:
            found.append(_read_line(line))
        except (ValueError, KeyError, TypeError, ArithmeticError, RecursionError):
            torn.append(str(number))
    if torn:
        text = f"problem: whom {path} names in line {', '.join(torn)} cannot be read, and is left out"
        announce(f"{text}\n  -> mend it, or restore it from a backup; peers can be banned by their ids meanwhile")
    return found


def _read_line(line: bytes) -> Invited:
    """One line, as this version or a later one has written it."""
    told = json.loads(line)
    return Invited(
        id=str(told["id"]),
        person=str(told["person"]).strip(),
        devices=int(told["devices"]),
        role=str(told["role"]),
        made_at=float(told["made_at"]),
        expires_at=float(told["expires_at"]),
    )


def invited_for(directory: Path, who: str) -> list[Invited]:
    """As ``invited``; nobody, where the list cannot be read and ``who`` is a whole id, for which it is not needed.

    Raises:
        ConfigError: none of it can be read, and it is needed.
    """
    try:
        return invited(directory)
    except ConfigError as error:
        if not is_peer_id(who):
            raise
        announce(f"problem: {error}")
        return []


async def list_invites(directory: Path, *, as_json: bool) -> None:
    """Print who has an invite, what became of it, and which peers use it now, as their passes show."""
    async with open_session(Estate.at(directory)) as session:
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
        ConfigError: nobody of that name was invited, or the list cannot be read.
    """
    person = person.strip()
    rows = [row for row in invited(directory) if person in (row.person, row.id)]
    if not rows:
        hint = "see: collab-peer invite DIR --list; an id that is not in it: collab-peer ban DIR ID"
        raise ConfigError(f"nobody called {person!r} was invited", hint=hint)
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
