"""Who has given how much: each life once, on the disk, and of those who have gone nothing in memory."""

import asyncio
import json
import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collab.errors import CheckpointFailed, ConfigError
from collab.swarm.progress import SwarmView
from collab.swarm.records import PeerRecord
from collab.types import PeerId
from peers import credit_file
from peers.credit import MOST_OF_ONE, Credit
from peers.credit_file import MOST_PEERS, MOST_RANKED, CreditFile
from peers.credits import SAVE_S, CreditBook
from peers.upgrading import MARK, STEPS, bring_up_to_date
from tests.fakes import FakeCompute, FakeNetwork, make_ports, run
from tests.peers.test_upgrading import Killed, killed_at
from tests.swarm.people import record


def told(samples: int, *, person: int = 0, credit: bool = True) -> PeerRecord:
    peer = PeerId(f"12D3Koo{person:045d}")
    return record(0, peer=peer, total_samples=samples, wants_credit=credit, name=f"person {person}")


def hear(book: CreditBook, records: Iterable[PeerRecord], **who: Any) -> None:
    records = list(records)
    book.meet(records)
    book.note(records, **who)


def all_of(book: CreditBook) -> list[Credit]:
    return [credit for _, credit in book.by_peer()]


@contextmanager
def book_in(folder: Path, **named: Any) -> Iterator[CreditBook]:
    with closing(CreditBook(folder / "credits.sqlite", **named)) as book:
        yield book


def test_what_a_machine_gave_in_earlier_lives_counts_also_after_our_own_restart(tmp_path: Path) -> None:
    with book_in(tmp_path) as book:
        for samples in (10, 30, 5, 8):
            hear(book, [told(samples)])
        hear(book, [told(100, person=1, credit=False)])
        book.save()
        assert book._file._connection.execute("PRAGMA synchronous").fetchone() == (2,), "a power cut costs nothing"
    with book_in(tmp_path) as again:
        assert [(one.name, one.total) for one in all_of(again)] == [("", 100), ("person 0", 38)]


def test_a_late_record_and_a_second_machine_with_the_same_key_add_nothing_twice(tmp_path: Path) -> None:
    def told_of(book: CreditBook, *words: tuple[int, int]) -> list[int]:
        for life, samples in words:
            hear(book, [replace(told(samples), life=life)])
        return [one.total for one in all_of(book)]

    with book_in(tmp_path) as book:
        assert told_of(book, (1, 1000), (1, 900), (1, 1000)) == [1000], "the second one was read late"
        assert told_of(book, (2, 10), (1, 1001), (2, 11), (1, 1002)) == [1013], "two at once"
        book.save()
    with book_in(tmp_path) as book:
        assert told_of(book, (2, 12), (1, 1003), (3, 1003)) == [2018], "a new life that says as much as the one before"
        assert told_of(book, (4, 5), (5, 5), (6, 5), (7, 5)) == [2038]
        assert told_of(book, (7, 6), (6, 5)) == [2039]


def test_what_nobody_can_have_given_is_no_number_that_the_file_cannot_hold(tmp_path: Path) -> None:
    with book_in(tmp_path) as book:
        for life in range(1, 20):
            hear(book, [replace(told(2**53), life=life), told(2**53, person=1)])
        book.save()
        assert book.standings().total == 2 * MOST_OF_ONE
    with book_in(tmp_path) as again:
        assert again.standings().total == 2 * MOST_OF_ONE


def test_strangers_that_boast_push_nobody_out_who_was_in_a_round_also_after_our_restart(tmp_path: Path) -> None:
    with book_in(tmp_path) as book:
        hear(book, [told(10), told(20, person=1)], contributors=(told(1).peer,))
        book.save()
    with book_in(tmp_path) as again:
        boasts = [replace(told(10**9), peer=PeerId(f"stranger {number}")) for number in range(MOST_PEERS + 5)]
        for at_once in (boasts[: MOST_PEERS // 2], boasts[MOST_PEERS // 2 :]):
            hear(again, [told(12), *at_once])
            again.save()
        again.note(())
        again.save()
        known = dict(again.by_peer())
    assert len(known) == MOST_PEERS
    assert known[told(1).peer].total == 12
    assert told(1, person=1).peer not in known, "of those nobody has seen in a round who gave most stays"


# -- in memory and on the disk -----------------------------------------------------------------------------------------


def test_who_has_gone_is_on_the_disk_and_not_in_memory_and_goes_on_from_there(tmp_path: Path) -> None:
    crowd = [told(10 + person, person=person) for person in range(MOST_RANKED + 30)]
    with book_in(tmp_path) as book:
        hear(book, crowd)
        before = book.standings()
        book.save()
        assert book._known.here.keys() == {one.peer for one in crowd}, "they are here"
        hear(book, crowd[:1])
        book.save()
        assert book._known.here.keys() == {crowd[0].peer}
        assert len(book._known.others.first) == MOST_RANKED
        assert book.standings() == before
        hear(book, [told(3), told(50, person=5), *crowd[6:8]])
        after = book.standings()
        assert (after.number, after.total) == (before.number, before.total + 3 + 50 - 15)
        assert {peer: one.total for peer, one in book.by_peer()}[told(1, person=5).peer] == 50
        assert after.first[0][1].name == f"person {MOST_RANKED + 29}"
        assert after.first == tuple(book.by_peer()[:MOST_RANKED])


def test_standings_are_of_those_who_were_seen_where_that_is_asked_for(tmp_path: Path) -> None:
    for only_seen, expected in ((True, (1, 10)), (False, (2, 30))):
        with book_in(tmp_path, only_seen=only_seen) as book:
            hear(book, [told(10), told(20, person=1)], contributors=(told(1).peer,))
            for _ in range(3):
                standings = book.standings()
                assert (standings.number, standings.total, len(standings.first)) == (*expected, expected[0])
                book.note(())
                book.save()
            assert not book._known.here


def test_a_disk_that_takes_nothing_loses_nobody_and_is_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with book_in(tmp_path) as book, caplog.at_level(logging.WARNING):
        hear(book, [told(10), told(20, person=1)])
        with monkeypatch.context() as broken:
            broken.setattr(CreditFile, "write", full)
            book.save()
            hear(book, [told(30, person=2)])
            book.save()
            assert [one.total for one in all_of(book)] == [30, 20, 10]
            monkeypatch.setattr("peers.credits.MOST_PEERS", 2)
            book.save()
            assert [one.total for one in all_of(book)] == [30, 20], "for weeks there are new ones"
        assert caplog.text.count("database or disk is full") == 1
        hear(book, ())
        book.save()
        assert not book._known.here
    with book_in(tmp_path) as again:
        assert [one.total for one in all_of(again)] == [30, 20], "it is tried again"


def test_who_was_in_a_round_stays_when_the_disk_takes_nothing_and_memory_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with book_in(tmp_path) as book:
        hear(book, [told(1), told(20, person=1), told(30, person=2)], contributors=(told(1).peer,))
        monkeypatch.setattr(CreditFile, "_write", lambda *_: book._file._connection.execute("no such thing"))
        monkeypatch.setattr("peers.credits.MOST_PEERS", 2)
        book.save()
        assert [one.total for one in all_of(book)] == [30, 1]


@pytest.mark.parametrize("met_by", ["a save", "a look at strangers", "a publication"])
def test_a_file_that_is_damaged_meanwhile_costs_nobody_who_is_known_here(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, met_by: str
) -> None:
    crowd = [told(10 + person, person=person) for person in range(3000)]
    here, going, rest = crowd[:20], crowd[20:40], crowd[40:]
    with book_in(tmp_path) as book:
        hear(book, rest)
        book.note(())
        book.save()
        hear(book, [*here, *going])
        book.save()
        first = {peer for peer, _ in book._known.others.first}
        here = [*(replace(one, total_samples=one.total_samples + 1) for one in here[:10]), *here[10:]]
        hear(book, here)
        book._file._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with (tmp_path / "credits.sqlite").open("r+b") as file:  # all but the first pages
            for start in range(5 * 4096, (tmp_path / "credits.sqlite").stat().st_size, 4096):
                file.seek(start)
                file.write(b"\xa5" * 4096)
        book._file._connection.execute("PRAGMA shrink_memory")
        if met_by == "a look at strangers":
            hear(book, [*here, told(7, person=9999), replace(crowd[-1], total_samples=5, life=3)])
        elif met_by == "a publication":
            assert len(book.by_peer()) >= 70
        book.save()
    assert (tmp_path / "credits.unreadable.sqlite").exists()
    with book_in(tmp_path) as again:
        known = dict(again.by_peer())
    assert {one.peer for one in (*here, *going)} | first <= known.keys()
    assert all(known[one.peer].total == one.total_samples for one in (*here, *going))
    if met_by == "a look at strangers":
        assert known[crowd[-1].peer].total == crowd[-1].total_samples + 5, "it was among those who gave most"


@pytest.mark.parametrize(
    "spoiled", ["others = '{\"'", "others = '[3]'", "said_at_s = NULL", "name = CAST(x'ff' AS TEXT)"]
)
def test_a_row_that_the_disk_has_spoiled_is_one_row(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoiled: str
) -> None:
    with book_in(tmp_path) as book:
        hear(book, [told(10), told(20, person=1)])
        book.save()
    with closing(sqlite3.connect(tmp_path / "credits.sqlite", isolation_level=None)) as database:
        database.execute(f"UPDATE credits SET {spoiled} WHERE total = 20")
    with book_in(tmp_path) as again:
        is_lost = "name" not in spoiled
        assert [one.total for one in all_of(again)] == ([10] if is_lost else [20, 10])
        assert (told(1, person=1).peer in caplog.text) == is_lost
        hear(again, [replace(told(5, person=1), life=2)])
        again.save()
        assert [one.total for one in all_of(again)] == ([10, 5] if is_lost else [25, 10])


def test_who_was_known_before_a_start_on_a_full_disk_is_known_and_all_is_written_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with book_in(tmp_path) as book:
        hear(book, [told(10), told(20, person=1)])
        book.save()
    with monkeypatch.context() as full:

        def refuse(*_: object) -> None:
            raise OSError(28, "No space left on device")

        full.setattr(CreditFile, "open", refuse)
        again = CreditBook(tmp_path / "credits.sqlite")
        assert again.standings().total == 30
        hear(again, [replace(told(5), life=2), told(1, person=2)])
        again.save()
    with closing(again):
        assert "the book of contributors is kept in memory only" in caplog.text
        again.save()
        assert again.standings().total == 36
    with book_in(tmp_path) as last:
        assert [one.total for one in all_of(last)] == [20, 15, 1]


def test_a_disk_that_gives_nothing_makes_nobody_begin_at_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken_disk(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with book_in(tmp_path) as book, caplog.at_level(logging.WARNING):
        hear(book, [told(10)])
        book.note(())
        book.save()
        with monkeypatch.context() as broken:
            broken.setattr(CreditFile, "_rows", broken_disk)
            hear(book, [replace(told(5), life=2)])
            with pytest.raises(CheckpointFailed, match="disk I/O error"):
                book.by_peer()
        book.save()
        hear(book, [replace(told(6), life=2)])
        assert [one.total for one in all_of(book)] == [16]
    assert "cannot be read: disk I/O error" in caplog.text


def test_a_book_is_written_beside_the_event_loop_and_once_more_at_the_end(tmp_path: Path) -> None:
    ports, samples, threads = make_ports(FakeNetwork().join("a")), iter(range(1, 100)), 0

    class Beside(FakeCompute):
        async def beside(self, work: Callable[[], Any]) -> Any:
            nonlocal threads
            threads += 1
            return work()

    def kept() -> list[tuple[int, str, bool, float]]:
        with book_in(tmp_path) as another:
            return [(one.total, one.invite, one.is_seen, one.said_at_s) for one in all_of(another)]

    async def main() -> None:
        with book_in(tmp_path) as book:
            loop, seen = asyncio.get_running_loop(), []
            loop.call_later(SAVE_S + 4.5, lambda: seen.extend(kept()))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(SAVE_S + 5.0):
                    await book.keep(
                        replace(ports, compute=Beside()),
                        lambda: SwarmView(at_s=0.0, records=(replace(told(next(samples)), said_at=7.0),)),
                        lambda _: PeerId("an invite"),
                        lambda: (told(1).peer,),
                    )
            [(first, *_)], [last] = seen, all_of(book)
            assert kept() == [(last.total, "an invite", True, 7.0)]
            assert last.total > first
            assert threads == 2, "one that looked it up, and one that wrote"

    run(main())


def test_a_book_that_cannot_be_read_is_put_aside_and_never_written_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "credits.sqlite"
    for number in ("", "-2", "-3"):
        path.write_bytes(b"no book, and long enough to be taken for a database " * 90 + number.encode())
        with book_in(tmp_path) as book:
            assert all_of(book) == []
            hear(book, [told(10)])
            book.save()
        aside = tmp_path / f"credits.unreadable{number}.sqlite"
        assert aside.read_bytes().endswith(b" " + number.encode())
        assert str(aside) in caplog.text
        assert "to have it back" in caplog.text


def test_a_book_that_cannot_be_put_aside_either_is_not_written_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    path = tmp_path / "credits.sqlite"
    path.write_bytes(b"{" * 5000)
    monkeypatch.setattr(Path, "replace", fails)
    with book_in(tmp_path) as book:
        hear(book, [told(10)])
        book.save()
        assert [one.total for one in all_of(book)] == [10], "it counts, for as long as it lives"
    assert path.read_bytes() == b"{" * 5000
    assert "the book of contributors is kept in memory only" in caplog.text


# -- names and moments -------------------------------------------------------------------------------------------------


def test_when_somebody_gave_last_is_when_it_first_said_so(tmp_path: Path) -> None:
    with book_in(tmp_path) as book:
        for said_at, samples in ((5.0, 10), (9.0, 10), (13.0, 12), (17.0, 12)):
            hear(book, [replace(told(samples), said_at=said_at), replace(told(0, person=1), said_at=said_at)])
        assert book.grew_at_s(told(1).peer) == 13.0
        assert book.grew_at_s(told(1, person=1).peer) is None, "who has given nothing"
        assert book.grew_at_s(PeerId("nobody")) is None
        book.save()
    with book_in(tmp_path) as again:
        hear(again, [replace(told(12), said_at=99.0)])
        assert again.grew_at_s(told(1).peer) == 13.0
        hear(again, [replace(told(3), said_at=103.0)])
        assert again.grew_at_s(told(1).peer) == 103.0, "of a new life"


def test_when_somebody_has_last_said_whether_to_be_named_is_known_after_our_restart(tmp_path: Path) -> None:
    with book_in(tmp_path) as book:
        for at_s, credit, expected in ((5.0, True, 5.0), (9.0, True, 9.0), (20.0, False, 20.0), (7.0, False, 20.0)):
            records = [replace(told(int(at_s), credit=credit), said_at=at_s)]
            hear(book, records)
            book.date(records)
            assert [one.said_at_s for one in all_of(book)] == [expected]
        book.date([replace(told(30), said_at=30.0)])
        assert [one.said_at_s for one in all_of(book)] == [20.0], "another word than the one that is in the book"
        hear(book, [replace(told(7), said_at=7.0)])
        assert [one.name for one in all_of(book)] == [""], "a record that is read late"
        book.save()
        for said_at in (30.0, 40.0):
            same = [replace(told(7, credit=False), said_at=said_at)]
            hear(book, same)
            book.date(same)
            book._changed.clear()
        book.note(())
        book.save()
    with book_in(tmp_path) as again:
        assert [one.said_at_s for one in all_of(again)] == [40.0], "it has gone, and had said it once more"


def test_who_takes_the_name_back_is_heard_before_the_new_life_has_given_anything(tmp_path: Path) -> None:
    """It may leave before it does."""
    with book_in(tmp_path) as book:
        for records in (
            [replace(told(32), life=1, said_at=10.0)],
            [replace(told(0, credit=False), life=2, said_at=20.0), replace(told(0, person=1), said_at=20.0)],
            [replace(told(32), life=1, said_at=15.0)],
        ):
            hear(book, records)
            book.date(records)
            book.save()
        [credit] = all_of(book)
        assert (credit.name, credit.said_at_s, credit.total, credit.life) == ("", 20.0, 32, 1)
        back = [replace(told(0), life=2, said_at=30.0)]
        hear(book, back)
        book.date(back)
        assert [(one.name, one.said_at_s) for one in all_of(book)] == [("person 0", 30.0)]


def test_who_takes_the_word_back_is_named_no_more(tmp_path: Path) -> None:
    with book_in(tmp_path) as book:
        hear(book, [told(10)])
        hear(book, [told(12, credit=False)])
        assert [one.name for one in all_of(book)] == [""]


def test_with_which_invite_somebody_came_is_known_after_our_restart_and_when_it_shows_none_any_more(
    tmp_path: Path,
) -> None:
    with book_in(tmp_path) as book:
        hear(book, [told(10)])
        book.save()
        hear(book, [told(10)], voice_of=lambda _: PeerId("an invite"))
        book.save()
    with book_in(tmp_path) as again:
        hear(again, [told(12)])
        assert [one.invite for one in all_of(again)] == ["an invite"]


# -- what earlier versions wrote ---------------------------------------------------------------------------------------


def of_before(folder: Path, content: bytes) -> None:
    (folder / "identity.key").write_bytes(b"key")
    (folder / "credits.json").write_bytes(content)


def test_a_book_of_an_earlier_version_is_taken_over(tmp_path: Path) -> None:
    anna = {"name": "Anna", "earlier": 5, "samples": 30, "invite": ""}
    bert = {"name": "", "earlier": 1, "samples": 2, "invite": "an invite", "is_seen": False, "life": 9}
    bert |= {"others": {"7": 4, "8": 3}, "said_at_s": 12.5}
    of_before(tmp_path, json.dumps({told(1).peer: anna, "b": bert}).encode())
    for _ in range(2):
        bring_up_to_date(tmp_path)
        assert not (tmp_path / "credits.json").exists()
        with book_in(tmp_path) as book:
            known = dict(book.by_peer())
            assert known[told(1).peer] == Credit("Anna", 5, 30, is_seen=True), "nobody had looked whether it was seen"
            assert known[PeerId("b")] == Credit("", 1, 2, "an invite", False, 9, {7: 4, 8: 3}, 12.5)


def test_a_mended_book_of_an_earlier_version_is_taken_over_later_and_costs_nobody_anything(tmp_path: Path) -> None:
    of_before(tmp_path, b"{")
    bring_up_to_date(tmp_path)
    with book_in(tmp_path) as book:
        hear(book, [told(100), told(3, person=1)])
        book.save()
    mended = {told(1).peer: {"name": "A", "earlier": 5, "samples": 30}}
    mended |= {told(1, person=1).peer: {"name": "B", "earlier": 5, "samples": 30}}
    (tmp_path / "credits.json").write_text(json.dumps(mended))
    (tmp_path / MARK).unlink()
    bring_up_to_date(tmp_path)
    with book_in(tmp_path) as book:
        assert [one.total for one in all_of(book)] == [100, 35]


@pytest.mark.parametrize("is_full", [True, False])
def test_a_disk_that_does_not_take_the_book_over_keeps_the_directory_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    def full(self: CreditFile, *_: object) -> None:
        self._connection.execute("PRAGMA max_page_count = 1")
        self._connection.execute("CREATE TABLE more (than, there, is, room, for)")

    of_before(tmp_path, json.dumps({told(1).peer: {"name": "Anna", "earlier": 5, "samples": 30}}).encode())
    with monkeypatch.context() as broken:
        if is_full:
            broken.setattr(CreditFile, "_write", full)
        else:
            broken.setattr(CreditFile, "open", lambda _: CreditFile.in_memory())
        with pytest.raises(ConfigError, match="cannot be brought up to date"):
            bring_up_to_date(tmp_path)
    assert (tmp_path / "credits.json").exists()
    bring_up_to_date(tmp_path)
    with book_in(tmp_path) as book:
        assert [one.total for one in all_of(book)] == [35]


def test_a_kill_in_the_middle_of_taking_over_loses_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = json.dumps({told(1).peer: {"name": "Anna", "earlier": 5, "samples": 30}}).encode()
    was_old = set()
    for call in range(20):
        folder = tmp_path / str(call)
        folder.mkdir()
        of_before(folder, content)
        try:
            with killed_at(call, monkeypatch):
                bring_up_to_date(folder)
            break
        except Killed:
            is_old = not (folder / MARK).exists() or json.loads((folder / MARK).read_bytes())["format"] < len(STEPS)
            assert not is_old or (folder / "credits.json").read_bytes() == content, "the program before goes on with it"
            was_old.add(is_old)
            bring_up_to_date(folder)
        with book_in(folder) as book:
            assert [(one.name, one.total) for one in all_of(book)] == [("Anna", 35)]
        assert not (folder / "credits.json").exists()
    else:
        pytest.fail("it was killed each time")
    assert was_old == {True, False}


def test_a_trainer_that_says_its_life_after_an_upgrade_is_counted_once(tmp_path: Path) -> None:
    of_before(tmp_path, json.dumps({told(1).peer: {"name": "Anna", "earlier": 5, "samples": 30}}).encode())
    bring_up_to_date(tmp_path)
    with book_in(tmp_path) as book:
        hear(book, [replace(told(31), life=7)])
        assert [one.total for one in all_of(book)] == [36]
        hear(book, [replace(told(2), life=8)])
        assert [one.total for one in all_of(book)] == [38]


@pytest.mark.parametrize("content", ["", "[]", "{", '{"a": 3}', '{"a": {"name": 1}}', "\xff", "[" * 100_000])
def test_a_book_of_an_earlier_version_that_cannot_be_read_is_put_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    of_before(tmp_path, content.encode("latin-1"))
    (tmp_path / "credits.unreadable-1.json").write_bytes(b"another one")
    bring_up_to_date(tmp_path)
    aside = tmp_path / "credits.unreadable-2.json"
    assert aside.read_bytes() == content.encode("latin-1")
    assert str(aside) in caplog.text
    with book_in(tmp_path) as book:
        assert all_of(book) == []


def test_more_than_a_book_holds_are_cut_when_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credit_file, "MOST_PEERS", 3)
    with closing(CreditFile.open(tmp_path / "credits.sqlite")) as file:
        file.write({PeerId(f"p{number}"): Credit(samples=number, is_seen=number == 1) for number in range(6)})
        assert set(file.all()) == {"p1", "p4", "p5"}
