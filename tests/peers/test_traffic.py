"""A month's gigabytes: counted over restarts, anew each month, and never lost with a damaged file unsaid."""

import asyncio
import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collab.errors import BootstrapFailed
from collab.net import hivemind_net
from collab.net.daemon import daemon_traffic
from collab.net.hivemind_net import NetworkSettings, open_transport
from collab.net.startup import StartupSettings
from collab.swarm.identity import Identity
from collab.swarm.invite import Invite
from collab.types import Role
from peers import wiring
from peers.guest import Guest
from peers.join_options import JoinOptions
from peers.places import DataDir
from peers.session import Given, Session
from peers.traffic import SAVED_EVERY_BYTES, MonthlyTraffic
from peers.wiring import Reach

NOVEMBER, DECEMBER = datetime(2026, 11, 30, 23, 59, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)


def test_lives_add_up_and_each_counts_from_nothing(tmp_path: Path) -> None:
    first = MonthlyTraffic(tmp_path / "t.json", lambda: NOVEMBER)
    first.begin_daemon()
    first.note(300)
    first.note(700)
    first.begin_daemon()  # paused and resumed: another daemon
    first.note(50)
    first.save()
    second = MonthlyTraffic(tmp_path / "t.json", lambda: NOVEMBER)
    second.note(1000)
    assert second.used_bytes == 1750


def test_a_count_that_cannot_be_read_any_more_takes_nothing_back(tmp_path: Path) -> None:
    traffic = MonthlyTraffic(tmp_path / "t.json", lambda: NOVEMBER)
    traffic.note(500)
    traffic.note(0)
    traffic.note(600)
    assert traffic.used_bytes == 600


def test_each_month_begins_with_nothing_while_a_peer_runs_and_between_two(tmp_path: Path) -> None:
    now = [NOVEMBER]
    traffic = MonthlyTraffic(tmp_path / "t.json", lambda: now[0])
    traffic.note(5_000_000)
    now[0] = DECEMBER
    assert traffic.used_bytes == 0
    traffic.note(5_000_100)
    traffic.save()
    assert traffic.used_bytes == 100
    assert MonthlyTraffic(tmp_path / "t.json", lambda: DECEMBER).used_bytes == 100
    assert MonthlyTraffic(tmp_path / "t.json", lambda: datetime(2027, 1, 1, tzinfo=UTC)).used_bytes == 0


def test_it_is_time_to_save_when_a_power_cut_would_leave_much_uncounted(tmp_path: Path) -> None:
    traffic = MonthlyTraffic(tmp_path / "t.json", lambda: NOVEMBER)
    traffic.note(SAVED_EVERY_BYTES - 1)
    assert not traffic.is_due
    traffic.note(SAVED_EVERY_BYTES)
    assert traffic.is_due
    traffic.save()
    assert not traffic.is_due
    assert MonthlyTraffic(tmp_path / "t.json", lambda: NOVEMBER).used_bytes == SAVED_EVERY_BYTES


def test_a_clock_that_is_years_slow_for_a_while_loses_no_count(tmp_path: Path) -> None:
    traffic = MonthlyTraffic(tmp_path / "t.json", lambda: NOVEMBER)
    traffic.note(5_000)
    traffic.save()
    now = [datetime(2020, 1, 1, tzinfo=UTC)]
    slow = MonthlyTraffic(tmp_path / "t.json", lambda: now[0])
    assert slow.used_bytes == 0
    slow.note(300)
    slow.save()
    now[0] = NOVEMBER
    assert slow.used_bytes == 5_000
    slow.note(310)
    slow.save()
    assert MonthlyTraffic(tmp_path / "t.json", lambda: NOVEMBER).used_bytes == 5_010


def test_years_of_months_keep_the_file_small_and_the_present_month_in_it(tmp_path: Path) -> None:
    now = [NOVEMBER]
    traffic = MonthlyTraffic(tmp_path / "t.json", lambda: now[0])
    for number in range(40):
        now[0] = datetime(2027 + number // 12, 1 + number % 12, 1, tzinfo=UTC)
        traffic.note(1000 * (number + 1))
        traffic.save()
    assert len((tmp_path / "t.json").read_text()) < 250
    now[0] = NOVEMBER  # it was all a dream of a clock that was fast
    traffic.note(40_007)
    traffic.save()
    assert MonthlyTraffic(tmp_path / "t.json", lambda: NOVEMBER).used_bytes == 7


def test_the_larger_count_of_each_month_is_gone_on_with_and_goes_to_the_disk_when_it_takes_it(tmp_path: Path) -> None:
    before = MonthlyTraffic(tmp_path / "t.json", lambda: NOVEMBER)
    before.note(5_000)
    before.save()
    before.note(7_000)
    after = MonthlyTraffic(tmp_path / "t.json", lambda: NOVEMBER)
    after.carry_on({**before.months, "2026-10": 80})
    after.carry_on({"2026-11": 6_000})
    assert after.used_bytes == 7_000
    after.save()
    assert MonthlyTraffic(tmp_path / "t.json", lambda: NOVEMBER).months == {"2026-10": 80, "2026-11": 7_000}


def test_what_an_earlier_version_wrote_counts(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"month": "2026-11", "bytes": 123}')
    assert MonthlyTraffic(tmp_path / "t.json", lambda: NOVEMBER).used_bytes == 123
    assert MonthlyTraffic(tmp_path / "t.json", lambda: DECEMBER).used_bytes == 0


def test_the_disk_has_it_before_it_takes_the_place_of_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    rename, sync = Path.replace, os.fsync

    def replaces(path: Path, target: Path) -> Path:
        done.append("renamed")
        return rename(path, target)

    def syncs(file: int) -> None:
        done.append("on the disk")
        sync(file)

    monkeypatch.setattr(Path, "replace", replaces)
    monkeypatch.setattr(os, "fsync", syncs)
    traffic = MonthlyTraffic(tmp_path / "t.json", lambda: NOVEMBER)
    traffic.note(1)
    traffic.save()
    assert done[:2] == ["on the disk", "renamed"]


def test_a_disk_that_does_not_take_it_is_told_of_once_a_life(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    traffic = MonthlyTraffic(tmp_path / "gone" / "t.json", lambda: NOVEMBER)
    with caplog.at_level(logging.WARNING):
        for life in (1, 2):
            traffic.begin_life()
            traffic.begin_daemon()
            for million in range(1, 4):
                traffic.note(million * 1_000_000)
                traffic.save()
            assert caplog.text.count("cannot be written") == life
    assert traffic.used_bytes == 6_000_000
    (tmp_path / "gone").mkdir()
    traffic.note(4_000_000)
    traffic.save()
    assert MonthlyTraffic(tmp_path / "gone" / "t.json", lambda: NOVEMBER).used_bytes == 7_000_000


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", '{"month": "2026-11"}', '{"month": "2026-11", "bytes": "many"}'),
        '{"month": "2026-11", "bytes": 1, "others": ["2026-10"]}',
        '{"month": "2026-11", "bytes": 1, "others": {"2026-10": null}}',
    ],
)
def test_a_damaged_file_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str) -> None:
    (tmp_path / "t.json").write_text(content)
    with caplog.at_level(logging.WARNING):
        assert MonthlyTraffic(tmp_path / "t.json", lambda: NOVEMBER).used_bytes == 0
    assert "counted from 0" in caplog.text


def test_the_daemons_bytes_pass_it_twice(tmp_path: Path) -> None:
    (tmp_path / "77").mkdir()
    (tmp_path / "77/io").write_text("rchar: 5000\nwchar: 3000\nsyscr: 9\nsyscw: 9\nread_bytes: 0\nwrite_bytes: 0\n")
    p2p = SimpleNamespace(_child=SimpleNamespace(pid=77))
    assert daemon_traffic(p2p, tmp_path) == 4000
    assert daemon_traffic(SimpleNamespace(_child=None), tmp_path) == 0
    assert daemon_traffic(SimpleNamespace(_child=SimpleNamespace(pid=78)), tmp_path) == 0


def test_each_daemon_of_a_session_counts_to_its_end_also_of_one_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bytes_so_far = [0]

    class Daemon:
        async def shutdown(self) -> None:
            bytes_so_far[0] = 0

    async def start(*_: object, **__: object) -> Daemon:
        return Daemon()

    async def session() -> None:
        settings = NetworkSettings(identity_path=tmp_path / "key", is_client=True, metered=guest.metered)
        async with open_transport(settings):
            bytes_so_far[0] = 300
        async with open_transport(settings):  # in client mode, say
            bytes_so_far[0] = 50
            raise BootstrapFailed("nobody has told us the run")

    monkeypatch.setattr(hivemind_net, "start_daemon", start)
    monkeypatch.setattr(hivemind_net, "daemon_traffic", lambda _: bytes_so_far[0])
    traffic, place = MonthlyTraffic(tmp_path / "t.json"), DataDir(tmp_path)
    guest = Guest(place, (), traffic, lambda _: None)
    with pytest.raises(ExceptionGroup):
        asyncio.run(session())
    assert traffic.used_bytes == 350


def test_sessions_have_their_daemons_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[StartupSettings]()

    def open_run(_invite: Invite, settings: StartupSettings, _observer: object) -> Any:
        asked.append(settings)
        raise BootstrapFailed("none of the 1 bootstrap addresses answered")

    monkeypatch.setattr(wiring, "open_run", open_run)
    place, owner = DataDir(tmp_path), Identity.from_seed(bytes(32))
    address = f"/ip4/127.0.0.1/tcp/4001/p2p/{owner.peer_id}"
    invite = Invite(run_id="run", fingerprint="f" * 64, owner=owner.peer_id, addresses=(address,))
    guest = Guest(place, (), MonthlyTraffic(place.traffic), lambda _: None)
    options = JoinOptions(invite="", role=Role.TRAINER, name="me", data_dir=place, reach=Reach())
    session = Session(options=options, invite=invite, guest=guest, stop=asyncio.Event(), given=Given({}))
    with pytest.raises(BootstrapFailed):
        asyncio.run(session.live())
    assert asked[0].network.metered == guest.metered
