"""Records: signed by whom they are about, bounded, and of possible values."""

import dataclasses
import math
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings, strategies as st

from collab.errors import BadMessage
from collab.swarm.identity import Identity
from collab.swarm.records import (
    MAX_GPU_CHARACTERS,
    MAX_NAME_CHARACTERS,
    MAX_RECORD_BYTES,
    PeerRecord,
    PeerState,
    pack_record,
    unpack_record,
)
from collab.types import Role
from tests.swarm.people import PEOPLE, record

ME = PEOPLE[0]
FIELDS = [field.name for field in dataclasses.fields(PeerRecord)]
TOLD = FIELDS[1:]
"""All but whose record it is."""
DEFAULTS = {field.name: field.default for field in dataclasses.fields(PeerRecord)}
REQUIRED = [name for name in TOLD if DEFAULTS[name] is dataclasses.MISSING]
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=6) | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def packed(changes: dict[str, Any], signer: Identity = ME, *, without: str = "") -> bytes:
    """A signed record with any values."""
    plain = record(0)
    values = {name: getattr(plain, name) for name in TOLD if repr(getattr(plain, name)) != repr(DEFAULTS[name])}
    values = {**values, **changes}
    values.pop(without, None)
    body: bytes = msgpack.packb({FIELDS.index(name) if name in FIELDS else name: values[name] for name in values})
    signed: bytes = msgpack.packb([body, signer.sign(body)])
    return signed


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("state", list(PeerState))
def test_a_record_is_read_as_it_was_written(role: Role, state: PeerState) -> None:
    original = record(0, role=role, state=state, samples=7, samples_per_s=1.5, loss=0.25, eval_loss=1.0, name="Zoë")
    assert unpack_record(pack_record(original, ME), ME.peer_id) == original


def test_a_loss_that_is_not_known_yet_travels() -> None:
    received = unpack_record(pack_record(record(0), ME), ME.peer_id)
    assert math.isnan(received.loss)
    assert math.isnan(received.eval_loss)


def test_a_record_with_the_longest_words_fits() -> None:
    long = record(
        0, name="ü" * MAX_NAME_CHARACTERS, lineage="a" * 64, epoch=2**53, samples=2**53, loss=1 / 3, eval_loss=1 / 3
    )
    assert len(pack_record(long, ME)) < MAX_RECORD_BYTES
    assert unpack_record(pack_record(long, ME), ME.peer_id) == long


def test_a_record_signed_by_another_peer_is_refused() -> None:
    with pytest.raises(BadMessage, match="not signed"):
        unpack_record(packed({}, PEOPLE[1]), ME.peer_id)


def test_a_record_of_another_peer_under_our_name_is_refused() -> None:
    theirs = pack_record(record(1), PEOPLE[1])
    with pytest.raises(BadMessage, match="not signed"):
        unpack_record(theirs, ME.peer_id)
    assert unpack_record(packed({"peer": PEOPLE[1].peer_id}), ME.peer_id).peer == ME.peer_id


def test_no_flipped_bit_goes_unnoticed() -> None:
    data = pack_record(record(0), ME)
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 4
        with pytest.raises(BadMessage):
            unpack_record(bytes(changed), ME.peer_id)
        with pytest.raises(BadMessage):
            unpack_record(data[:place], ME.peer_id)


def test_an_oversized_record_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(BadMessage, match="over the limit"):
        unpack_record(packed({"lineage": "x" * MAX_RECORD_BYTES}), ME.peer_id)


@pytest.mark.parametrize("name", REQUIRED)
def test_a_record_with_a_missing_field_is_refused(name: str) -> None:
    with pytest.raises(BadMessage):
        unpack_record(packed({}, without=name), ME.peer_id)


def test_a_record_of_an_older_or_newer_version_is_understood_as_far_as_both_know_its_fields() -> None:
    older = unpack_record(packed({"samples": 3}, without="lineage"), ME.peer_id)
    assert (older.samples, older.lineage) == (3, "")
    body: bytes = msgpack.packb({**msgpack.unpackb(msgpack.unpackb(packed({}))[0], strict_map_key=False), 99: "news"})
    newer = unpack_record(msgpack.packb([body, ME.sign(body)]), ME.peer_id)
    assert pack_record(newer, ME) == packed({})


@pytest.mark.parametrize("name", [name for name in TOLD if name != "credential"])
@pytest.mark.parametrize("wrong", [None, [1], {"a": 1}, b"bytes"])
def test_a_field_of_a_type_that_no_field_has_is_refused(name: str, wrong: Any) -> None:
    with pytest.raises(BadMessage):
        unpack_record(packed({name: wrong}), ME.peer_id)


@pytest.mark.parametrize("name", [name for name in TOLD if name not in ("can_be_dialled", "has_seat", "wants_credit")])
def test_a_truth_value_is_no_number_and_no_text(name: str) -> None:
    with pytest.raises(BadMessage):
        unpack_record(packed({name: True}), ME.peer_id)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epoch", -1), ("epoch", 1.5), ("epoch", "3"), ("samples", -1), ("samples", math.inf), ("samples", 1.0),
        ("total_samples", -5), ("epochs_contributed", -1), ("samples_per_s", -0.1), ("samples_per_s", math.nan),
        ("samples_per_s", math.inf), ("microbatch_s", -1.0), ("microbatch_s", math.nan), ("said_at", math.nan),
        ("said_at", math.inf), ("said_at", -1.0), ("role", "king"), ("role", ""), ("state", "asleep"), ("state", 3),
        ("can_be_dialled", 1), ("can_be_dialled", "yes"), ("name", "x" * (MAX_NAME_CHARACTERS + 1)), ("name", 5),
        ("gpu", "x" * (MAX_GPU_CHARACTERS + 1)), ("gpu", 5),
        ("life_s", -1.0), ("life_s", 121.0), ("life_s", math.nan),
        ("fingerprint", 5), ("lineage", 0), ("loss", "low"), ("eval_epoch", 1.0),
        ("has_seat", 1), ("has_seat", ""),
        ("samples", 2**64 - 1), ("total_samples", 2**64 - 1), ("samples_per_s", 1.7e308), ("epoch", 2**64 - 1),
        ("checkpoint_epoch", 2**64 - 1), ("eval_epoch", 2**64 - 1),
    ],
)  # fmt: skip
def test_an_impossible_value_is_refused(name: str, value: Any) -> None:
    with pytest.raises(BadMessage):
        unpack_record(packed({name: value}), ME.peer_id)


@pytest.mark.parametrize("data", [b"", b"\xc1", msgpack.packb(5), msgpack.packb([]), msgpack.packb([b"", b"", b""])])
def test_garbage_is_a_bad_message(data: bytes) -> None:
    with pytest.raises(BadMessage):
        unpack_record(data, ME.peer_id)


@pytest.mark.parametrize("body", [5, None, [], "text", {1: 2}, [1] * 18])
def test_signed_garbage_is_a_bad_message(body: Any) -> None:
    content: bytes = msgpack.packb(body)
    with pytest.raises(BadMessage):
        unpack_record(msgpack.packb([content, ME.sign(content)]), ME.peer_id)
    with pytest.raises(BadMessage):
        unpack_record(msgpack.packb([body, body]), ME.peer_id)


@given(changes=st.dictionaries(st.sampled_from(FIELDS), PLAIN, max_size=3))
@settings(max_examples=150)
def test_any_record_is_refused_or_makes_sense(changes: dict[str, Any]) -> None:
    try:
        received = unpack_record(packed(changes), ME.peer_id)
    except BadMessage:
        return
    assert received.peer == ME.peer_id
    assert received.epoch >= 0
    assert received.samples >= 0
    assert math.isfinite(received.samples_per_s + received.microbatch_s + received.said_at)
    assert type(received.can_be_dialled) is bool
    pack_record(received, ME)
