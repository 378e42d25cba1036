"""What was read once is remembered for the newest versions of each name: by how many names there are, not for ever."""

import gc
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import pytest

from collab.net.owned_records import OwnedRecords
from collab.newest import VERSIONS, Newest
from collab.swarm.envelope import Envelope
from collab.swarm.identity import Identity
from collab.swarm.records import pack_record, unpack_record
from tests.peers.test_status import record
from tests.test_owned_records import ME, NOW, record as directory_record, signed

T = TypeVar("T")


def test_the_last_versions_of_a_name_are_known_and_no_others() -> None:
    newest: Newest[str] = Newest(10)
    for number in range(5):
        assert newest.put("a", bytes([number]), f"made of {number}") == f"made of {number}"
    assert [newest.get("a", bytes([number])) for number in range(5)] == [None, None, None, "made of 3", "made of 4"]
    assert newest.get("b", b"\0") is None
    assert VERSIONS == 2


def test_of_too_many_names_those_not_asked_for_are_forgotten() -> None:
    newest: Newest[int] = Newest(2)
    newest.put("a", b"v", 1)
    newest.put("b", b"v", 2)
    assert newest.get("a", b"v") == 1
    newest.put("c", b"v", 3)
    assert (newest.get("a", b"v"), newest.get("b", b"v"), newest.get("c", b"v")) == (1, None, 3)
    assert len(newest) == 2


def read(data: bytes) -> None:
    """A copy, as from the network."""
    unpack_record(bytes(bytearray(data)), ME.peer_id)


def grown(read: Callable[[T], object], things: Sequence[T]) -> int:
    """Bytes that stay when these have been read, and some before them."""
    tracemalloc.start()
    try:
        for thing in things[:20]:
            read(thing)
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        for thing in things[20:]:
            read(thing)
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def test_a_peer_that_speaks_for_hours_takes_no_more_memory_than_one_that_has_just_come() -> None:
    said = [replace(record("a"), peer=ME.peer_id, said_at=float(number)) for number in range(600)]
    packed = [pack_record(one, ME) for one in said]
    assert grown(read, packed) < 20_000, "580 records of 300 bytes, and what was made of them"
    rules = OwnedRecords(ME, lambda: NOW)
    stored = [signed(directory_record(value=data)) for data in packed]
    assert grown(lambda one: rules.validate(replace(one, value=bytes(bytearray(one.value)))), stored) < 20_000


def test_what_was_read_is_not_verified_again(monkeypatch: pytest.MonkeyPatch) -> None:
    data, stored = pack_record(replace(record("a"), peer=ME.peer_id, said_at=9e5), ME), signed(directory_record())
    first, rules = unpack_record(data, ME.peer_id), OwnedRecords(ME, lambda: NOW)
    assert rules.validate(stored)
    monkeypatch.setattr(Envelope, "unpack", lambda *_: pytest.fail("verified again"))
    monkeypatch.setattr(Identity, "is_signed_by", lambda *_: pytest.fail("verified again"))
    assert unpack_record(bytes(bytearray(data)), ME.peer_id) is first
    assert rules.validate(stored)


def test_what_was_refused_is_judged_again() -> None:
    """Nobody fills the memory of what is right with what is wrong."""
    rules, right = OwnedRecords(ME, lambda: NOW), signed(directory_record())
    wrong = replace(right, value=right.value[:-1] + bytes([right.value[-1] ^ 1]))
    assert rules.validate(right)
    assert not any(rules.validate(wrong) for _ in range(3))
    assert rules.validate(right)


def test_a_name_that_nobody_asks_for_is_forgotten_while_others_go_on_speaking() -> None:
    newest: Newest[str] = Newest(1000)
    for number in range(100):
        newest.put(f"stranger {number}", b"once", "made")
    for number in range(20_000):
        for name in ("a", "b"):
            newest.put(name, number.to_bytes(4, "big"), "made")
            newest.get("silent", b"but asked for")
        if not number:
            newest.put("silent", b"but asked for", "made")
    assert len(newest) == 3
    assert newest.get("silent", b"but asked for") == "made"
