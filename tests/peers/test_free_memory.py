"""What programs can still have of a machine's memory, and of a container's."""

from pathlib import Path

import pytest

from peers.free_memory import FreeMemory, free_memory

MEMINFO = "MemTotal:       32 kB\nMemFree:          1 kB\nMemAvailable:   1000 kB\n"
MACHINE = FreeMemory(free_bytes=1_024_000, is_limited=False)


def write(directory: Path, **figures: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in figures.items():
        (directory / name.replace("__", ".")).write_text(text)


def version_2(most: str, taken: int, giving_way: int = 0) -> dict[str, str]:
    stat = f"anon {taken - giving_way}\ninactive_file {giving_way}\n"
    return {"memory__max": f"{most}\n", "memory__current": f"{taken}\n", "memory__stat": stat}


def version_1(most: int, taken: int, giving_way: int = 0) -> dict[str, str]:
    stat = f"inactive_file 0\ntotal_inactive_file {giving_way}\n"
    return {"memory__limit_in_bytes": f"{most}\n", "memory__usage_in_bytes": f"{taken}\n", "memory__stat": stat}


def machine(root: Path, groups: str = "", meminfo: str = MEMINFO) -> tuple[Path, Path]:
    write(root / "proc", meminfo=meminfo)
    write(root / "proc" / "self", cgroup=groups)
    return root / "proc", root / "cgroups"


def test_free_memory_is_what_programs_can_still_have(tmp_path: Path) -> None:
    assert free_memory(*machine(tmp_path)) == MACHINE
    assert free_memory(*machine(tmp_path, meminfo="nonsense")) is None
    assert free_memory(tmp_path / "none", tmp_path / "none") is None


@pytest.mark.parametrize(
    ("version", "groups"), [("2", "0::/\n"), ("1", "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n")]
)
def test_of_a_container_it_is_what_its_limit_leaves(tmp_path: Path, version: str, groups: str) -> None:
    proc, cgroups = machine(tmp_path, groups)
    if version == "2":
        write(cgroups, **version_2("500000", 300_000, giving_way=100_000))
    else:  # the container's own is what it sees as the uppermost
        write(cgroups / "memory", **version_1(500_000, 300_000, giving_way=100_000))
    assert free_memory(proc, cgroups) == FreeMemory(free_bytes=300_000, is_limited=True)
    (proc / "meminfo").unlink()
    assert free_memory(proc, cgroups) == FreeMemory(free_bytes=300_000, is_limited=True)


def test_of_several_limits_above_a_process_the_one_that_leaves_least_counts(tmp_path: Path) -> None:
    proc, cgroups = machine(tmp_path, "0::/user/session\n")
    write(cgroups / "user", **version_2("700000", 100_000))
    write(cgroups / "user" / "session", **version_2("900000", 1_000))
    assert free_memory(proc, cgroups) == FreeMemory(free_bytes=600_000, is_limited=True)


def test_a_limit_that_is_used_up_leaves_nothing(tmp_path: Path) -> None:
    proc, cgroups = machine(tmp_path, "0::/\n")
    write(cgroups, **version_2("1000", 2000))
    assert free_memory(proc, cgroups) == FreeMemory(free_bytes=0, is_limited=True)


def test_a_limit_above_what_the_machine_has_free_is_none(tmp_path: Path) -> None:
    proc, cgroups = machine(tmp_path, "4:memory:/\n0::/\n")
    write(cgroups, **version_2("max", 300))
    write(cgroups / "memory", **version_1(9_223_372_036_854_771_712, 300))
    assert free_memory(proc, cgroups) == MACHINE
