"""Whose record it is: what a keeper of the directory takes, and a reader believes."""

import math
from dataclasses import replace

import pytest
from hivemind.dht.validation import DHTRecord
from hivemind.utils import MSGPackSerializer

from collab.net.base import LARGEST_RECORD_BYTES, LONGEST_RECORD_S
from collab.net.owned_records import SIGNATURE_BYTES, OwnedRecords
from collab.swarm.identity import Identity

NOW = 1_700_000_000.0
ME, OTHER = Identity.from_seed(b"m" * 32), Identity.from_seed(b"o" * 32)
RULES = OwnedRecords(ME, lambda: NOW)


def record(name: object = ME.peer_id, *, value: bytes = b"value", ends_s: float = 60.0) -> DHTRecord:
    return DHTRecord(b"k" * 20, MSGPackSerializer.dumps(name), MSGPackSerializer.dumps(value), NOW + ends_s)


def signed(one: DHTRecord, rules: OwnedRecords = RULES) -> DHTRecord:
    return replace(one, value=rules.sign_value(one))


@pytest.mark.parametrize("name", [ME.peer_id, f"crowd:{ME.peer_id}", f"a:b:{ME.peer_id}"])
@pytest.mark.parametrize("value", [b"", b"value", bytes(5000)])
def test_a_record_of_its_owner_is_taken_and_read_as_it_was_stored(name: str, value: bytes) -> None:
    one = signed(record(name, value=value))
    assert RULES.validate(one)
    assert OwnedRecords(OTHER, lambda: NOW).validate(one), "by everybody"
    assert MSGPackSerializer.loads(RULES.strip_value(one)) == value


def test_nobody_else_signs_for_the_owner() -> None:
    assert not RULES.validate(signed(record(OTHER.peer_id)))
    assert not RULES.validate(signed(record(), OwnedRecords(OTHER, lambda: NOW)))


def test_an_old_record_is_not_given_another_end_key_or_name() -> None:
    one = signed(record())
    assert not RULES.validate(replace(one, expiration_time=one.expiration_time + 1.0))
    assert not RULES.validate(replace(one, key=b"K" * 20))
    assert not RULES.validate(replace(one, subkey=MSGPackSerializer.dumps(f"crowd:{ME.peer_id}")))


def test_no_flipped_bit_goes_unnoticed() -> None:
    one = signed(record())
    for place in range(len(one.value)):
        changed = bytearray(one.value)
        changed[place] ^= 4
        assert not RULES.validate(replace(one, value=bytes(changed)))


@pytest.mark.parametrize("size", [0, 1, SIGNATURE_BYTES - 1, SIGNATURE_BYTES])
def test_what_is_too_short_for_a_signature_is_refused(size: int) -> None:
    assert not RULES.validate(replace(record(), value=bytes(size)))


@pytest.mark.parametrize("value", [b"", b"\xc1", b"\xc4\x05abc", *map(MSGPackSerializer.dumps, ("text", [b"a"]))])
def test_what_hivemind_cannot_unpack_to_bytes_is_refused_though_its_owner_made_it(value: bytes) -> None:
    assert not RULES.validate(signed(replace(record(), value=value)))


@pytest.mark.parametrize("name", [None, 5, b"bytes", ["list"], "", "nobody", f"{ME.peer_id}:"])
def test_what_is_named_after_nobody_is_refused(name: object) -> None:
    assert not RULES.validate(signed(record(name)))


def test_what_would_be_kept_for_too_long_is_refused() -> None:
    assert RULES.validate(signed(record(ends_s=LONGEST_RECORD_S)))
    assert not RULES.validate(signed(record(ends_s=LONGEST_RECORD_S + 1)))


@pytest.mark.parametrize("subkey", [b"", b"\xc1", b"\xff" * 9])
def test_a_name_that_cannot_be_read_is_no_name(subkey: bytes) -> None:
    assert not RULES.validate(replace(signed(record()), subkey=subkey))


@pytest.mark.parametrize("ends_s", [math.nan, math.inf, LONGEST_RECORD_S + 1.0])
def test_a_record_that_ends_too_late_or_never_is_refused(ends_s: float) -> None:
    assert not RULES.validate(signed(record(ends_s=ends_s)))
    assert RULES.validate(signed(record(ends_s=LONGEST_RECORD_S - 1.0)))


@pytest.mark.parametrize("large", ["name", "value"])
def test_what_is_larger_than_any_record_of_ours_is_refused(large: str) -> None:
    """Two of two megabytes under one key would be more than a message may have, and nobody could read the others."""

    def of(more: int) -> DHTRecord:
        name = f"{'n' * more}:{ME.peer_id}" if large == "name" else ME.peer_id
        return signed(record(name, value=bytes(more if large == "value" else 0)))

    assert RULES.validate(of(32 << 10))
    assert not RULES.validate(of(LARGEST_RECORD_BYTES))
