"""Grants and passes: how a peer shows that the run's owner has invited the person behind it.

The owner signs a *grant*: a person, a number of devices, an end, a role, and the public key of the invite. The invite
holds the private half of that key, so whoever has the invite, and nobody else, can sign *passes* for devices with it.
A pass is valid for minutes and its device renews it by itself; anybody can check it without asking anybody.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgpack

from collab.errors import BadMessage
from collab.lately import kept_lately
from collab.net.wire import Message
from collab.swarm.envelope import Envelope
from collab.swarm.identity import Identity
from collab.types import PeerId, Role

GRANT_TAG, PASS_TAG = "collab/grant/1", "collab/pass/1"
GUEST_TAG = "collab/guest/1"
"""In a pass of who looks only."""
PASS_LIFE_S = 600.0
"""Of a device that has vanished: then another one of the same invite may take its place."""
CLOCK_ERROR_S = 15.0
"""A pass may be from so far in the future: as far as a record."""
MAX_PASS_BYTES = 1024
PASSES_KEPT = 1024
"""As they were read: each is looked at with each record of its peer."""
MAX_DEVICES = 100
MAX_PERSON_CHARACTERS = 40
GRANT_ENVELOPE = Envelope(name=GRANT_TAG, max_bytes=MAX_PASS_BYTES)
PASS_ENVELOPE = Envelope(name=PASS_TAG, max_bytes=MAX_PASS_BYTES)
"""Without its grant. Neither has a purpose: their values begin with their tags."""
GRANTED_ROLES = (Role.TRAINER, Role.BACKBONE)
"""What a grant may be for; a trainer's also covers helping as an auxiliary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What the owner has said of one invite."""

    fingerprint: str
    key: PeerId
    """Of the invite: names it, and signs its passes."""
    person: str
    devices: int
    """Peers of this invite at the same time."""
    expires_at: float
    """Swarm time."""
    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What the holder of an invite has said of one device."""

    grant: Grant
    device: PeerId
    since: float
    """Swarm time at which the device first came; the first ones of an invite keep their places."""
    expires_at: float
    is_guest: bool = False
    """Whether it looks at the run only, and takes no device's place."""


def pack_grant(grant: Grant, owner: Identity) -> bytes:
    """Signed by the owner of the run."""
    values = [grant.fingerprint, grant.key, grant.person, grant.devices, grant.expires_at, grant.role.value]
    return GRANT_ENVELOPE.pack([GRANT_TAG, *values], owner)


def pack_pass(papers: "Papers", device: PeerId, *, since: float, now: float) -> bytes:
    """Signed with the invite's key.

    Args:
        since: swarm time at which the device first came.
    """
    tag = GUEST_TAG if papers.are_guests else PASS_TAG
    body = PASS_ENVELOPE.pack([tag, device, since, now + PASS_LIFE_S], papers.key)
    packed: bytes = msgpack.packb([papers.grant, body])
    return packed


def read_grant(data: bytes, fingerprint: str, owner: PeerId) -> Grant:
    """A grant of this run.

    Raises:
        BadMessage: malformed, of another run, or not signed by its owner.
    """
    run, key, person, devices, expires_at, role = GRANT_ENVELOPE.unpack(data, owner, _grant_row)
    if run != fingerprint:
        raise BadMessage("the grant is for another run")
    if not (0 < devices <= MAX_DEVICES and len(person) <= MAX_PERSON_CHARACTERS and role in GRANTED_ROLES):
        raise BadMessage("the grant holds impossible values")
    return Grant(
        fingerprint=fingerprint,
        key=PeerId(key),
        person=person,
        devices=devices,
        expires_at=expires_at,
        role=Role(role),
    )


@kept_lately(PASSES_KEPT)
def read_pass(data: bytes, fingerprint: str, owner: PeerId) -> Pass:
    """A pass of this run, whether it is still valid or not.

    Raises:
        BadMessage: malformed, or not signed with the key of an invite of the owner's.
    """
    if len(data) > MAX_PASS_BYTES:
        raise BadMessage(f"a pass of {len(data)} bytes is over the limit of {MAX_PASS_BYTES}")
    try:
        granted, body = msgpack.unpackb(data)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise BadMessage(f"the pass is malformed: {error!r}") from error
    grant = read_grant(granted, fingerprint, owner)
    tag, device, since, expires_at = PASS_ENVELOPE.unpack(body, grant.key, _pass_row)
    return Pass(grant=grant, device=PeerId(device), since=since, expires_at=expires_at, is_guest=tag == GUEST_TAG)


def _grant_row(values: Any) -> list[Any]:
    return _row((GRANT_TAG,), (str, str, str, int, float, str), values)[1:]


def _pass_row(values: Any) -> list[Any]:
    return _row((PASS_TAG, GUEST_TAG), (str, float, float), values)


def _row(tags: tuple[str, ...], kinds: tuple[type, ...], values: Any) -> list[Any]:
    """Checked values, the tag first."""
    (row,) = Message(tags[0], {"values": [values]}).rows("values", str, *kinds)
    if row[0] not in tags:
        raise BadMessage(f"expected {' or '.join(tags)}, got {row[0]!r:.40}")
    return row


@dataclass(frozen=True, slots=True, kw_only=True)
class Papers:
    """What an invite gives a peer to show."""

    grant: bytes
    """As the owner signed it."""
    key: Identity
    """Of the invite."""
    are_guests: bool = False
    """Whether its passes are for looking only."""

    def role(self, fingerprint: str, owner: PeerId) -> Role:
        """What the invite is for. Raises ``BadMessage`` as ``read_grant``."""
        return read_grant(self.grant, fingerprint, owner).role

    def credentials(self, device: PeerId, clock: Callable[[], float]) -> "Credentials":
        """The passes of one device; ``clock`` is swarm time."""
        return Credentials(self, device, clock)


class Credentials:
    """The pass of this device, renewed before it runs out."""

    def __init__(self, papers: Papers, device: PeerId, clock: Callable[[], float]) -> None:
        self._papers, self._device, self._clock = papers, device, clock
        self._since: float | None = None
        self._made_at, self._packed = 0.0, b""

    def current(self) -> bytes:
        """Valid for at least half of a pass's life."""
        now = self._clock()
        if self._since is None:
            self._since = now
        if not self._packed or not 0 <= now - self._made_at < PASS_LIFE_S / 2:
            self._packed = pack_pass(self._papers, self._device, since=min(self._since, now), now=now)
            self._made_at = now
        return self._packed
