"""Records of the directory belong to whom they are named after.

The directory keeps, of two records under one name, the one that ends later. So whoever could store under another's
name could keep that peer's own words out, with an old record of its or with nonsense. Each keeper, and each reader,
therefore checks that a record was signed for this key, this name and this end by the peer that it is named after.
"""

import hashlib
import struct
from collections.abc import Callable

import msgpack

from collab.net.base import LARGEST_RECORD_BYTES, LONGEST_RECORD_S, owner_of
from collab.net.hivemind_parts import DHTRecord, MSGPackSerializer, RecordValidatorBase
from collab.newest import Newest
from collab.ports import Keys

PURPOSE = b"collab/record/1"
"""Goes before what is signed: no other signature of a peer can be taken for this one."""
SIGNATURE_BYTES = 64
REMEMBERED = 8192
"""Names of records whose signature was checked: most are read again and again."""


class OwnedRecords(RecordValidatorBase):  # type: ignore[misc]
    """hivemind's way to let a node check what it keeps and reads."""

    def __init__(self, keys: Keys, now: Callable[[], float]) -> None:
        """
        Args:
            now: swarm time.
        """
        self._keys, self.now = keys, now
        self._signed: Newest[bool] = Newest(REMEMBERED)

    def sign_value(self, record: DHTRecord) -> bytes:
        """The value with our signature behind it."""
        return bytes(record.value) + self._keys.sign(_signed_content(record, record.value))

    def validate(self, record: DHTRecord) -> bool:
        """Whether its owner made it, of bytes as all of ours are, it is no larger than they are, and ends in time."""
        value, signature = record.value[:-SIGNATURE_BYTES], record.value[-SIGNATURE_BYTES:]
        name = _name(record.subkey)
        ends_in_time = record.expiration_time <= self.now() + LONGEST_RECORD_S  # NaN does not
        is_large = len(record.subkey) + len(record.value) > LARGEST_RECORD_BYTES
        if name is None or len(signature) < SIGNATURE_BYTES or is_large or not ends_in_time:
            return False
        content, place = _signed_content(record, value), (bytes(record.key), name)
        version = hashlib.sha256(content + bytes(signature)).digest()
        if self._signed.get(place, version):
            return True
        is_right = self._keys.is_signed_by(owner_of(name), content, bytes(signature))
        is_right &= isinstance(_unpacked(value), bytes)  # else hivemind fails amid a search
        return is_right and self._signed.put(place, version, is_right)

    def strip_value(self, record: DHTRecord) -> bytes:
        """The value as it was stored."""
        return bytes(record.value[:-SIGNATURE_BYTES])


def _name(subkey: bytes) -> str | None:
    name = _unpacked(subkey)
    return name if isinstance(name, str) else None


def _unpacked(packed: bytes) -> object:
    try:
        return MSGPackSerializer.loads(packed)
    except (ValueError, TypeError, msgpack.UnpackException):
        return None


def _signed_content(record: DHTRecord, value: bytes) -> bytes:
    parts = (bytes(record.key), bytes(record.subkey), bytes(value))
    sizes = struct.pack("<3I", *(len(part) for part in parts))
    return b"".join((PURPOSE, sizes, *parts, struct.pack("<d", record.expiration_time)))
