"""What a backbone says of itself beside its ``PeerRecord``: where it is reached, its claim to the lease, what is
published. Signed, bounded, expiring; under one key of the directory, one record for each backbone.
"""

import math
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from collab.errors import BadMessage
from collab.newest import Newest
from collab.swarm.envelope import Envelope
from collab.swarm.identity import Identity
from collab.swarm.lease import MAX_TERM, Claim, Tenure
from collab.types import Lineage, PeerId

PURPOSE = b"collab/backbone/1"
"""Goes before what is signed: no other signature of a peer can be taken for this one."""
MAX_BYTES = 3072
"""Eight addresses of the longest kind, and 0.6 KB for the rest."""
REMEMBERED = 256
"""Peers whose newest records were read, of at most ``MAX_BYTES`` each."""
ENVELOPE = Envelope(name="backbone record", purpose=PURPOSE, max_bytes=MAX_BYTES)
MAX_ADDRESSES, MAX_ADDRESS_CHARACTERS = 8, 256
DIGEST_CHARACTERS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """One published snapshot: whose bytes, and under which tenure they became the run's."""

    epoch: int
    lineage: Lineage
    digest: str
    """Of the packed snapshot's chunks: names the bytes. 64 hex digits."""
    term: int
    holder: PeerId
    eval_loss: float = math.nan
    """Of this very state; NaN: not measured."""

    @property
    def tenure(self) -> Tenure:
        """Under which it was published."""
        return Tenure(self.term, self.holder)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackboneRecord:
    """One backbone's word. Nothing in it is proven but who said it."""

    fingerprint: str
    claim: Claim
    addresses: tuple[str, ...] = ()
    """Multiaddresses under which it can be dialled."""
    published: Publication | None = None
    """The newest snapshot that it holds of those published, by itself or by others."""

    @property
    def peer(self) -> PeerId:
        """Whose word it is."""
        return self.claim.peer


def pack_backbone(record: BackboneRecord, identity: Identity) -> bytes:
    """Signed bytes of ``record``."""
    values = {
        "fingerprint": record.fingerprint,
        "claim": asdict(record.claim),
        "addresses": list(record.addresses),
        "published": asdict(record.published) if record.published else None,
    }
    return ENVELOPE.pack(values, identity)


_READ: Newest[BackboneRecord] = Newest(REMEMBERED)


def unpack_backbone(data: bytes, peer: PeerId) -> BackboneRecord:
    """Record of ``peer`` from the directory. What was verified once is remembered.

    Raises:
        BadMessage: too large, malformed, not signed by ``peer``, or holding impossible values.
    """
    if (known := _READ.get(peer, data)) is not None:
        return known
    return _READ.put(peer, data, ENVELOPE.unpack(data, peer, partial(_checked, peer=peer)))


def _checked(fields: Any, peer: PeerId) -> BackboneRecord:
    told = fields["published"]
    record = BackboneRecord(
        fingerprint=fields["fingerprint"],
        claim=Claim(**_typed(fields["claim"], Claim)),
        addresses=tuple(fields["addresses"]),
        published=None if told is None else Publication(**_typed(told, Publication)),
    )
    _check(record, peer)
    return record


def _typed(values: Any, kind: type) -> dict[str, Any]:
    """Values of exactly the types that the fields of ``kind`` have."""
    typed: dict[str, Any] = {}
    for name, annotation in kind.__annotations__.items():
        expected: Any = getattr(annotation, "__supertype__", annotation)
        value = float(values[name]) if expected is float and type(values[name]) is int else values[name]
        if type(value) is not expected:
            raise TypeError(f"{name} should be {expected.__name__}, got {type(value).__name__}")
        typed[name] = value
    return typed


def _check(record: BackboneRecord, peer: PeerId) -> None:
    """Raises ``BadMessage`` for what no honest backbone says."""
    claim, published = record.claim, record.published
    is_possible = (
        claim.peer == peer
        and type(record.fingerprint) is str
        and 0 <= claim.term <= MAX_TERM
        and 0 <= claim.seen_term <= MAX_TERM
        and len(claim.seen_holder) <= 2 * DIGEST_CHARACTERS
        and claim.epoch >= -1
        and math.isfinite(claim.said_at)
        and math.isfinite(claim.since)
        and len(record.addresses) <= MAX_ADDRESSES
        and all(type(text) is str and len(text) <= MAX_ADDRESS_CHARACTERS for text in record.addresses)
        and all(text.endswith(f"/p2p/{peer}") for text in record.addresses)
    )
    if published is not None:
        is_possible = is_possible and (
            published.epoch >= 0
            and 0 <= published.term <= MAX_TERM
            and len(published.digest) == DIGEST_CHARACTERS
            and max(len(published.lineage), len(published.holder)) <= 2 * DIGEST_CHARACTERS
        )
    if not is_possible:
        raise BadMessage("backbone record holds impossible values")
