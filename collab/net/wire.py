"""Messages on the wire: a fixed prefix, a msgpack header, raw bytes.

    offset  size  what
    0       3     b"CLB"
    3       1     protocol version
    4       4     header bytes, big endian, at most MAX_HEADER_BYTES
    8       4     payload bytes, big endian, at most MAX_PAYLOAD_BYTES
    12      h     msgpack map: "kind" and the message's fields
    12+h    p     payload: tensor bytes, never copied into the header

Nothing here is trusted: lengths are checked before anything is read, and msgpack yields plain values only.
"""

import struct
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgpack

from collab.errors import BadMessage, TooLarge, VersionMismatch

MAGIC = b"CLB"
PROTOCOL_VERSION = 1
PREFIX = struct.Struct(">3sBII")
MAX_HEADER_BYTES = 1 << 20
"""The largest header is a snapshot's tensor table: about 100 bytes a tensor, so 10,000 tensors fit."""
MAX_PAYLOAD_BYTES = 8 << 20
"""The largest payload is a chunk of a snapshot (1 MiB) or of a vector; the rest is room to grow."""

V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    """What a message may have, where its protocol needs less than the wire allows."""

    header_bytes: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class Message:
    """One message. ``fields`` holds msgpack's plain values: None, bool, int, float, str, bytes, list, dict."""

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)
    payload: bytes | bytearray | memoryview = b""

    def get(self, name: str, kind: type[V]) -> V:
        """Field ``name``, checked to be a ``kind`` (an int where a float is asked for is converted).

        Raises:
            BadMessage: the field is missing or of another type.
        """
        value = self.fields.get(name)
        if kind is float and type(value) is int:
            return float(value)  # type: ignore[return-value]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise BadMessage(f"{self.kind}: field {name!r} should be {kind.__name__}, got {type(value).__name__}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """Field ``name``, checked to be a list of texts.

        Raises:
            BadMessage: it is anything else.
        """
        texts = self.get(name, list)
        if not all(type(text) is str for text in texts):
            raise BadMessage(f"{self.kind}: field {name!r} should hold texts only")
        return tuple(texts)

    def rows(self, name: str, *kinds: type) -> list[list[Any]]:
        """Field ``name``, checked to be a list of lists that hold one value of each of ``kinds``.

        Raises:
            BadMessage: it is anything else.
        """
        table: list[list[Any]] = []
        exact = list(kinds)
        for row in self.get(name, list):
            if isinstance(row, list) and list(map(type, row)) == exact:  # a round of 2,000 has 10,000 such rows
                table.append(row[:])
                continue
            if not isinstance(row, list) or len(row) != len(kinds):
                raise BadMessage(f"{self.kind}: field {name!r} should hold lists of {len(kinds)} values")
            cells = Message(self.kind, {f"{name}[{column}]": value for column, value in enumerate(row)})
            table.append([cells.get(place, kind) for place, kind in zip(cells.fields, kinds, strict=True)])
        return table


def encode(message: Message) -> tuple[bytes, bytes | bytearray | memoryview]:
    """Prefix and header as one buffer, and the payload untouched.

    Raises:
        ValueError: over a limit; the sender's own mistake.
    """
    header = msgpack.packb({"kind": message.kind, **message.fields}, use_bin_type=True)
    payload_bytes = memoryview(message.payload).nbytes
    if len(header) > MAX_HEADER_BYTES or payload_bytes > MAX_PAYLOAD_BYTES:
        raise ValueError(
            f"{message.kind}: header of {len(header)} or payload of {payload_bytes} bytes is over the limit"
        )
    return PREFIX.pack(MAGIC, PROTOCOL_VERSION, len(header), payload_bytes) + header, message.payload


def decode_prefix(prefix: bytes, largest: Largest | None = None) -> tuple[int, int]:
    """Lengths of header and payload that follow a prefix of ``PREFIX.size`` bytes.

    Args:
        largest: None: what the wire allows.

    Raises:
        BadMessage: not our magic, or a length over its limit; over that of ``largest``: TooLarge.
        VersionMismatch: another protocol version.
    """
    magic, version, header_bytes, payload_bytes = PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise BadMessage(f"expected a collab message, got bytes {prefix[:3]!r}")
    if version != PROTOCOL_VERSION:
        older = "they" if version < PROTOCOL_VERSION else "we"
        raise VersionMismatch(
            f"protocol version {PROTOCOL_VERSION} here, {version} there",
            hint=f"{older} must upgrade collab to talk to the other side",
        )
    if largest is not None and (header_bytes > largest.header_bytes or payload_bytes > largest.payload_bytes):
        raise TooLarge(f"header of {header_bytes} or payload of {payload_bytes} bytes is more than is needed here")
    if header_bytes > MAX_HEADER_BYTES or payload_bytes > MAX_PAYLOAD_BYTES:
        raise BadMessage(f"header of {header_bytes} or payload of {payload_bytes} bytes is over the limit")
    return header_bytes, payload_bytes


def decode(header: bytes, payload: bytes | bytearray | memoryview) -> Message:
    """Message from its header and payload bytes.

    Raises:
        BadMessage: the header is not a msgpack map with a textual "kind".
    """
    try:
        fields = msgpack.unpackb(header, raw=False, strict_map_key=True, timestamp=1, ext_hook=_refuse_extension)
    except Exception as error:  # msgpack raises six unrelated types on hostile bytes
        raise BadMessage(f"header is not msgpack: {type(error).__name__}") from error
    if not isinstance(fields, dict) or not isinstance(fields.get("kind"), str):
        raise BadMessage("header is not a map with a textual 'kind'")
    kind = fields.pop("kind")
    return Message(kind, fields, payload)


def _refuse_extension(code: int, _data: bytes) -> None:
    raise ValueError(f"extension type {code}")
