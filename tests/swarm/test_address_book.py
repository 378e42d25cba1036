"""Where backbones are: what the invite says, and what was learned since."""

import asyncio
from pathlib import Path

import pytest

from collab.swarm.address_book import FIRST_LOOK_S, MOST_LEARNED, AddressBook, live_addresses
from collab.swarm.backbone_records import BackboneRecord, pack_backbone
from collab.swarm.lease import Claim
from tests.fakes import NOW, FakeDirectory, FakeNetwork, make_ports, run
from tests.swarm.people import PEOPLE

F = "f" * 64


def record(person: int, *places: str, since: float = NOW) -> BackboneRecord:
    """A backbone's word about where it is."""
    peer = PEOPLE[person].peer_id
    claim = Claim(peer=peer, said_at=NOW, since=since)
    return BackboneRecord(fingerprint=F, claim=claim, addresses=tuple(f"{place}/p2p/{peer}" for place in places))


def test_what_is_learned_is_there_at_once_and_in_the_next_life(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "backbones.json"
    book = AddressBook(["/a"], path)
    assert list(book) == ["/a"]
    book.learn(["/b", "/a", "/c"])
    assert list(book) == ["/a", "/b", "/c"]
    assert len(book) == 3
    assert "/c" in book
    assert list(AddressBook(["/z"], path)) == ["/z", "/b", "/a", "/c"]


def test_the_newest_are_remembered_and_not_too_many(tmp_path: Path) -> None:
    book = AddressBook((), tmp_path / "book")
    for number in range(MOST_LEARNED + 5):
        book.learn([f"/{number}"])
    assert list(book) == [f"/{number}" for number in range(MOST_LEARNED + 4, 4, -1)]


@pytest.mark.parametrize("content", ["", "{", '{"a": 1}', "[1, 2]", '["' + "x" * 999 + '"]'])
def test_a_damaged_book_costs_what_was_learned_and_no_more(tmp_path: Path, content: str) -> None:
    path = tmp_path / "book"
    path.write_text(content)
    assert list(AddressBook(["/a"], path)) == ["/a"]


def test_a_book_that_cannot_be_written_still_works(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    book = AddressBook((), tmp_path / "file" / "book")
    book.learn(["/a"])
    assert list(book) == ["/a"]
    assert "cannot be noted" in caplog.text


def test_of_several_backbones_each_is_among_the_first_addresses() -> None:
    records = [record(0, "/x", "/y", since=NOW), record(1, "/z", since=NOW - 9)]
    ends = [address.partition("/p2p/")[0] for address in live_addresses(records)]
    assert ends == ["/z", "/x", "/y"]


def test_a_peer_learns_where_other_backbones_are_and_not_from_forgers() -> None:
    book, found = AddressBook(["/invited"]), []

    async def main() -> None:
        async with FakeNetwork() as network:
            directory = FakeDirectory()
            ports = make_ports(network.join(PEOPLE[0].peer_id), directory)
            for teller, person in ((0, 0), (1, 1), (2, 2), (3, 4)):  # the last one signs what is another's
                packed = pack_backbone(record(teller, f"/at-{teller}"), PEOPLE[person])
                expires_at = NOW + 100
                await directory.store(
                    f"{F[:32]}.backbones", PEOPLE[teller].peer_id, packed, expires_at=expires_at, timeout_s=1.0
                )
            network.run(book.follow(ports, F, vouched=lambda peer: peer != PEOPLE[2].peer_id))
            await asyncio.sleep(FIRST_LOOK_S + 1)
            found.extend(book)

    run(main())
    assert [address.partition("/p2p/")[0] for address in found] == ["/invited", "/at-1"]
