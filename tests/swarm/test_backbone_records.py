"""What backbones say of themselves: signed by whom it is about, bounded, and of possible values."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings, strategies as st

from collab.errors import BadMessage
from collab.swarm.backbone_records import (
    MAX_ADDRESS_CHARACTERS,
    MAX_ADDRESSES,
    MAX_BYTES,
    PURPOSE,
    BackboneRecord,
    Publication,
    pack_backbone,
    unpack_backbone,
)
from collab.swarm.lease import MAX_TERM, Claim
from collab.types import Lineage
from tests.fakes import NOW
from tests.swarm.people import PEOPLE
from tests.swarm.test_records import PLAIN

ME, OTHER = PEOPLE[0], PEOPLE[1]
CLAIM = Claim(peer=ME.peer_id, said_at=NOW, term=3, seen_term=4, seen_holder=OTHER.peer_id, epoch=20, since=NOW - 9.5)
PUBLISHED = Publication(
    epoch=20, lineage=Lineage("a" * 64), digest="b" * 64, term=2, holder=OTHER.peer_id, eval_loss=1.25
)
ADDRESS = f"/ip4/1.2.3.4/tcp/4000/p2p/{ME.peer_id}"
RECORD = BackboneRecord(fingerprint="f" * 64, claim=CLAIM, addresses=(ADDRESS,), published=PUBLISHED)


def test_a_record_is_read_as_it_was_written() -> None:
    for record in (RECORD, replace(RECORD, published=None, addresses=())):
        assert unpack_backbone(pack_backbone(record, ME), ME.peer_id) == record


def test_a_record_with_the_longest_words_fits() -> None:
    longest = ADDRESS.replace("/ip4/1.2.3.4", "/dns4/" + "x" * (MAX_ADDRESS_CHARACTERS - len(ADDRESS) + 6))
    addresses = (longest[-MAX_ADDRESS_CHARACTERS:],) * MAX_ADDRESSES
    record = replace(RECORD, claim=replace(CLAIM, term=MAX_TERM, seen_term=MAX_TERM), addresses=addresses)
    assert len(pack_backbone(record, ME)) <= MAX_BYTES
    assert unpack_backbone(pack_backbone(record, ME), ME.peer_id) == record


def test_nobody_speaks_for_another_backbone() -> None:
    with pytest.raises(BadMessage, match="not signed"):
        unpack_backbone(pack_backbone(RECORD, ME), OTHER.peer_id)
    with pytest.raises(BadMessage, match="not signed"):
        unpack_backbone(pack_backbone(RECORD, OTHER), ME.peer_id)
    with pytest.raises(BadMessage, match="impossible"):
        unpack_backbone(pack_backbone(RECORD, OTHER), OTHER.peer_id)  # a claim about another


def test_a_signature_for_something_else_is_none() -> None:
    body, _ = msgpack.unpackb(pack_backbone(RECORD, ME))
    assert PURPOSE
    with pytest.raises(BadMessage, match="not signed"):
        unpack_backbone(msgpack.packb([body, ME.sign(body)]), ME.peer_id)


@pytest.mark.parametrize(
    "record",
    [
        replace(RECORD, claim=replace(CLAIM, term=-1)),
        replace(RECORD, claim=replace(CLAIM, term=MAX_TERM + 1)),
        replace(RECORD, claim=replace(CLAIM, said_at=float("nan"))),
        replace(RECORD, claim=replace(CLAIM, epoch=-2)),
        replace(RECORD, claim=replace(CLAIM, seen_holder="x" * 999)),
        replace(RECORD, addresses=(ADDRESS,) * (MAX_ADDRESSES + 1)),
        replace(RECORD, addresses=(f"/ip4/9.9.9.9/tcp/1/p2p/{OTHER.peer_id}",)),
        replace(RECORD, addresses=("x" * MAX_ADDRESS_CHARACTERS + ADDRESS,)),
        replace(RECORD, published=replace(PUBLISHED, digest="short")),
        replace(RECORD, published=replace(PUBLISHED, epoch=-1)),
        replace(RECORD, published=replace(PUBLISHED, term=True)),
    ],
)
def test_what_no_honest_backbone_says_is_refused(record: BackboneRecord) -> None:
    with pytest.raises(BadMessage):
        unpack_backbone(pack_backbone(record, ME), ME.peer_id)


def test_an_oversized_record_is_refused_before_it_is_read() -> None:
    with pytest.raises(BadMessage, match="over the limit"):
        unpack_backbone(bytes(MAX_BYTES + 1), ME.peer_id)


@settings(max_examples=200)
@given(name=st.sampled_from(["fingerprint", "claim", "addresses", "published"]), value=PLAIN)
def test_any_signed_nonsense_is_a_bad_message_or_a_record(name: str, value: Any) -> None:
    fields = msgpack.unpackb(msgpack.unpackb(pack_backbone(RECORD, ME))[0])
    body = msgpack.packb({**fields, name: value})
    with suppress(BadMessage):
        record = unpack_backbone(msgpack.packb([body, ME.sign(PURPOSE + body)]), ME.peer_id)
        assert isinstance(record, BackboneRecord)
