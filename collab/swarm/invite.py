"""Invites: all that a volunteer needs, in one word that survives copying.

``collab1-`` + base64url(msgpack fields + the owner's signature + 4 bytes of checksum).
"""

import base64
import binascii
import hashlib
from dataclasses import dataclass

import msgpack

from collab.errors import InviteError
from collab.swarm.identity import Identity, is_signed_by
from collab.types import PeerId

PREFIX = "collab1-"
CHECKSUM_BYTES = 4
ASK_AGAIN = "copy the whole invite again, or ask the organiser for a new one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Invite:
    """Which run, and where to find it."""

    run_id: str
    fingerprint: str
    owner: PeerId
    """Key that signed the invite."""
    addresses: tuple[str, ...]
    """Multiaddresses of bootstrap peers, best first."""


def write_invite(invite: Invite, owner: Identity) -> str:
    """One word, signed by the run's owner.

    Raises:
        ValueError: ``owner`` is not the invite's.
    """
    if owner.peer_id != invite.owner:
        raise ValueError("an invite is signed by the owner it names")
    body: bytes = msgpack.packb([invite.run_id, invite.fingerprint, invite.owner, list(invite.addresses)])
    signed: bytes = msgpack.packb([body, owner.sign(body)])
    checked = signed + hashlib.sha256(signed).digest()[:CHECKSUM_BYTES]
    return PREFIX + base64.urlsafe_b64encode(checked).decode().rstrip("=")


def read_invite(text: str) -> Invite:
    """Invite from what a person pasted.

    Raises:
        InviteError: it is cut, garbled, of another version, or not signed by the owner it names.
    """
    word = "".join(text.split())
    if not word.startswith(PREFIX):
        raise InviteError(f"an invite begins with {PREFIX!r}, got {word[:12]!r}", hint=ASK_AGAIN)
    encoded = word.removeprefix(PREFIX)
    try:
        checked = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise InviteError("the invite has characters that no invite has", hint=ASK_AGAIN) from error
    signed, checksum = checked[:-CHECKSUM_BYTES], checked[-CHECKSUM_BYTES:]
    # the last character has spare bits, which must be zero
    is_canonical = base64.urlsafe_b64encode(checked).decode().rstrip("=") == encoded
    if not is_canonical or not signed or hashlib.sha256(signed).digest()[:CHECKSUM_BYTES] != checksum:
        raise InviteError("the invite is cut or garbled: its checksum does not match", hint=ASK_AGAIN)
    try:
        body, signature = msgpack.unpackb(signed)
        run_id, fingerprint, owner, addresses = msgpack.unpackb(body)
        invite = Invite(
            run_id=str(run_id),
            fingerprint=str(fingerprint),
            owner=PeerId(str(owner)),
            addresses=tuple(map(str, addresses)),
        )
        is_signed = is_signed_by(invite.owner, body, signature)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise InviteError("the invite's content is malformed", hint=ASK_AGAIN) from error
    if not is_signed:
        raise InviteError("the invite is not signed by the owner it names", hint="do not use it; ask the organiser")
    return invite
