"""Signatures that were found good, so that what a thousand peers of one process read is verified once."""

import hashlib
from collections import OrderedDict

from collab.ports import Keys
from collab.types import PeerId

REMEMBERED = 1 << 15
"""Some 13 MB: a few words each of a thousand peers, and the votes of a round."""


class KnownSignatures:
    """Of one world. A check of a signature takes a quarter of a millisecond, and no virtual time."""

    def __init__(self) -> None:
        self._good: OrderedDict[tuple[PeerId, bytes, bytes], None] = OrderedDict()

    def has(self, peer: PeerId, digest: bytes, signature: bytes) -> bool:
        """Whether it was found good not long ago."""
        key = peer, digest, signature
        if key not in self._good:
            return False
        self._good.move_to_end(key)
        return True

    def add(self, peer: PeerId, digest: bytes, signature: bytes) -> None:
        """It was found good."""
        self._good[peer, digest, signature] = None
        if len(self._good) > REMEMBERED:
            self._good.popitem(last=False)


class SharingKeys:
    """One peer's keys, and what all have verified. Implements ``Keys``."""

    def __init__(self, keys: Keys, known: KnownSignatures) -> None:
        self._keys, self._known = keys, known

    def sign(self, content: bytes) -> bytes:
        """See ``Keys``."""
        return self._keys.sign(content)

    def is_signed_by(self, peer: PeerId, content: bytes, signature: bytes) -> bool:
        """See ``Keys``. What was not good is checked again."""
        digest = hashlib.sha256(content).digest()
        if self._known.has(peer, digest, signature):
            return True
        is_good = self._keys.is_signed_by(peer, content, signature)
        if is_good:
            self._known.add(peer, digest, signature)
        return is_good
