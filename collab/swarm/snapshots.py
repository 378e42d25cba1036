"""Snapshots: the shared state of a replica at one epoch, as bytes that can be checked.

A packed snapshot is one safetensors file and a manifest with the SHA-256 of each chunk; nothing is ever unpickled.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from collab.errors import BadMessage, CorruptState
from collab.net.wire import Message
from collab.types import Lineage

CHUNK_BYTES = 1 << 20
"""What is verified, and lost when a donor dies: 0.4 s of a 20 Mbit/s link."""
MAX_SNAPSHOT_BYTES = 1 << 40
MAX_HEADER_BYTES = 100_000_000
"""As safetensors itself allows."""
MOST_SHOWN = 100
"""Characters of what others may have made up."""
SCALARS = "collab.scalars"
"""Key of the JSON scalars in the safetensors metadata."""
ERA = "collab.era"
"""Key of the era there."""

DTYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "uint16": "U16", "float16": "F16", "int32": "I32",
    "uint32": "U32", "float32": "F32", "float64": "F64", "int64": "I64", "uint64": "U64",
}  # fmt: skip
"""Of numpy, as safetensors names them, in the order in which it puts them from the end of a file to its beginning."""

Tensors = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Parameters, buffers and optimiser state after ``epoch`` steps. Immutable: its arrays belong to it alone."""

    epoch: int
    lineage: Lineage
    tensors: Tensors
    """``model.<name>`` and ``optimizer.<name of parameter>.<key>``."""
    scalars: Mapping[str, Any]
    """What is no tensor in the optimiser's state, under the same names; JSON values."""
    era: str = ""
    """Mark of the rollback that it comes from; empty: there was none."""

    def after_rollback(self, mark: str) -> "Snapshot":
        """The same state as the beginning of another history: that of the rollback of this mark."""
        lineage = hashlib.sha256(f"rollback:{self.lineage}:{mark}".encode()).hexdigest()
        return replace(self, lineage=Lineage(lineage), era=mark)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a newcomer must know before it accepts a byte."""

    fingerprint: str
    epoch: int
    lineage: Lineage
    num_bytes: int
    chunk_digests: tuple[bytes, ...]
    """SHA-256 of each chunk of ``CHUNK_BYTES``; the last one may be shorter."""

    @property
    def digest(self) -> str:
        """64 hex digits over all chunk digests: names these bytes."""
        return hashlib.sha256(b"".join(self.chunk_digests)).hexdigest()

    def chunk_bytes(self, index: int) -> int:
        """Length of chunk ``index``."""
        return min(CHUNK_BYTES, self.num_bytes - index * CHUNK_BYTES)

    def to_message(self) -> Message:
        fields = {
            "fingerprint": self.fingerprint,
            "epoch": self.epoch,
            "lineage": self.lineage,
            "num_bytes": self.num_bytes,
        }
        return Message("manifest", fields, b"".join(self.chunk_digests))

    @classmethod
    def from_message(cls, message: Message) -> "Manifest":
        """Raises ``BadMessage`` when malformed or inconsistent."""
        digests = bytes(message.payload)
        num_bytes = message.get("num_bytes", int)
        chunks = tuple(digests[start : start + 32] for start in range(0, len(digests), 32))
        if not 0 < num_bytes <= MAX_SNAPSHOT_BYTES or len(digests) != 32 * -(-num_bytes // CHUNK_BYTES):
            raise BadMessage(f"manifest of {num_bytes} bytes has {len(digests)} bytes of chunk digests")
        epoch = message.get("epoch", int)
        if epoch < 0:
            raise BadMessage(f"manifest of epoch {epoch}")
        return cls(
            fingerprint=message.get("fingerprint", str),
            epoch=epoch,
            lineage=Lineage(message.get("lineage", str)),
            num_bytes=num_bytes,
            chunk_digests=chunks,
        )


@dataclass(frozen=True, slots=True)
class PackedSnapshot:
    """A snapshot as bytes with their manifest."""

    manifest: Manifest
    data: bytes | memoryview

    def chunk(self, index: int) -> memoryview:
        """Chunk ``index`` without a copy."""
        return memoryview(self.data)[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]


def pack(snapshot: Snapshot, *, fingerprint: str) -> PackedSnapshot:
    """Serialise; the same snapshot gives the same bytes."""
    return sealed(snapshot, serialised(snapshot), fingerprint=fingerprint)


def serialised(snapshot: Snapshot) -> memoryview:
    """A safetensors file of it."""
    # asarray, since ascontiguousarray would turn a scalar tensor (a step count) into one of shape (1,)
    tensors = {name: np.asarray(snapshot.tensors[name], order="C") for name in sorted(snapshot.tensors)}
    metadata = {SCALARS: json.dumps(snapshot.scalars, sort_keys=True)} | ({ERA: snapshot.era} if snapshot.era else {})
    return _file(tensors, metadata)


def sealed(snapshot: Snapshot, data: memoryview, *, fingerprint: str) -> PackedSnapshot:
    """``data``, which is ``snapshot`` as a file, with its manifest; the tensors may have changed since."""
    digests = tuple(
        hashlib.sha256(data[start : start + CHUNK_BYTES]).digest() for start in range(0, len(data), CHUNK_BYTES)
    )
    manifest = Manifest(
        fingerprint=fingerprint,
        epoch=snapshot.epoch,
        lineage=snapshot.lineage,
        num_bytes=len(data),
        chunk_digests=digests,
    )
    return PackedSnapshot(manifest, data)


def _file(tensors: Tensors, metadata: Mapping[str, str]) -> memoryview:
    """What ``safetensors.numpy.save`` gives, always in the same order.

    The library writes the metadata in any order, so that donors of one state would not agree on its bytes, and touches
    twice the memory: on a machine of a cloud that takes longer than all the rest.
    """
    ranks = list(DTYPES)
    order = sorted(tensors, key=lambda name: (-ranks.index(tensors[name].dtype.name), name))
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    end = 0
    for name in order:
        begin, end = end, end + tensors[name].nbytes
        dtype, shape = DTYPES[tensors[name].dtype.name], list(tensors[name].shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    data = np.empty(8 + len(text) + end, np.uint8)
    data[: 8 + len(text)] = np.frombuffer(len(text).to_bytes(8, "little") + text, np.uint8)
    position = 8 + len(text)
    for name in order:
        tensor = tensors[name].astype(tensors[name].dtype.newbyteorder("<"), copy=False)
        data[position : position + tensor.nbytes] = tensor.reshape(-1).view(np.uint8)
        position += tensor.nbytes
    return data.data


def check_chunk(manifest: Manifest, index: int, chunk: bytes | bytearray | memoryview) -> None:
    """Refuse a chunk that is not what the manifest promises.

    Raises:
        CorruptState: its length or digest differs.
    """
    if (
        memoryview(chunk).nbytes != manifest.chunk_bytes(index)
        or hashlib.sha256(chunk).digest() != manifest.chunk_digests[index]
    ):
        raise CorruptState(
            f"chunk {index} of the snapshot of epoch {manifest.epoch} is not what its manifest promises",
            hint="it was changed on the way or on the donor's side; another donor is asked",
        )


def unpack(packed: PackedSnapshot) -> Snapshot:
    """Verify and parse.

    Raises:
        CorruptState: the bytes do not match their manifest or are no safetensors file.
    """
    for index in range(len(packed.manifest.chunk_digests)):
        check_chunk(packed.manifest, index, packed.chunk(index))
    try:
        data = bytes(packed.data)
        tensors = safetensors.numpy.load(data)
        header_bytes = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + header_bytes]).get("__metadata__", {})
        scalars, era = json.loads(metadata.get(SCALARS, "{}")), str(metadata.get(ERA, ""))
        if not isinstance(scalars, dict):
            raise ValueError(f"its scalars are a {type(scalars).__name__}")
    except (safetensors.SafetensorError, ValueError, KeyError, AttributeError, RecursionError) as error:
        what = f"the snapshot of epoch {packed.manifest.epoch} is no safetensors file"
        raise CorruptState(f"{what}: {str(error)[:MOST_SHOWN]}") from error
    manifest = packed.manifest
    return Snapshot(epoch=manifest.epoch, lineage=manifest.lineage, tensors=tensors, scalars=scalars, era=era)
