"""What the rounds of a benchmark amount to, beside what the links allowed."""

import argparse
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from averaging_contest import Contestant, Round
from averaging_gauges import Period, Periods
from averaging_meters import MemoryUse
from averaging_setup import BYTES_PER_ELEMENT, MB, Part, Sizes, Swarm, Task, equal_shares_s, optimum_s
from averaging_trace import Panel

SHOWN = ("mb", "dtype", "codec", "rounds", "fault", "change", "scale", "nice", "heartbeats", "compute")
"""Options as they were given."""


@dataclass(slots=True)
class Course:
    """One engine's way through the benchmark."""

    contestant: Contestant
    skip: int
    rounds: list[tuple[Swarm, Round]] = field(default_factory=list)
    """Each with the links as they were."""
    panel: Panel | None = None
    quiet: list[Period] = field(default_factory=list)
    """When this engine's peers were asked for nothing, though all engines' are up."""
    beside: dict[str, Any] = field(default_factory=dict)
    """Figures of what was measured beside the rounds."""

    @property
    def measured(self) -> list[tuple[Swarm, Round]]:
        """Without the first ones."""
        return [(swarm, found) for swarm, found in self.rounds if found.number >= self.skip]

    @property
    def periods(self) -> Periods:
        """Measured rounds from the first group to the last whole result, and the quiet between rounds."""
        found = [each for _, each in self.measured]
        whole = tuple((each.began_s, each.began_s + each.all_reduce_s) for each in found if each.all_reduce_s)
        return Periods(rounds=whole, quiet=tuple(self.quiet))


def figures(course: Course, task: Task) -> dict[str, Any]:
    """One engine's figures; what nothing could be measured of is null."""
    plain = Sizes.of(task.swarm, task.num_elements, BYTES_PER_ELEMENT)
    rounds = [describe(swarm, found, plain, found.number >= course.skip) for swarm, found in course.rounds]
    whole = [each for each in rounds if each["measured"] and each["all_reduce_s"] is not None]
    measured = [found for _, found in course.measured]
    gigabytes = len(task.swarm.trainers) * task.num_elements * BYTES_PER_ELEMENT / 1e9
    seconds = median([each["all_reduce_s"] for each in whole])
    return {
        "optimum_s": median([each["optimum_s"] for each in rounds if each["measured"]]),
        "optimum_encoded_s": median([each["optimum_encoded_s"] for each in whole]),
        "equal_shares_s": rounded(equal_shares_s(task.swarm, plain)) if task.swarm.links else None,
        "rounds": rounds,
        "all_reduce_s": seconds,
        "whole_step_s": median([each["whole_step_s"] for each in whole]),
        "ratio": median([each["ratio"] for each in whole]),
        "ratio_encoded": median([each["ratio_encoded"] for each in whole]),
        "mb_per_s": rounded(task.num_elements * BYTES_PER_ELEMENT / MB / seconds) if seconds else None,
        "cpu_s_per_gb": {
            name: median([found.cpu_s[name] / gigabytes for found in measured]) for name in measured[0].cpu_s
        },
        "memory_bytes": {"idle": course.contestant.idle_bytes, "peak": max(found.peak_bytes for found in measured)},
        **memory([use for found in measured for use in found.memory]),
        "wire_bytes": statistics.median_low([found.wire_bytes for found in measured]),
        "payload_bytes": statistics.median_low([found.payload_bytes for found in measured]),
        **course.beside,
    }


def memory(uses: Sequence[MemoryUse]) -> dict[str, Any]:
    """The trainer's round that took most, and every peer's largest peak."""
    worst = max(uses, key=lambda use: use.ratio)
    peers = sorted({use.peer for use in uses})
    return {
        "vector_bytes": worst.vector_bytes,
        "memory_before_bytes": worst.before_bytes,
        "memory_peak_bytes": worst.peak_bytes,
        "memory_ratio": rounded(worst.ratio),
        "memory_ratio_in_all": rounded(max(use.ratio_in_all for use in uses)),
        "peak_memory_bytes": [max(use.peak_bytes for use in uses if use.peer == peer) for peer in peers],
    }


def describe(swarm: Swarm, found: Round, plain: Sizes, is_measured: bool) -> dict[str, Any]:
    """One round beside what its links allowed."""
    optimum = optimum_s(swarm, plain) if swarm.links else None
    encoded = optimum_s(swarm, found.sizes) if swarm.links else None
    seconds = found.all_reduce_s
    return {
        "number": found.number,
        "measured": is_measured,
        "all_reduce_s": rounded(seconds),
        "whole_step_s": rounded(found.whole_step_s),
        "optimum_s": rounded(optimum),
        "optimum_encoded_s": rounded(encoded),
        "ratio": rounded(seconds / optimum) if seconds and optimum else None,
        "ratio_encoded": rounded(seconds / encoded) if seconds and encoded else None,
        "committed": found.committed,
        "contributors": found.contributors,
        "digests_equal": found.digests_equal,
        "fraction_averaged": round(found.fraction_averaged, 4),
        "wire_bytes": found.wire_bytes,
        "payload_bytes": found.payload_bytes,
        "cpu_s": {name: round(seconds, 2) for name, seconds in found.cpu_s.items()},
        "silent": found.silent,
        "reasons": found.reasons,
    }


def median(values: Sequence[float | None]) -> float | None:
    """Of those that are there."""
    found = [value for value in values if value is not None]
    return rounded(statistics.median(found)) if found else None


def rounded(value: float | None) -> float | None:
    """Four digits behind the point: a tenth of a millisecond."""
    return None if value is None else round(value, 4)


def report(courses: dict[str, Course], task: Task, options: argparse.Namespace) -> dict[str, Any]:
    """Everything that somebody needs to judge the figures."""
    content: dict[str, Any] = {
        "benchmark": "averaging",
        "seed": task.seed,
        "setup": {
            "links": [str(link) for link in task.swarm.links] or options.links,
            "auxiliary": [index for index, part in enumerate(task.swarm.parts) if part is Part.AUXILIARY],
            "clients": [index for index, part in enumerate(task.swarm.parts) if part is Part.CLIENT],
            **{name: getattr(options, name) for name in SHOWN},
        },
        "environment": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("collab", "hivemind", "torch", "numpy")},
            "system": f"{platform.system()} {platform.release()}",
            "cores": os.cpu_count(),
            "load_before": options.load_before,
            "load_after": round(os.getloadavg()[0], 2),
        },
    }
    by_engine = {engine: figures(course, task) for engine, course in courses.items()}
    if len(by_engine) == 1:
        return {**content, "engine": next(iter(by_engine)), **next(iter(by_engine.values()))}
    return {**content, "engines": by_engine}


def show(content: dict[str, Any]) -> None:
    """The same as a table."""
    columns = ("all_reduce_s", "optimum_s", "ratio", "ratio_encoded", "whole_step_s", "mb_per_s")
    print(
        f"{'engine':10}"
        + "".join(f"{name:>15}" for name in columns)
        + "   cpu s/GB python, p2pd   averaged   memory/vector"
    )
    for engine, found in content.get("engines", {content.get("engine"): content}).items():
        cells = "".join(f"{'-' if found[name] is None else format(found[name], '.3f'):>15}" for name in columns)
        cpu = ", ".join(f"{seconds:.2f}" for seconds in found["cpu_s_per_gb"].values())
        worst = min(each["fraction_averaged"] for each in found["rounds"])
        print(f"{engine:10}{cells}   {cpu:>21}   {worst:8.3f}   {found['memory_ratio']:13.2f}")
        if beats := found.get("heartbeats"):
            seconds = ", ".join(f"{beats[name]} s {name[:-2]}" for name in ("median_s", "worst_s", "worst_idle_s"))
            print(f"    heartbeats from {beats['from']} to {beats['to']}: {beats['count']} in rounds, {seconds}")
        if compute := found.get("compute"):
            shares = (
                f"{compute['share_kept']:.1%} of its speed, {compute['share_kept_of_core']:.1%} while it had a core"
            )
            print(f"    compute of peer {compute['peer']} beside rounds: {shares} (core {compute['core']})")
