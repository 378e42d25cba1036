"""How much memory programs can still have here: of the machine, and within the limits of a container."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeMemory:
    """What programs can still have."""

    free_bytes: int
    is_limited: bool
    """Whether it is less than the machine has free: a container's limit, or that of another control group."""


def free_memory(proc: Path = PROC, cgroups: Path = CGROUPS) -> FreeMemory | None:
    """None: this system does not say."""
    try:
        machine = _figures(proc / "meminfo")["MemAvailable:"] * 1024
    except (OSError, ValueError, KeyError):
        machine = None
    rooms = [room for group in _groups(proc, cgroups) if (room := _room_in(group)) is not None]
    if rooms and (machine is None or min(rooms) < machine):
        return FreeMemory(free_bytes=max(min(rooms), 0), is_limited=True)
    return None if machine is None else FreeMemory(free_bytes=machine, is_limited=False)


def _groups(proc: Path, cgroups: Path) -> Iterator[Path]:
    """The directory of this process' control group, and those above it, whose limits hold, too. In a container only
    some of them can be seen.
    """
    try:
        lines = (proc / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers or "memory" in controllers.split(","):  # version 2, or 1
            top = cgroups / "memory" if controllers else cgroups
            own = top / path.lstrip("/")
            yield from (own, *(above for above in own.parents if above.is_relative_to(top)))


def _room_in(group: Path) -> int | None:
    """Bytes below the limit of a control group, with the files in memory that give way; None: it has no limit."""
    for most, taken, giving_way in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            limit, usage = (int((group / name).read_text(encoding="ascii")) for name in (most, taken))
            return limit - usage + _figures(group / "memory.stat").get(giving_way, 0)
        except (OSError, ValueError):  # also "max", which is none
            continue
    return None


def _figures(path: Path) -> dict[str, int]:
    """Lines of a name and a number, and maybe a unit."""
    rows = (line.split() for line in path.read_text(encoding="ascii").splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1}
