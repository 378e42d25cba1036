"""What is read off a process that runs for long, and how fast its figures grow, and how sure that is."""

import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BLOCKS = 12
"""Means over so many stretches are fitted, not single readings: each of those is much like the one before."""
LEAST_BLOCKS = 3
"""Of which a line and its error can be told."""
HOUR_S = 3600.0
MEGABYTE = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One look at a backbone."""

    at_s: float
    cpu_s: float
    """Processor time of its own process so far."""
    daemon_cpu_s: float
    rss_bytes: float
    """Of its own process."""
    daemon_rss_bytes: float
    """Of its libp2p daemon."""
    descriptors: float
    daemon_descriptors: float
    tasks: float
    """Of its event loop."""
    threads: float
    collections: float
    """Searches of all its heap for rings of dead objects, so far."""
    database_bytes: float
    """SQLite with its journal."""
    log_bytes: float
    """Events as JSON lines."""


@dataclass(frozen=True, slots=True)
class Slope:
    """A line through readings."""

    per_hour: float
    error: float
    """Standard error of ``per_hour``; infinite: too few readings."""


def slope_of(times_s: Sequence[float], values: Sequence[float]) -> Slope:
    """Least squares through the means of ``BLOCKS`` equal stretches of time."""
    began_s, ended_s = times_s[0], times_s[-1]
    length_s = max(ended_s - began_s, 1e-9)
    blocks: dict[int, list[tuple[float, float]]] = {}
    for at_s, value in zip(times_s, values, strict=True):
        blocks.setdefault(min(int(BLOCKS * (at_s - began_s) / length_s), BLOCKS - 1), []).append((at_s, value))
    points = [tuple(map(statistics.fmean, zip(*block, strict=True))) for block in blocks.values()]
    if len(points) < LEAST_BLOCKS:
        return Slope(math.nan, math.inf)
    x, y = [point[0] / HOUR_S for point in points], [point[1] for point in points]
    slope, intercept = statistics.linear_regression(x, y)
    residual = sum((b - slope * a - intercept) ** 2 for a, b in zip(x, y, strict=True)) / (len(points) - 2)
    spread = sum((a - statistics.fmean(x)) ** 2 for a in x)
    return Slope(slope, math.sqrt(residual / spread))


def growth(readings: Sequence[Reading], field: str, unit: float = 1.0) -> dict[str, float | None]:
    """Of one field: how it was in the first and in the last third, its most, and its slope per hour with the error."""
    times_s, values = [one.at_s for one in readings], [getattr(one, field) / unit for one in readings]
    slope, third = slope_of(times_s, values), max(len(values) // 3, 1)
    return {
        "first": round(statistics.median(values[:third]), 3),
        "last": round(statistics.median(values[-third:]), 3),
        "most": round(max(values), 3),
        "per_hour": _told(slope.per_hour),
        "error": _told(slope.error),
    }


def figures(readings: Sequence[Reading]) -> dict[str, Any]:
    """What the readings after the warm-up come to."""
    first, last = readings[0], readings[-1]
    seconds = max(last.at_s - first.at_s, 1e-9)
    return {
        "cores": round((last.cpu_s - first.cpu_s) / seconds, 4),
        "daemon_cores": round((last.daemon_cpu_s - first.daemon_cpu_s) / seconds, 4),
        "rss_mb": growth(readings, "rss_bytes", MEGABYTE),
        "daemon_rss_mb": growth(readings, "daemon_rss_bytes", MEGABYTE),
        "descriptors": growth(readings, "descriptors"),
        "daemon_descriptors": growth(readings, "daemon_descriptors"),
        "tasks": growth(readings, "tasks"),
        "threads": growth(readings, "threads"),
        "collections": last.collections - first.collections,
        "database_mb": growth(readings, "database_bytes", MEGABYTE),
        "log_mb": growth(readings, "log_bytes", MEGABYTE),
    }


def rss_of(pid: int) -> float:
    """Bytes in memory; 0: the process is gone."""
    try:
        return float(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0.0


def descriptors_of(pid: int) -> int:
    """Open files and sockets; 0: the process is gone."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def moved_by(pid: int) -> int:
    """Bytes that a libp2p daemon has sent and taken, which it reads and writes once on the network and once for its
    peer; 0: it is gone.
    """
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return 0
    counts = dict(line.split(": ") for line in lines)
    return (int(counts["rchar"]) + int(counts["wchar"])) // 2


def size_of(*paths: Path) -> int:
    """Bytes of those that are there."""
    return sum(path.stat().st_size for path in paths if path.exists())


def _told(value: float) -> float | None:
    return round(value, 3) if math.isfinite(value) else None
