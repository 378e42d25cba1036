"""When a machine is its owner's alone: reasons for a peer to pause, each in words. An empty one means: go on."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, time
from pathlib import Path

from collab.errors import ConfigError
from peers.places import DataDir
from peers.traffic import BYTES_PER_GB, MonthlyTraffic, local_time
from peers.usage import Usage

Occasion = Callable[[], str]
"""Why the peer should pause now; empty: it need not. May read files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HouseRules:
    """What the owner of a machine has said about when a peer may work."""

    when: str = "always"
    """``always``, ``idle``, or hours as ``22:00-07:00``."""
    works_on_battery: bool = False
    monthly_gb: float | None = None
    """That it may send and take in a month; None: as much as it needs."""
    is_modest: bool = True
    """Whether other programs go first."""

    def check(self, root: Path = Path("/")) -> None:
        """
        Raises:
            ConfigError: ``when`` says nothing that can be followed, or nothing that can be on this machine.
        """
        if self.when not in ("always", "idle"):
            hours_from(self.when)
        if self.when == "idle" and "microsoft" in _word(root / "proc/sys/kernel/osrelease").lower():
            raise ConfigError(
                "--when idle cannot be followed under WSL2: its Linux sees neither Windows' keyboard nor its programs",
                hint="name hours in its place, for example --when 22:00-07:00",
            )


NO_RULES = HouseRules()


def occasions(rules: HouseRules, place: DataDir, traffic: MonthlyTraffic) -> list[Occasion]:
    """When a peer pauses; the owner's own word first."""
    found = [by_command(place.pause_mark)]
    if rules.monthly_gb is not None:
        found.append(used_up(traffic, rules.monthly_gb))
    if not rules.works_on_battery:
        found.append(on_battery())
    if rules.when == "idle":
        found.append(when_in_use(Usage()))
    elif rules.when != "always":
        found.append(outside(hours_from(rules.when)))
    return found


MIDNIGHT = time(0, 0)
HOURS = re.compile(r"(\d{1,2}):(\d{2})-(\d{1,2}):(\d{2})")
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July",
    "August", "September", "October", "November", "December",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Hours:
    """A part of the day, which may go over midnight."""

    begins: time
    ends: time
    """Midnight is the end of a day."""

    def holds(self, now: time) -> bool:
        """Whether it is that part of the day."""
        if self.begins < self.ends:
            return self.begins <= now < self.ends
        return now >= self.begins or now < self.ends

    def __str__(self) -> str:
        ends = f"{self.ends:%H:%M}" if self.ends != MIDNIGHT else "24:00"
        return f"{self.begins:%H:%M} to {ends}"


def hours_from(text: str) -> Hours:
    """Of ``22:00-07:00``, on this machine's clock. ``24:00`` is the end of a day.

    Raises:
        ConfigError: it is no part of a day.
    """
    found = HOURS.fullmatch(text)
    hint = "for example 22:00-07:00, on this machine's clock; or always, or idle"
    try:
        if found is None:
            raise ValueError("expected always, idle or two times of day")
        begins, begins_minute, ends, ends_minute = (int(number) for number in found.groups())
        hours = Hours(_time_of(begins, begins_minute), _time_of(ends, ends_minute))
    except ValueError as error:
        raise ConfigError(f"--when {text}: {error}", hint=hint) from error
    is_whole_day = (begins, ends) == (0, 24)
    if hours.begins == hours.ends and not is_whole_day:
        raise ConfigError(f"--when {text} begins when it ends", hint=hint)
    return hours


def _time_of(hour: int, minute: int) -> time:
    if (hour, minute) == (24, 0):
        return MIDNIGHT
    if hour > 23 or minute > 59:
        raise ValueError(f"there is no {hour:02}:{minute:02}; a day goes from 00:00 to 24:00")
    return time(hour, minute)


def outside(hours: Hours, now: Callable[[], datetime] = local_time) -> Occasion:
    """It is not the time of day."""

    def reason() -> str:
        return "" if hours.holds(now().time()) else f"it is not the time from {hours}"

    return reason


def when_in_use(usage: Usage) -> Occasion:
    """Somebody sits at the machine, or its own programs have work."""
    return usage.look


def by_command(mark: Path) -> Occasion:
    """``collab-peer pause`` has left its mark."""

    def reason() -> str:
        return "you have paused it ('collab-peer resume' goes on)" if mark.exists() else ""

    return reason


def on_battery(root: Path = Path("/")) -> Occasion:
    """The machine runs on its battery."""

    def reason() -> str:
        return "the machine runs on battery" if is_on_battery(root) else ""

    return reason


def is_on_battery(root: Path = Path("/")) -> bool:
    """Whether a battery of the machine is being emptied, and no supply is plugged in.

    Batteries of mice and headphones say that they are of a device.
    """
    supplies = [supply for supply in sorted((root / "sys/class/power_supply").glob("*")) if supply.is_dir()]
    machine = [supply for supply in supplies if _word(supply / "scope") != "Device"]
    if any(_word(supply / "type") != "Battery" and _word(supply / "online") == "1" for supply in machine):
        return False
    return any(_word(s / "type") == "Battery" and _word(s / "status") == "Discharging" for s in machine)


def used_up(traffic: MonthlyTraffic, gigabytes: float, now: Callable[[], datetime] = local_time) -> Occasion:
    """The month's gigabytes are gone."""

    def reason() -> str:
        if traffic.used_bytes < gigabytes * BYTES_PER_GB:
            return ""
        return f"this month's {gigabytes:g} GB are used up; it goes on on 1 {MONTHS[now().month % 12]}"

    return reason


def _word(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
