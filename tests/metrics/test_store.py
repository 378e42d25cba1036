"""A backbone's metrics on its disk: what is kept of them, for how long, and what a disk that takes nothing costs."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from collab.database import LONGEST_JOURNAL_BYTES
from collab.metrics import store as store_module
from collab.metrics.backbone_events import RolledBack
from collab.metrics.recorder import MOST_WAITING, TRY_AGAIN_S, Recorder
from collab.metrics.records import Event, MicrobatchDone, Notice, RoundEnded, SwarmReport
from collab.metrics.store import KEPT, MetricsStore, matters
from tests.fakes import FakeCompute, run
from tests.metrics.test_names import REPORT, ROUND

T = TypeVar("T")


@contextmanager
def store_at(path: Path) -> Iterator[MetricsStore]:
    with closing(MetricsStore.open(path)) as store:
        yield store


def report(epoch: int, loss: float = 1.0) -> SwarmReport:
    return replace(REPORT, epoch=epoch, loss=loss, eval_epoch=-1, at_s=float(epoch))


def test_curves_counters_and_events_are_there_in_the_next_life(tmp_path: Path) -> None:
    with store_at(tmp_path / "m.sqlite") as store:
        store.write([report(1, 3.0), report(2, 2.0), ROUND, replace(ROUND, committed=False, reason="no")])
        store.write([report(2, 1.5), ROUND])
    with store_at(tmp_path / "m.sqlite") as store:
        curve = store.curve("loss")
        assert (curve.epochs, curve.values) == ((1, 2), (3.0, 1.5)), "the last word about an epoch counts"
        assert store.curve("loss", after_epoch=1).epochs == (2,)
        assert store.counters() == {"rounds_committed_total": 2, "rounds_aborted_total": 1}
        assert [told["committed"] for told in store.newest(RoundEnded, 2)] == [True, False], "newest first"
        assert store.newest_figures()["loss"] == 1.5


def test_what_came_after_a_rollback_is_forgotten() -> None:
    with closing(MetricsStore.in_memory()) as store:
        back = RolledBack(at_s=0.0, epoch=5, era="back")
        store.write([*(report(epoch) for epoch in range(1, 11)), back, report(6, 7.0)])
        curve = store.curve("loss")
        assert curve.epochs == (1, 2, 3, 4, 5, 6)
        assert curve.values[-1] == 7.0


def test_the_mark_of_the_last_rollback_is_known_in_the_next_life_unless_an_earlier_version_has_written_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "m.sqlite"
    with store_at(path) as store:
        assert store.era() == ""
        store.write([RolledBack(at_s=0.0, epoch=5, era="first"), RolledBack(at_s=1.0, epoch=3, era="second")])
    with store_at(path) as store:
        assert store.era() == "second"
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("UPDATE events SET fields = ?", ('{"at_s": 1.0, "epoch": 3}',))
    with store_at(path) as store:
        assert store.era() is None


def test_it_stays_small_and_keeps_the_beginning_of_a_long_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MOST_POINTS", 200)
    path = tmp_path / "m.sqlite"
    sizes = []
    with store_at(path) as store:
        for start in range(0, 6_000, 100):
            notices = [Notice(at_s=0.0, text=f"{start}") for _ in range(20)]
            store.write([*(report(epoch) for epoch in range(start, start + 100)), *notices])
            sizes.append(sum(file.stat().st_size for file in tmp_path.iterdir()))
        epochs = store.curve("loss").epochs
        assert len(epochs) <= 300
        assert epochs[0] < 100, "the first curve is still there, sparsely"
        assert epochs[-50:] == tuple(range(5_950, 6_000)), "and the newest points, all of them"
        assert len(store.newest(Notice, 1_000)) == KEPT[Notice]
    assert max(sizes) <= LONGEST_JOURNAL_BYTES + 500_000
    assert path.stat().st_size <= 300_000


def test_a_store_that_was_started_often_is_thinned_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MOST_POINTS", 200)
    for start in range(0, 500, 2):
        with store_at(tmp_path / "m.sqlite") as store:
            store.write([report(start), report(start + 1)])
            assert len(store.curve("loss").epochs) <= 202


def test_a_long_curve_is_told_in_few_points_with_the_last_one() -> None:
    with closing(MetricsStore.in_memory()) as store:
        store.write([report(epoch) for epoch in range(1000)])
        epochs = store.curve("loss", most=100).epochs
        assert len(epochs) == 100
        assert epochs[-1] == 999
        assert store.curve("no such metric").epochs == ()


@pytest.mark.parametrize("content", [b"no database at all, but long enough to be taken for one" * 9, "later"])
def test_a_file_that_cannot_be_read_is_put_aside_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | str
) -> None:
    path = tmp_path / "m.sqlite"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        with closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA user_version = 99")
    with store_at(path) as store:
        store.write([report(1)])
        assert store.curve("loss").epochs == (1,)
    assert (tmp_path / "m.unreadable.sqlite").exists()
    assert "m.unreadable.sqlite" in caplog.text


def damage(path: Path) -> None:
    """All pages but those with the header and the tables' names."""
    page = 4096
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:
        for start in range(5 * page, path.stat().st_size, page):
            file.seek(start)
            file.write(b"\xa5" * 200)


def test_a_file_whose_later_pages_are_damaged_is_put_aside_when_it_is_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "m.sqlite"
    with store_at(path) as store:
        store.write([report(epoch) for epoch in range(2000)])
    damage(path)
    with store_at(path) as store:
        assert store.curve("loss").epochs == ()
        assert store.newest(SwarmReport, 1) == []
        store.write([report(1)])
        assert store.curve("loss").epochs == (1,)
    assert (tmp_path / "m.unreadable.sqlite").stat().st_size > 100_000
    assert "m.unreadable.sqlite" in caplog.text


@pytest.mark.parametrize("use", [lambda store: store.write([report(5000)]), lambda store: store.curve("loss")])
@pytest.mark.parametrize("is_disk_gone", [False, True])
def test_a_file_that_is_damaged_meanwhile_is_put_aside_and_what_comes_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
    use: Callable[[MetricsStore], object], is_disk_gone: bool,
) -> None:  # fmt: skip
    def refuse(self: Path, target: Path) -> Path:
        raise OSError(30, "Read-only file system")

    path = tmp_path / "m.sqlite"
    with store_at(path) as store:
        store.write([report(epoch) for epoch in range(3000)])
        damage(path)
        if is_disk_gone:
            monkeypatch.setattr(Path, "replace", refuse)
        use(store)
        store.write([report(5001)])
        assert store.curve("loss").epochs[-1] == 5001
        assert len(store.curve("loss").epochs) <= 2
    assert (tmp_path / "m.unreadable.sqlite").exists() != is_disk_gone
    assert ("m.unreadable.sqlite" in caplog.text) != is_disk_gone
    assert str(path) in caplog.text
    assert ("in memory only" in caplog.text) == is_disk_gone


def test_a_place_that_takes_no_file_is_an_error_of_the_disk(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"gone.m\.sqlite"):
        MetricsStore.open(tmp_path / "gone" / "m.sqlite")


# -- the recorder ----------------------------------------------------------------------------------------------------


class FullDisk(MetricsStore):
    """A store whose disk is full as long as the test says."""

    is_full = True
    attempts = 0

    def write(self, events: list[Event]) -> None:  # type: ignore[override]
        self.attempts += 1
        if self.is_full:
            raise sqlite3.OperationalError("database or disk is full")
        super().write(events)


def live(recorder: Recorder, seconds: float, *changes: tuple[float, Callable[[], None]]) -> None:
    """Run it for a while; ``changes`` happen at their times."""

    async def main() -> None:
        for at_s, change in changes:
            asyncio.get_running_loop().call_at(at_s, change)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(seconds):
                await recorder.run()

    run(main())


def test_events_are_written_once_a_second_and_only_those_that_say_something() -> None:
    with closing(FullDisk.in_memory()) as store:
        store.is_full = False
        recorder = Recorder(FakeCompute(), store)
        quiet = MicrobatchDone(at_s=0.0, epoch=1, samples=8, loss=1.0, seconds=0.1)
        assert not matters(quiet)
        changes = [(0.1 * number, lambda: recorder.observe(report(1))) for number in range(30)]
        live(recorder, 10.0, *changes, (0.5, lambda: recorder.observe(quiet)))
        assert 2 <= store.attempts <= 4
        assert store.curve("loss").epochs == (1,)


def test_a_full_disk_is_told_once_and_what_waited_is_written_when_it_takes_it(caplog: pytest.LogCaptureFixture) -> None:
    with closing(FullDisk.in_memory()) as store:
        recorder = Recorder(FakeCompute(), store)
        changes = [(float(second), lambda second=second: recorder.observe(report(second))) for second in range(1, 100)]
        with caplog.at_level(logging.WARNING):
            live(recorder, 200.0, *changes, (150.0, lambda: setattr(store, "is_full", False)))
        assert store.curve("loss").epochs == tuple(range(1, 100))
        assert store.attempts <= 150 / TRY_AGAIN_S + 4
        assert caplog.text.count("cannot be stored") == 1


def test_a_disk_that_stays_full_does_not_fill_the_memory() -> None:
    with closing(FullDisk.in_memory()) as store:
        recorder = Recorder(FakeCompute(), store)
        for epoch in range(MOST_WAITING + 500):
            recorder.observe(report(epoch))
        recorder.write()
        store.is_full = False
        recorder.write()
        assert len(store.curve("loss").epochs) == MOST_WAITING
        assert store.curve("loss").epochs[-1] == MOST_WAITING + 499, "the newest stay"


def test_a_batch_that_fails_in_the_middle_leaves_nothing_behind() -> None:
    with closing(MetricsStore.in_memory()) as store:
        store.write([report(1)])
        bad = replace(ROUND, at_s=object())  # type: ignore[arg-type]
        with pytest.raises((sqlite3.Error, TypeError)):
            store.write([report(2), bad])
        assert store.curve("loss").epochs == (1,)
        store.write([report(3)])
        assert store.curve("loss").epochs == (1, 3)
        assert store.counters() == {}


def test_a_disk_that_is_really_full_leaves_what_was_there_and_takes_the_rest_later(tmp_path: Path) -> None:
    with store_at(tmp_path / "m.sqlite") as store:
        recorder = Recorder(FakeCompute(), store)
        recorder.observe(report(1))
        recorder.write()
        (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
        store._connection.execute(f"PRAGMA max_page_count = {pages}")
        for epoch in range(2, 2_000):
            recorder.observe(report(epoch))
        recorder.write()
        assert store.curve("loss").epochs == (1,), "all of it, or nothing"
        store._connection.execute("PRAGMA max_page_count = 100000")
        recorder.write()
        assert store.curve("loss").epochs == tuple(range(1, 2_000))


@pytest.mark.parametrize("epoch", [2**53 + 1, 2**63, 2**64 - 1, -(2**63) - 1])
def test_an_epoch_that_a_liar_claims_is_no_point_of_a_curve_and_ends_nothing(epoch: int) -> None:
    with closing(MetricsStore.in_memory()) as store:
        recorder = Recorder(FakeCompute(), store)
        recorder.observe(replace(REPORT, epoch=epoch, eval_epoch=epoch))
        recorder.observe(replace(ROUND, epoch=epoch))
        recorder.observe(report(3))
        recorder.write()
        assert store.curve("loss").epochs == (3,)
        assert store.curve("eval_loss").epochs == ()
        assert store.curve("round_s").epochs == ()


def test_what_cannot_be_written_whatever_it_is_is_left_out_and_told(caplog: pytest.LogCaptureFixture) -> None:
    with closing(MetricsStore.in_memory()) as store:
        recorder = Recorder(FakeCompute(), store)
        recorder.observe(replace(ROUND, reason={1, 2}))  # type: ignore[arg-type]
        recorder.write()
        recorder.observe(report(3))
        recorder.write()
        assert store.curve("loss").epochs == (3,)
        assert "please report this" in caplog.text
