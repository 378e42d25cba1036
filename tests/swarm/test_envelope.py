"""Signed envelopes: of one author, one purpose and bounded size; and the bytes of every kind that travels in one."""

import hashlib
import math
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings, strategies as st

from collab.data.lease_records import EntryReader, Page, PageEntry, pack_entry
from collab.errors import BadMessage
from collab.swarm.access import Grant, Papers, pack_grant, pack_pass, read_grant, read_pass
from collab.swarm.backbone_records import BackboneRecord, Publication, pack_backbone, unpack_backbone
from collab.swarm.crowd import Crowd, Tally, pack_crowd, unpack_crowd
from collab.swarm.envelope import Envelope
from collab.swarm.lease import Claim
from collab.swarm.orders import OrderBook
from collab.swarm.records import pack_record, unpack_record
from collab.swarm.statements import Amend
from collab.types import Lineage, Role
from tests.swarm.people import PEOPLE, record
from tests.swarm.test_records import PLAIN

ME, OTHER = PEOPLE[0], PEOPLE[1]
F, L = "f" * 64, Lineage("a" * 64)
LETTER = Envelope(name="letter", purpose=b"test/letter/1", max_bytes=400)
NUMBERED = replace(LETTER, has_numbered_fields=True)


def doubled(values: Any) -> float:
    return float(values * 2)


# -- what is kept, and what is refused ---------------------------------------------------------------------------------


def test_values_arrive_as_their_reader_takes_them() -> None:
    assert LETTER.unpack(LETTER.pack(4, ME), ME.peer_id, doubled) == 8.0
    assert LETTER.body(LETTER.pack(4, ME)) == msgpack.packb(4)


def test_numbers_are_names_of_fields_only_where_the_kind_says_so() -> None:
    data = LETTER.pack({1: "one"}, ME)
    assert NUMBERED.unpack(data, ME.peer_id, dict) == {1: "one"}
    with pytest.raises(BadMessage, match="letter is malformed"):
        LETTER.unpack(data, ME.peer_id, dict)


def test_what_is_too_long_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(BadMessage, match="letter of 401 bytes is over the limit of 400"):
        LETTER.unpack(b"\xc1" * 401, ME.peer_id, doubled)


@pytest.mark.parametrize("wrong", [OTHER, replace(LETTER, purpose=b""), replace(LETTER, purpose=b"test/letter/2")])
def test_what_another_signed_or_for_another_purpose_is_refused_and_its_values_are_not_read(wrong: Any) -> None:
    data = LETTER.pack(4, OTHER) if wrong is OTHER else wrong.pack(4, ME)

    def never(values: Any) -> None:
        raise AssertionError(f"{values} was read")

    with pytest.raises(BadMessage, match=f"letter is not signed by {ME.peer_id}"):
        LETTER.unpack(data, ME.peer_id, never)


@pytest.mark.parametrize("data", [msgpack.packb([4, b"s"]), msgpack.packb(["text", b"s"]), msgpack.packb([b"b", None])])
def test_anything_but_two_byte_strings_is_refused(data: bytes) -> None:
    with pytest.raises(BadMessage, match="no pair of bytes"):
        LETTER.unpack(data, ME.peer_id, doubled)


@given(data=PLAIN | PLAIN.map(msgpack.packb) | st.binary())
@settings(max_examples=150)
def test_whatever_comes_is_a_bad_message(data: Any) -> None:
    with pytest.raises(BadMessage):
        LETTER.unpack(data, ME.peer_id, doubled)


@pytest.mark.parametrize("values", [None, [], "text", math.inf])
def test_values_that_their_reader_does_not_take_are_a_bad_message(values: Any) -> None:
    with pytest.raises(BadMessage, match="letter is malformed"):
        LETTER.unpack(LETTER.pack(values, ME), ME.peer_id, int)


# -- the bytes of every kind -------------------------------------------------------------------------------------------

CLAIM = Claim(peer=ME.peer_id, said_at=7.5, term=3, seen_term=4, seen_holder=OTHER.peer_id, epoch=20, since=1.0)
PUBLISHED = Publication(epoch=20, lineage=L, digest="b" * 64, term=2, holder=OTHER.peer_id, eval_loss=1.25)
RECORD = record(0, loss=0.5, eval_loss=1.5, samples=3, credential=b"pass", role=Role.AUXILIARY)
BACKBONE = BackboneRecord(
    fingerprint=F, claim=CLAIM, addresses=(f"/ip4/1.2.3.4/tcp/4/p2p/{ME.peer_id}",), published=PUBLISHED
)
CROWD = Crowd(
    fingerprint=F, said_at=7.5, life_s=28.0, level=1, peers=12, tallies=(Tally(5, L, 10, 9, 100, 12.5),),
    left=((4, 2),), sample=((OTHER.peer_id, b"its own record"),),
)  # fmt: skip
PAGE = Page(fingerprint=F, data=f"samples.1500.{'a' * 32}", pass_number=3, page=1)
ENTRY = PageEntry(page=PAGE, said_at=7.5, life_s=45.0, held=(1 << 16) - 1, trained=5)
GRANT = Grant(fingerprint=F, key=OTHER.peer_id, person="Zoë", devices=2, expires_at=9.5, role=Role.TRAINER)
GRANTED = pack_grant(GRANT, ME)
PASS = pack_pass(Papers(grant=GRANTED, key=OTHER), PEOPLE[2].peer_id, since=7.5, now=8.0)
ORDERS = OrderBook(F, ME.peer_id)
ORDER = ORDERS.signed(Amend(from_epoch=10, learning_rate=0.5), ME, 7.5)


@pytest.mark.parametrize(
    ("data", "digest"),
    [
        (pack_record(RECORD, ME), "10afe020ac317533e9be3e5a2d632cb414a3ef916aa58116fed9cacf69e597d5"),
        (pack_backbone(BACKBONE, ME), "3e32034031d46ef6f06abd13e4a9dda4fc8f54b656e1d1e072806a4d362befe7"),
        (pack_crowd(CROWD, ME), "00af20b823705352f0d149708fedb9c7cf2ea1090ba0b0017c7ddbfbf1364666"),
        (pack_entry(ENTRY, ME), "b1f1dbbb3edc6e884881722a66e3277d1c8ecdcb0f0dba27da392ef8a8b42a72"),
        (GRANTED, "b32d38e924f442fde4c3f49ba6eff784b5c9e6bed5d966f1c532788014193e93"),
        (PASS, "6ae4abaf2d0d8e349f38c2bebb2766a913b711d09b23acc8130a0d10d151739a"),
        (ORDER, "31fad24d87ab7cc54a6bf84c232c241c54cc8c075352412feacb178bff93e865"),
    ],
    ids=["record", "backbone", "crowd", "entry", "grant", "pass", "order"],
)
def test_the_bytes_are_those_that_peers_have_always_written(data: bytes, digest: str) -> None:
    """Digests are of what each kind's own code packed, before there were envelopes: peers of both versions meet.
    The entry's is of its second form, with pages of 16 blocks.
    """
    assert hashlib.sha256(data).hexdigest() == digest


def test_every_kind_reads_those_bytes() -> None:
    assert unpack_record(pack_record(RECORD, ME), ME.peer_id) == RECORD
    assert unpack_backbone(pack_backbone(BACKBONE, ME), ME.peer_id) == BACKBONE
    assert unpack_crowd(pack_crowd(CROWD, ME), ME.peer_id) == CROWD
    assert EntryReader(OTHER).read(pack_entry(ENTRY, ME), ME.peer_id, PAGE) == ENTRY
    assert read_grant(GRANTED, F, ME.peer_id) == GRANT
    assert read_pass(PASS, F, ME.peer_id).grant == GRANT
    (order,) = ORDERS.extended([ORDER]).orders
    assert (order.what, order.mark) == (Amend(from_epoch=10, learning_rate=0.5), "90e659dfdb17691c")


def test_a_pass_around_anything_but_a_grant_is_a_bad_message() -> None:
    for granted in (5, None, "text", [], b"", GRANTED[:-1], bytes(2000)):
        with pytest.raises(BadMessage):
            read_pass(msgpack.packb([granted, b""]), F, ME.peer_id)

