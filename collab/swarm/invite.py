"""Invites: all that a volunteer needs, in one word that survives copying.

``collab2-`` + base64url(msgpack fields + the owner's signature + 4 bytes of checksum). An invite for one person holds a
key, too: keep it like a password.
"""

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass

import msgpack

from collab.errors import BadMessage, InviteError
from collab.swarm.access import Papers, read_grant
from collab.swarm.identity import Identity, is_signed_by
from collab.types import RUN_ID, PeerId

PREFIX = "collab2-"
OLDER_PREFIXES = ("collab1-",)
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
    papers: Papers | None = None
    """What shows that the owner has invited one person; None: an invite for everybody."""


def write_invite(invite: Invite, owner: Identity) -> str:
    """One word, signed by the run's owner.

    Raises:
        ValueError: ``owner`` is not the invite's.
    """
    if owner.peer_id != invite.owner:
        raise ValueError("an invite is signed by the owner it names")
    papers = [] if invite.papers is None else [invite.papers.grant, invite.papers.key.key.private_bytes_raw()]
    body: bytes = msgpack.packb([invite.run_id, invite.fingerprint, invite.owner, list(invite.addresses), papers])
    signed: bytes = msgpack.packb([body, owner.sign(body)])
    checked = signed + hashlib.sha256(signed).digest()[:CHECKSUM_BYTES]
    return PREFIX + base64.urlsafe_b64encode(checked).decode().rstrip("=")


def read_invite(text: str) -> Invite:
    """Invite from what a person pasted.

    Raises:
        InviteError: it is cut, garbled, of another version, not signed by the owner it names, or of a run that has no
            run's name.
    """
    word = "".join(text.split())
    if word.startswith(OLDER_PREFIXES):
        raise InviteError("the invite was made by an older version of collab", hint="ask the organiser for a new one")
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
        run_id, fingerprint, owner, addresses, papers = msgpack.unpackb(body)
        invite = Invite(
            run_id=str(run_id),
            fingerprint=str(fingerprint),
            owner=PeerId(str(owner)),
            addresses=tuple(map(str, addresses)),
            papers=Papers(grant=papers[0], key=Identity.from_seed(papers[1])) if papers else None,
        )
        is_signed = is_signed_by(invite.owner, body, signature)
        if invite.papers is not None and is_signed:
            read_grant(invite.papers.grant, invite.fingerprint, invite.owner)
    except (ValueError, TypeError, IndexError, BadMessage, msgpack.UnpackException) as error:
        raise InviteError("the invite's content is malformed", hint=ASK_AGAIN) from error
    if not is_signed:
        raise InviteError("the invite is not signed by the owner it names", hint="do not use it; ask the organiser")
    if re.fullmatch(RUN_ID, invite.run_id) is None:  # directories of this machine get this name
        raise InviteError(f"no run can be called {invite.run_id!r:.60}", hint="do not use it; ask the organiser")
    return invite
