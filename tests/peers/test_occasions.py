"""When a peer pauses: hours over midnight, batteries, a month's gigabytes, the owner's word."""

from datetime import UTC, datetime, time
from pathlib import Path

import pytest

from collab.errors import ConfigError
from peers.occasions import (
    HouseRules,
    by_command,
    hours_from,
    is_on_battery,
    occasions,
    on_battery,
    outside,
    used_up,
)
from peers.places import DataDir
from peers.traffic import MonthlyTraffic

NIGHT = hours_from("22:00-07:00")


def at(clock: str) -> datetime:
    return datetime.combine(datetime(2026, 11, 25, tzinfo=UTC).date(), time.fromisoformat(clock), UTC)


@pytest.mark.parametrize(
    ("clock", "may_work"),
    [("21:59:59", False), ("22:00", True), ("23:59:59", True), ("00:00", True), ("06:59:59", True), ("07:00", False)],
)
def test_hours_may_go_over_midnight(clock: str, may_work: bool) -> None:
    assert (outside(NIGHT, lambda: at(clock))() == "") is may_work


def test_hours_within_a_day_begin_and_end_on_it() -> None:
    lunch = hours_from("12:00-13:30")
    clocks = ("11:59", "12:00", "13:29", "13:30")
    may_work = [outside(lunch, lambda clock=clock: at(clock))() == "" for clock in clocks]
    assert may_work == [False, True, True, False]
    assert outside(lunch, lambda: at("09:00"))() == "it is not the time from 12:00 to 13:30"


@pytest.mark.parametrize("text", ["18:00-24:00", "18:00-00:00"])
def test_a_day_ends_at_midnight_however_that_is_written(text: str) -> None:
    evening = hours_from(text)
    clocks = ("17:59:59", "18:00", "23:59:59", "00:00", "12:00")
    assert [evening.holds(time.fromisoformat(clock)) for clock in clocks] == [False, True, True, False, False]
    assert outside(evening, lambda: at("09:00"))() == "it is not the time from 18:00 to 24:00"


def test_a_whole_day_has_no_hour_without_work() -> None:
    assert all(hours_from("00:00-24:00").holds(time(hour)) for hour in range(24))
    assert hours_from("24:00-07:00") == hours_from("00:00-07:00")


@pytest.mark.parametrize(
    ("text", "wrong"), [("18:00-24:01", "24:01"), ("25:00-07:00", "25:00"), ("1:00-7:60", "07:60")]
)
def test_a_time_that_no_clock_shows_is_named(text: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match=f"there is no {wrong}; a day goes from 00:00 to 24:00"):
        hours_from(text)


@pytest.mark.parametrize(
    "text",
    ["22-7", "25:00-07:00", "22:00-07:60", "22:00 - 07:00", "often", "", "07:00-07:00", "00:00-00:00", "24:00-24:00"],
)
def test_what_is_no_part_of_a_day_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        HouseRules(when=text).check()
    assert "22:00-07:00" in error.value.hint


def system(root: Path, release: str) -> Path:
    """A machine with this kernel."""
    (root / "proc/sys/kernel").mkdir(parents=True)
    (root / "proc/sys/kernel/osrelease").write_text(release + "\n")
    return root


def test_always_and_idle_need_no_hours(tmp_path: Path) -> None:
    for when in ("always", "idle", "22:00-07:00"):
        HouseRules(when=when).check(system(tmp_path / when, "6.8.0-51-generic"))
        HouseRules(when=when).check(tmp_path)


def test_where_a_windows_cannot_be_seen_idle_is_refused_and_hours_are_not(tmp_path: Path) -> None:
    root = system(tmp_path, "5.15.167.4-microsoft-standard-WSL2")
    for when in ("always", "22:00-07:00"):
        HouseRules(when=when).check(root)
    with pytest.raises(ConfigError, match="WSL2") as error:
        HouseRules(when="idle").check(root)
    assert "--when 22:00-07:00" in error.value.hint


def supply(root: Path, name: str, **words: str) -> None:
    folder = root / "sys/class/power_supply" / name
    folder.mkdir(parents=True, exist_ok=True)
    for word, value in words.items():
        (folder / word).write_text(value + "\n")


def test_a_laptop_that_is_unplugged_runs_on_battery_and_one_that_is_plugged_in_does_not(tmp_path: Path) -> None:
    supply(tmp_path, "BAT0", type="Battery", status="Discharging")
    supply(tmp_path, "AC", type="Mains", online="0")
    assert on_battery(tmp_path)() == "the machine runs on battery"
    supply(tmp_path, "AC", type="Mains", online="1")
    assert on_battery(tmp_path)() == "", "a weak supply may leave the battery to help"
    supply(tmp_path, "AC", type="Mains", online="0")
    supply(tmp_path, "BAT0", type="Battery", status="Not charging")
    assert not is_on_battery(tmp_path)


def test_neither_a_desktop_nor_its_mouse_runs_the_machine_on_battery(tmp_path: Path) -> None:
    assert not is_on_battery(tmp_path)
    supply(tmp_path, "hid-mouse", type="Battery", status="Discharging", scope="Device")
    assert not is_on_battery(tmp_path)


def test_a_month_that_is_used_up_is_told_with_the_day_it_goes_on(tmp_path: Path) -> None:
    traffic = MonthlyTraffic(tmp_path / "traffic.json", lambda: at("12:00"))
    occasion = used_up(traffic, 2.0, lambda: at("12:00"))
    traffic.note(1_999_999_999)
    assert occasion() == ""
    traffic.note(2_000_000_000)
    assert occasion() == "this month's 2 GB are used up; it goes on on 1 December"
    december = datetime(2026, 12, 31, tzinfo=UTC)
    assert used_up(traffic, 2.0, lambda: december)().endswith("1 January")


def test_the_owners_word_counts_until_it_is_taken_back(tmp_path: Path) -> None:
    place = DataDir(tmp_path)
    occasion = by_command(place.pause_mark)
    assert occasion() == ""
    place.pause_mark.touch()
    assert "collab-peer resume" in occasion()
    place.pause_mark.unlink()
    assert occasion() == ""


def test_only_what_the_owner_asks_for_is_looked_at(tmp_path: Path) -> None:
    place = DataDir(tmp_path)
    traffic = MonthlyTraffic(place.traffic)
    numbers = [
        len(occasions(rules, place, traffic))
        for rules in (
            HouseRules(works_on_battery=True),
            HouseRules(),
            HouseRules(monthly_gb=1.0),
            HouseRules(monthly_gb=1.0, when="idle"),
            HouseRules(monthly_gb=1.0, when="22:00-07:00"),
        )
    ]
    assert numbers == [1, 2, 3, 4, 4]
