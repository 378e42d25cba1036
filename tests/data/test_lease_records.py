from dataclasses import replace

import msgpack
import pytest

from collab.data.lease_records import MAX_ENTRY_BYTES, MAX_LIFE_S, EntryReader, Page, PageEntry, pack_entry
from collab.errors import BadMessage
from collab.swarm.identity import Identity
from collab.types import PeerId

ALICE, BOB = Identity.from_seed(b"a" * 32), Identity.from_seed(b"b" * 32)
PAGE = Page(fingerprint="f" * 64, data=f"samples.1500.{'a' * 32}", pass_number=3, page=1)
ENTRY = PageEntry(page=PAGE, said_at=1000.0, life_s=45.0, held=(1 << 16) - 1, trained=5)


def read(data: bytes, peer: PeerId = ALICE.peer_id, page: Page = PAGE) -> PageEntry:
    return EntryReader(BOB).read(data, peer, page)


def forged(*body: object, signer: Identity = ALICE) -> bytes:
    packed = msgpack.packb(list(body))
    data: bytes = msgpack.packb([packed, signer.sign(b"collab/lease/2" + packed)])
    return data


BODY = ("f" * 64, PAGE.data, 3, 1, 1000.0, 45.0, b"\0" * 2, b"\0" * 2)


def test_an_entry_arrives_as_it_was_said_and_is_small() -> None:
    data = pack_entry(ENTRY, ALICE)
    assert read(data) == ENTRY
    assert len(data) < 300 < MAX_ENTRY_BYTES


def test_only_its_author_can_have_said_it() -> None:
    with pytest.raises(BadMessage, match="not signed"):
        read(pack_entry(ENTRY, BOB))


def test_a_signature_that_was_given_for_something_else_is_none() -> None:
    body = msgpack.packb(list(BODY))
    assert read(forged(*BODY)).held == 0
    with pytest.raises(BadMessage, match="not signed"):
        read(msgpack.packb([body, ALICE.sign(body)]))


def test_an_entry_is_good_for_its_own_page_only() -> None:
    for other in (replace(PAGE, page=2), replace(PAGE, pass_number=4), replace(PAGE, fingerprint="e" * 64)):
        with pytest.raises(BadMessage, match="another page"):
            read(pack_entry(ENTRY, ALICE), page=other)


@pytest.mark.parametrize(
    "change",
    [(0, 7), (1, "x" * 100), (2, -1), (2, True), (3, 1 << 40), (4, float("nan")), (4, -1.0), (5, float("inf")),
     (6, b"\0" * 17), (6, 3), (7, b""), (7, None)],
)  # fmt: skip
def test_impossible_values_are_refused(change: tuple[int, object]) -> None:
    body: list[object] = list(BODY)
    body[change[0]] = change[1]
    with pytest.raises(BadMessage):
        read(forged(*body))


@pytest.mark.parametrize("data", [b"", b"\xc1", b"x" * (MAX_ENTRY_BYTES + 1), msgpack.packb(7), msgpack.packb([1, 2])])
def test_nonsense_is_refused(data: bytes) -> None:
    with pytest.raises(BadMessage):
        read(data)


def test_a_claim_lives_as_long_as_its_reader_allows() -> None:
    assert ENTRY.is_live(1045.0)
    assert not ENTRY.is_live(1046.0)
    for_ever = replace(ENTRY, life_s=1e12)
    assert for_ever.is_live(1000.0 + MAX_LIFE_S)
    assert not for_ever.is_live(1001.0 + MAX_LIFE_S)
    assert not replace(ENTRY, said_at=5000.0).is_live(1000.0), "from the future"
