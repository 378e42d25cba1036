"""Signed envelopes: what a peer leaves where anybody could have left it, and readers that know whose it is.

    msgpack([body, signature])      body: msgpack(values); signature: 64 bytes, of the purpose and the body

Records of the directory, orders, grants and passes all travel like this. After libp2p's signed envelopes (specs, RFC
0002), without the public key: the author's id holds it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgpack

from collab.errors import BadMessage
from collab.ports import Keys
from collab.swarm.identity import is_signed_by
from collab.types import PeerId

T = TypeVar("T")

IsSignedBy = Callable[[PeerId, bytes, bytes], bool]
"""See ``Keys.is_signed_by``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What all signed words of one kind have in common.

    ``unpack`` parses nothing that is longer than ``max_bytes``, and no values that their author has not signed for this
    purpose; whatever is wrong is a ``BadMessage``. Types and ranges, and whether the values are about their author and
    of this run, are for ``read`` to check. They may be old, and they may be lies: a signature says who, not what.
    """

    name: str
    """In errors."""
    max_bytes: int
    purpose: bytes = b""
    """Goes before what is signed: no other signature of a peer can be taken for this one. Empty: the values themselves
    begin as nothing else does that peers sign."""
    has_numbered_fields: bool = False
    """Whether the values are a map with numbers for keys; else no map in them has any."""

    def pack(self, values: Any, keys: Keys) -> bytes:
        """Signed bytes of ``values``, which msgpack knows."""
        body: bytes = msgpack.packb(values)
        signed: bytes = msgpack.packb([body, keys.sign(self.purpose + body)])
        return signed

    def unpack(
        self, data: object, author: PeerId, read: Callable[[Any], T], is_signed_by: IsSignedBy = is_signed_by
    ) -> T:
        """What ``read`` makes of the values that ``author`` has signed.

        Args:
            data: whatever came.
            read: takes plain values of any types, and raises ``BadMessage``, or what Python does, at wrong ones.
            is_signed_by: the reader's own, where its keys are a port.

        Raises:
            BadMessage: too large, malformed, not signed by ``author``, or refused by ``read``.
        """
        if not isinstance(data, bytes):
            raise BadMessage(f"{self.name} should be bytes, got {type(data).__name__}")
        if len(data) > self.max_bytes:
            raise BadMessage(f"{self.name} of {len(data)} bytes is over the limit of {self.max_bytes}")
        try:
            body, signature = msgpack.unpackb(data)
            if not isinstance(body, bytes) or not isinstance(signature, bytes):
                raise BadMessage(f"{self.name} is no pair of bytes")
            if not is_signed_by(author, self.purpose + body, signature):
                raise BadMessage(f"{self.name} is not signed by {author}")
            return read(msgpack.unpackb(body, strict_map_key=not self.has_numbered_fields))
        except (ValueError, TypeError, KeyError, OverflowError, msgpack.UnpackException) as error:
            raise BadMessage(f"{self.name} is malformed: {error!r}") from error

    @staticmethod
    def body(data: bytes) -> bytes:
        """Packed values inside ``data``, which ``unpack`` has found signed: their digest can name them."""
        body, _ = msgpack.unpackb(data)
        return bytes(body)
