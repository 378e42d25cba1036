"""Snapshots as bytes: the same for the same state, and checked before they are believed."""

import hashlib
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, strategies as st

from collab.errors import BadMessage, CorruptState
from collab.net.wire import Message
from collab.swarm.snapshots import (
    CHUNK_BYTES,
    DTYPES,
    Manifest,
    PackedSnapshot,
    Snapshot,
    check_chunk,
    pack,
    unpack,
)
from collab.types import Lineage
from tests.fakes import through_the_wire

SNAPSHOT = Snapshot(
    epoch=7,
    lineage=Lineage("l" * 64),
    tensors={
        "model.b": np.arange(6, dtype=np.float32).reshape(2, 3),
        "model.a": np.array([1.5], np.float32),
        "model.count": np.array(3, np.int64),
        "model.empty": np.zeros((0, 4), np.float32),
        "optimizer.b.state1": np.arange(6, dtype=np.uint8).reshape(2, 3),
        "optimizer.b.step": np.array(4.0, np.float32),
    },
    scalars={"optimizer.a.step": 4, "optimizer.a.flag": True, "optimizer.a.rate": 0.1, "optimizer.a.none": None},
)


def packed_of_size(num_bytes: int) -> PackedSnapshot:
    """A packed snapshot of exactly so many bytes."""
    empty = len(pack(replace(SNAPSHOT, tensors={"model.a": np.zeros(0, np.uint8)}), fingerprint="f").data)
    for padding in range(-16, 17):
        length = num_bytes - empty + padding
        tensors = {"model.a": np.arange(max(length, 0), dtype=np.uint32).astype(np.uint8)}
        packed = pack(replace(SNAPSHOT, tensors=tensors), fingerprint="f")
        if len(packed.data) == num_bytes:
            return packed
    raise ValueError(f"no snapshot has {num_bytes} bytes")


def test_a_snapshot_comes_back_with_every_name_type_shape_and_value() -> None:
    received = unpack(pack(SNAPSHOT, fingerprint="f"))
    assert (received.epoch, received.lineage, received.scalars) == (7, SNAPSHOT.lineage, SNAPSHOT.scalars)
    assert set(received.tensors) == set(SNAPSHOT.tensors)
    for name, tensor in SNAPSHOT.tensors.items():
        assert received.tensors[name].dtype == tensor.dtype, name
        assert received.tensors[name].shape == tensor.shape, name
        assert received.tensors[name].tobytes() == tensor.tobytes(), name


@given(
    tensors=st.dictionaries(
        st.text(max_size=6).filter(lambda name: name != "__metadata__"),
        st.tuples(st.sampled_from(list(DTYPES)), st.lists(st.integers(0, 3), max_size=3)),
        max_size=6,
    ),
    scalars=st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
def test_the_bytes_are_those_of_safetensors_itself(
    tensors: dict[str, tuple[str, list[int]]], scalars: dict[str, int]
) -> None:
    filled = {name: np.arange(math.prod(s)).reshape(s).astype(dtype) for name, (dtype, s) in tensors.items()}
    packed = pack(replace(SNAPSHOT, tensors=filled, scalars=scalars), fingerprint="f")
    metadata = {"collab.scalars": json.dumps(scalars, sort_keys=True)}
    assert bytes(packed.data) == safetensors.numpy.save(filled, metadata)


def test_donors_agree_on_the_bytes_of_a_state_that_comes_from_a_rollback() -> None:
    """Their metadata has two entries, whose order the library leaves to chance."""
    after = SNAPSHOT.after_rollback("mark")
    packed = pack(after, fingerprint="f")
    text = bytes(packed.data)
    assert text.index(b'"collab.era"') < text.index(b'"collab.scalars"')
    received = unpack(packed)
    assert (received.era, received.lineage, received.scalars) == ("mark", after.lineage, after.scalars)


def test_the_same_state_gives_the_same_bytes_in_whatever_order_it_was_collected() -> None:
    reordered = replace(
        SNAPSHOT,
        tensors=dict(reversed(list(SNAPSHOT.tensors.items()))),
        scalars=dict(reversed(list(SNAPSHOT.scalars.items()))),
    )
    strided = {**SNAPSHOT.tensors, "model.b": np.asfortranarray(SNAPSHOT.tensors["model.b"])}
    first = pack(SNAPSHOT, fingerprint="f")
    for other in (reordered, replace(SNAPSHOT, tensors=strided)):
        again = pack(other, fingerprint="f")
        assert again.data == first.data
        assert again.manifest.digest == first.manifest.digest


def test_the_digest_changes_with_the_content() -> None:
    first = pack(SNAPSHOT, fingerprint="f").manifest.digest
    tensors = {**SNAPSHOT.tensors, "model.a": np.array([1.5000001], np.float32)}
    assert pack(replace(SNAPSHOT, tensors=tensors), fingerprint="f").manifest.digest != first
    assert pack(replace(SNAPSHOT, scalars={}), fingerprint="f").manifest.digest != first


@pytest.mark.parametrize(
    ("num_bytes", "chunks"),
    [(CHUNK_BYTES - 1, 1), (CHUNK_BYTES, 1), (CHUNK_BYTES + 1, 2), (2 * CHUNK_BYTES, 2), (2 * CHUNK_BYTES + 8, 3)],
)
def test_chunks_cover_the_bytes_at_every_boundary(num_bytes: int, chunks: int) -> None:
    num_bytes += -num_bytes % 8 if num_bytes % CHUNK_BYTES not in (0, 1, CHUNK_BYTES - 1) else 0
    packed = packed_of_size(num_bytes)
    assert len(packed.manifest.chunk_digests) == chunks
    joined = b"".join(packed.chunk(index) for index in range(chunks))
    assert joined == bytes(packed.data)
    assert len(packed.chunk(chunks - 1)) > 0
    assert unpack(packed).tensors["model.a"].nbytes > 0


@pytest.mark.parametrize("place", [0, 8, 100, -1])
def test_a_flipped_byte_is_corrupt_state(place: int) -> None:
    packed = pack(SNAPSHOT, fingerprint="f")
    data = bytearray(packed.data)
    data[place] ^= 1
    with pytest.raises(CorruptState):
        unpack(PackedSnapshot(packed.manifest, bytes(data)))


def test_cut_and_lengthened_bytes_are_corrupt_state() -> None:
    packed = packed_of_size(CHUNK_BYTES)
    whole = bytes(packed.data)
    for data in (whole[:-1], whole + b"\0", b"", whole[: CHUNK_BYTES // 2]):
        with pytest.raises(CorruptState):
            unpack(PackedSnapshot(packed.manifest, data))


def sealed(data: bytes) -> PackedSnapshot:
    """Any bytes with a manifest that fits them, as a hostile donor would send."""
    chunks = tuple(hashlib.sha256(data[i : i + CHUNK_BYTES]).digest() for i in range(0, len(data), CHUNK_BYTES))
    return PackedSnapshot(
        Manifest(fingerprint="f", epoch=0, lineage=Lineage(""), num_bytes=len(data), chunk_digests=chunks), data
    )


def header(content: Any) -> bytes:
    text = json.dumps(content).encode()
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    "data",
    [
        b"\0",
        b"garbage that is no safetensors file",
        b"\xff" * 16,
        header([]),
        header({"model.a": 5}),
        header({"model.a": 100_000 * "x"}),
        header({"model.a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 4]}}),
        header({"model.a": {"dtype": "F9", "shape": [1], "data_offsets": [0, 4]}}) + bytes(4),
        header({"__metadata__": {"collab.scalars": "{"}}),
        header({"__metadata__": {"collab.scalars": "[1, 2]"}}),
        header({"__metadata__": {"collab.scalars": "5"}}),
        header({"__metadata__": {"collab.scalars": "[" * 100_000}}),
        pack(SNAPSHOT, fingerprint="f").data[:-1],
    ],
)
def test_bytes_that_fit_their_manifest_and_are_no_snapshot_are_corrupt_state(data: bytes) -> None:
    with pytest.raises(CorruptState) as told:
        unpack(sealed(data))
    assert len(told.value.message) < 400


def test_a_chunk_must_have_the_length_and_digest_that_were_promised() -> None:
    packed = packed_of_size(CHUNK_BYTES + 1)
    first, second = packed.chunk(0), packed.chunk(1)
    check_chunk(packed.manifest, 0, first)
    check_chunk(packed.manifest, 1, bytes(second))
    for index, chunk in ((0, second), (1, first), (0, first[:-1]), (1, b""), (1, bytes(second) + b"\0")):
        with pytest.raises(CorruptState):
            check_chunk(packed.manifest, index, chunk)


def test_a_manifest_arrives_as_it_was_sent() -> None:
    manifest = packed_of_size(CHUNK_BYTES + 1).manifest
    assert Manifest.from_message(through_the_wire(manifest.to_message())) == manifest


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("num_bytes", value) for value in (0, -1, CHUNK_BYTES + 1, 2**63, 1.5, "9", True, None)],
        *[("fingerprint", value) for value in (None, 5, b"f")],
        *[("lineage", value) for value in (None, 5)],
        *[("epoch", value) for value in (None, "1", 1.0, True, -1)],
    ],
)  # fmt: skip
def test_a_manifest_with_a_hostile_field_is_a_bad_message(field: str, value: Any) -> None:
    message = packed_of_size(CHUNK_BYTES).manifest.to_message()
    with pytest.raises(BadMessage):
        Manifest.from_message(Message(message.kind, {**message.fields, field: value}, message.payload))


@pytest.mark.parametrize("payload", [b"", bytes(31), bytes(33), bytes(64)])
def test_a_manifest_with_another_number_of_digests_is_a_bad_message(payload: bytes) -> None:
    message = packed_of_size(CHUNK_BYTES).manifest.to_message()
    with pytest.raises(BadMessage):
        Manifest.from_message(Message(message.kind, message.fields, payload))
