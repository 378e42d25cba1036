"""Messages: what goes in comes out, and hostile bytes give one kind of error, soon."""

import time
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings, strategies as st

from collab.errors import BadMessage, VersionMismatch
from collab.net.wire import (
    MAX_HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    PREFIX,
    PROTOCOL_VERSION,
    Message,
    decode,
    decode_prefix,
    encode,
)

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.dictionaries(st.text(max_size=12).filter(lambda name: name != "kind"), PLAIN, max_size=6)


def through_the_wire(message: Message) -> Message:
    """Encode, read as a receiver does, decode."""
    head, payload = encode(message)
    header_bytes, payload_bytes = decode_prefix(head[: PREFIX.size])
    received = head + bytes(payload)
    assert len(received) == PREFIX.size + header_bytes + payload_bytes
    end = PREFIX.size + header_bytes
    return decode(received[PREFIX.size : end], received[end:])


@given(kind=st.text(max_size=20), fields=FIELDS, payload=st.binary(max_size=200))
def test_what_is_sent_is_what_arrives(kind: str, fields: dict[str, Any], payload: bytes) -> None:
    message = Message(kind, fields, payload)
    assert through_the_wire(message) == message


def test_the_payload_is_not_copied_and_is_measured_in_bytes() -> None:
    numbers = memoryview(bytearray(64)).cast("I")
    head, payload = encode(Message("part", {}, numbers))
    assert payload is numbers
    assert decode_prefix(head[: PREFIX.size])[1] == 64


@given(cut=st.integers(0, 10_000), fields=FIELDS)
def test_a_truncated_header_is_a_bad_message(cut: int, fields: dict[str, Any]) -> None:
    header = encode(Message("state", fields))[0][PREFIX.size :]
    with pytest.raises(BadMessage):
        decode(header[: cut % len(header)], b"")


@given(garbage=st.binary(max_size=300))
@settings(max_examples=300)
def test_garbage_gives_a_message_or_a_bad_message(garbage: bytes) -> None:
    try:
        message = decode(garbage, b"")
    except BadMessage:
        return
    assert isinstance(message.kind, str)
    assert all(isinstance(name, str | bytes) for name in message.fields)


@given(prefix=st.binary(min_size=PREFIX.size, max_size=PREFIX.size))
def test_a_garbage_prefix_never_gives_lengths(prefix: bytes) -> None:
    if prefix.startswith(b"CLB"):
        prefix = b"XLB" + prefix[3:]
    with pytest.raises(BadMessage, match="expected a collab message"):
        decode_prefix(prefix)


@pytest.mark.parametrize(
    ("header_bytes", "payload_bytes"), [(MAX_HEADER_BYTES + 1, 0), (0, MAX_PAYLOAD_BYTES + 1), (2**32 - 1, 2**32 - 1)]
)
def test_a_claimed_length_over_the_limit_is_refused_before_anything_is_read(
    header_bytes: int, payload_bytes: int
) -> None:
    with pytest.raises(BadMessage, match="over the limit"):
        decode_prefix(PREFIX.pack(b"CLB", PROTOCOL_VERSION, header_bytes, payload_bytes))


def test_lengths_at_the_limit_pass() -> None:
    prefix = PREFIX.pack(b"CLB", PROTOCOL_VERSION, MAX_HEADER_BYTES, MAX_PAYLOAD_BYTES)
    assert decode_prefix(prefix) == (MAX_HEADER_BYTES, MAX_PAYLOAD_BYTES)


@pytest.mark.parametrize(
    "message",
    [Message("big", {}, bytes(MAX_PAYLOAD_BYTES + 1)), Message("big", {"table": bytes(MAX_HEADER_BYTES)})],
    ids=["payload", "header"],
)
def test_the_sender_of_too_large_a_message_is_told_at_once(message: Message) -> None:
    with pytest.raises(ValueError, match="over the limit"):
        encode(message)


@pytest.mark.parametrize(("offset", "who"), [(-1, "they must upgrade"), (1, "we must upgrade")])
def test_another_version_names_both_and_says_who_must_upgrade(offset: int, who: str) -> None:
    there = PROTOCOL_VERSION + offset
    with pytest.raises(VersionMismatch, match=f"{PROTOCOL_VERSION} here, {there} there") as caught:
        decode_prefix(PREFIX.pack(b"CLB", there, 10, 0))
    assert who in caught.value.hint


@pytest.mark.parametrize("header", [[], 5, None, {}, {"kind": 3}, {"kind": b"x"}, {"kind": None}, [["kind", "x"]]])
def test_a_header_that_is_no_map_with_a_textual_kind_is_refused(header: object) -> None:
    with pytest.raises(BadMessage):
        decode(msgpack.packb(header), b"")


@pytest.mark.parametrize(
    "header",
    [
        b"\x91" * (MAX_HEADER_BYTES - 1) + b"\xc0",
        b"\x81\xa1a" * 300_000 + b"\xc0",
        b"\x81\xa4kind" + b"\x91" * 1000 + b"\xc0",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x01",
        b"\xdd\x00\x0f\xff\x00" + b"\xdd\x00\x0f\xff\x00" * 200_000,
        b"\x81\xa4kind\xa1\xff",
        b"\x81\x01\xa1x",
        b"\x81\x90\xa1x",
        b"\x82\xa4kind\xa1x\x80\xa1y",
        b"\xc1",
        msgpack.packb({"kind": "x"}) + b"\x00",
        b"",
    ],
    ids=[
        "deep lists", "deep maps", "deep value", "huge list", "huge map", "huge text", "huge bytes", "huge extension",
        "nested huge lists", "bad utf-8", "number as key", "list as key", "map as key", "reserved byte",
        "trailing byte", "empty",
    ],
)  # fmt: skip
def test_a_hostile_header_is_a_bad_message_within_a_fraction_of_a_second(header: bytes) -> None:
    started_s = time.process_time()
    with pytest.raises(BadMessage):
        decode(header, b"")
    assert time.process_time() - started_s < 0.5


def test_an_extension_of_msgpack_is_a_bad_message() -> None:
    with pytest.raises(BadMessage):
        decode(msgpack.packb({"kind": "x", "value": [msgpack.ExtType(5, b"x")]}), b"")


def test_a_timestamp_of_msgpack_arrives_as_a_plain_number() -> None:
    message = decode(msgpack.packb({"kind": "x", "value": msgpack.Timestamp(7, 500_000_000)}), b"")
    assert message.fields == {"value": 7.5}


@pytest.mark.parametrize(
    ("value", "kind"),
    [(True, int), (True, float), (1.0, int), ("1", int), (b"x", str), ("x", bytes), (None, str), ([], dict), (1, bool)],
)
def test_a_field_of_another_type_is_a_bad_message_that_names_it(value: object, kind: type) -> None:
    with pytest.raises(BadMessage, match=f"hello: field 'x' should be {kind.__name__}, got {type(value).__name__}"):
        Message("hello", {"x": value}).get("x", kind)


def test_a_missing_field_is_a_bad_message() -> None:
    with pytest.raises(BadMessage, match="field 'x' should be int, got NoneType"):
        Message("hello").get("x", int)


@pytest.mark.parametrize("value", [1, 0, -5, 2**62])
def test_a_whole_number_is_a_float_where_one_is_asked_for(value: int) -> None:
    got = Message("hello", {"x": value}).get("x", float)
    assert got == value
    assert type(got) is float


@pytest.mark.parametrize("value", [True, 7, 1.5, "text", b"bytes", [1], {"a": 1}])
def test_a_field_of_the_right_type_is_returned_as_it_is(value: object) -> None:
    assert Message("hello", {"x": value}).get("x", type(value)) is value
