"""A peer's identity: its libp2p Ed25519 key. The peer id holds the public key, so a signature needs no other lookup."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import base58
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

from collab.errors import ConfigError
from collab.lately import kept_lately
from collab.types import LONGEST_ID, PeerId

PRIVATE_PREFIX = bytes((0x08, 0x01, 0x12, 0x40))
"""libp2p's protobuf for a private key: field 1 = type 1 (Ed25519), field 2 = 64 bytes, seed then public key."""
PUBLIC_PREFIX = bytes((0x00, 0x24, 0x08, 0x01, 0x12, 0x20))
"""Identity multihash of 36 bytes holding libp2p's protobuf for an Ed25519 public key of 32 bytes."""
KNOWN_KEYS = 256
"""Of peers, whose ids are not decoded anew for each signature: that costs about as much as to look at it."""


@dataclass(frozen=True)  # without slots, which would leave no place for what is computed once
class Identity:
    """A key pair. Never logged, never sent. Implements ``Keys``."""

    key: Ed25519PrivateKey

    @classmethod
    def from_seed(cls, seed: bytes) -> "Identity":
        """Identity of a 32-byte seed; the simulation derives these from its own."""
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    @cached_property
    def peer_id(self) -> PeerId:
        """libp2p peer id in base58. Computed once: it is asked for with every record."""
        return PeerId(base58.b58encode(PUBLIC_PREFIX + self.key.public_key().public_bytes_raw()).decode())

    def sign(self, content: bytes) -> bytes:
        """64-byte signature of ``content``."""
        return self.key.sign(content)

    @staticmethod
    def is_signed_by(peer: PeerId, content: bytes, signature: bytes) -> bool:
        """See the function of this name."""
        return is_signed_by(peer, content, signature)

    def to_libp2p(self) -> bytes:
        """Content of a libp2p key file."""
        return PRIVATE_PREFIX + self.key.private_bytes_raw() + self.key.public_key().public_bytes_raw()


def load_or_create_identity(path: Path) -> Identity:
    """Identity kept in a libp2p key file (mode 0600); made at the first call.

    Raises:
        ConfigError: the file cannot be read or written, or is no Ed25519 key.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return _create(path)
    except OSError as error:
        raise ConfigError(
            f"cannot read the identity {path}: {error}", hint="check its owner; it should be yours"
        ) from error
    seed = content[len(PRIVATE_PREFIX) :][:32]
    if len(seed) != 32 or Identity.from_seed(seed).to_libp2p() != content:
        raise ConfigError(
            f"{path} is not an Ed25519 key", hint="move the file away; a new identity is made at the next start"
        )
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)
    return Identity.from_seed(seed)


def _create(path: Path) -> Identity:
    identity = Identity(Ed25519PrivateKey.generate())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(identity.to_libp2p())
        except OSError:
            path.unlink()  # a part of a key is none, and would be in the way of the next one
            raise
    except FileExistsError:
        return load_or_create_identity(path)
    except OSError as error:
        hint = "free some space on that disk, or name another directory"
        raise ConfigError(f"cannot write the identity {path}: {error.strerror}", hint=hint) from error
    return identity


def is_peer_id(text: str) -> bool:
    """Whether this can be the id of a peer, or of an invite's key: there is a public key in it."""
    key = _public_key_in(text)
    return key is not None and text == base58.b58encode(PUBLIC_PREFIX + key).decode()


def _public_key_in(peer: str) -> bytes | None:
    """None: a malformed id."""
    if len(peer) > LONGEST_ID:
        return None
    try:
        raw = base58.b58decode(peer)
    except ValueError:
        return None
    is_key = len(raw) == len(PUBLIC_PREFIX) + 32 and raw.startswith(PUBLIC_PREFIX)
    return raw[len(PUBLIC_PREFIX) :] if is_key else None


def is_signed_by(peer: PeerId, content: bytes, signature: bytes) -> bool:
    """Whether ``signature`` over ``content`` was made with the key inside ``peer``; False for a malformed id."""
    if len(peer) > LONGEST_ID or (key := _known_key_in(peer)) is None:  # no key of the cache's is long, either
        return False
    try:
        VerifyKey(key).verify(content, signature)
    except (BadSignatureError, ValueError):  # or it is not 64 bytes long
        return False
    return True


_known_key_in = kept_lately(KNOWN_KEYS)(_public_key_in)
