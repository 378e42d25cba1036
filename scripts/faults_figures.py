"""What the faults of a benchmark cost, by kind."""

import math
import os
import platform
import statistics
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from faults_rounds import Calm, Case, Course, reference_s
from faults_setup import Kind, Setup

WHOLE = 1.0 - 1e-3
"""Of the survivors' vectors: more than this is all of it, but for elements too close to tell."""
TELLING_S = 3.0
"""Cases that cost more are reported with everything their peers told."""


def report(course: Course, setup: Setup, *, load_before: float, took_s: float) -> dict[str, Any]:
    """Everything that somebody needs to judge the figures."""
    round_s = reference_s(course.calm)
    return {
        "benchmark": "faults",
        "seed": setup.seed,
        "setup": {
            "peers": setup.peers,
            "mbit": setup.mbit_per_s,
            "mb": setup.num_elements * 4 / 1e6,
            "kinds": [str(kind) for kind in setup.kinds],
            "seeds": setup.seeds,
            "rest": setup.rest,
            "window": list(setup.window),
        },
        "environment": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("collab", "hivemind", "numpy")},
            "system": f"{platform.system()} {platform.release()}",
            "cores": os.cpu_count(),
            "load_before": load_before,
            "load_after": round(os.getloadavg()[0], 2),
            "took_s": round(took_s, 1),
        },
        "undisturbed": calm_figures(course.calm),
        "kinds": {
            str(kind): kind_figures([case for case in course.cases if case.fault.kind is kind], round_s)
            | {"missed": sum(case.fault.kind is kind for case in course.missed)}
            for kind in setup.kinds
        },
        "cases": [describe(case, round_s) for case in course.cases],
        "missed": [describe(case, round_s) for case in course.missed],
        "problem": course.problem,
    }


def calm_figures(calm: Sequence[Calm]) -> dict[str, Any]:
    """Of the rounds without a fault."""
    known = [each.step_s for each in calm if each.is_reference]
    first = [each.step_s for each in calm if each.is_first]
    return {
        "rounds": len(known),
        "median_s": rounded(reference_s(calm)),
        "max_s": rounded(max(known, default=None)),
        "first_after_a_fault": {
            "rounds": len(first),
            "median_s": median(first),
            "max_s": rounded(max(first, default=None)),
            "lost_attempts": sum(bool(each.reasons) for each in calm if each.is_first),
        },
        "equal": sum(each.equal for each in calm),
        "unequal": sum(not each.equal for each in calm),
    }


def kind_figures(cases: Sequence[Case], round_s: float | None) -> dict[str, Any]:
    """Of one kind of fault."""
    extras = [extra for case in cases if (extra := extra_s(case, round_s)) is not None]
    return {
        "number": len(cases),
        "extra_s": {
            "median": median(extras),
            "p90": rounded(rank(extras, 0.9)),
            "max": rounded(max(extras, default=None)),
        },
        "extra_rounds_max": rounded(max(extras) / round_s) if extras and round_s else None,
        "hung": sum(bool(case.ending.hung) for case in cases),
        "equal": sum(case.ending.survivors_equal for case in cases),
        "fraction_min": min((round(case.ending.fraction_averaged, 4) for case in cases), default=None),
        "whole": sum(case.ending.fraction_averaged >= WHOLE and case.ending.explained >= WHOLE for case in cases),
        "record_agrees": sum(case.ending.record_agrees for case in cases),
        "attempts_max": max((case.ending.attempts for case in cases), default=None),
        "led": sum(case.led for case in cases),
        "victim_share_median": median([case.ending.victim_share for case in cases]),
        "victims_equal": sum(bool(case.victim_equal) for case in cases),
        "back_s": {
            "median": median([case.back_s for case in cases]),
            "max": rounded(max((case.back_s for case in cases if case.back_s is not None), default=None)),
        },
        "next_step_s_median": median([case.next_step_s for case in cases]),
        "rounds_until_whole_max": max((case.rounds_until_whole or math.inf for case in cases), default=None),
    }


def describe(case: Case, round_s: float | None) -> dict[str, Any]:
    """One fault."""
    ending, extra = case.ending, extra_s(case, round_s)
    content = {
        "kind": str(case.fault.kind),
        "seed": case.fault.seed,
        "attempt": case.fault.attempt,
        "miss": case.miss,
        "victim": case.victim,
        "led": case.led,
        "leader": case.leader,
        "moment": round(case.fault.moment, 4),
        "struck_s": rounded(case.struck_s),
        "signals_s": rounded(case.strike.done_s - case.strike.at_s),
        "first_result_s": rounded(ending.first_result_s),
        "step_s": rounded(ending.step_s),
        "extra_s": rounded(extra),
        "attempts": ending.attempts,
        "late": list(ending.late),
        "hung": list(ending.hung),
        "survivors_equal": ending.survivors_equal,
        "fraction_averaged": round(ending.fraction_averaged, 5),
        "explained": round(ending.explained, 6),
        "victim_share": round(ending.victim_share, 4),
        "record_agrees": ending.record_agrees,
        "back_s": rounded(case.back_s),
        "victim_equal": case.victim_equal,
        "next_step_s": rounded(case.next_step_s),
        "rounds_until_whole": case.rounds_until_whole,
        "reasons": list(ending.reasons),
    }
    if is_telling(case, extra):
        content |= {"events": case.events, "logs": case.logs}
    return content


def is_telling(case: Case, extra: float | None) -> bool:
    """Whether somebody should look into it."""
    ending = case.ending
    is_sound = ending.survivors_equal and ending.record_agrees and ending.fraction_averaged >= WHOLE
    return not is_sound or extra is None or extra > TELLING_S or case.victim_equal is False


def extra_s(case: Case, round_s: float | None) -> float | None:
    """What a fault cost; None: somebody hangs."""
    if case.ending.step_s is None or round_s is None:
        return None
    return case.ending.step_s - round_s


def rank(values: Sequence[float], part: float) -> float | None:
    """The smallest value that at least this part of them does not exceed."""
    return sorted(values)[max(0, math.ceil(part * len(values)) - 1)] if values else None


def median(values: Sequence[float | None]) -> float | None:
    """Of those that are there."""
    found = [value for value in values if value is not None]
    return rounded(statistics.median(found)) if found else None


def rounded(value: float | None) -> float | None:
    """Tenths of a millisecond."""
    return None if value is None else round(value, 4)


def is_sound(content: dict[str, Any]) -> bool:
    """Whether all who survived held the same, in every round."""
    return not content["undisturbed"]["unequal"] and all(case["survivors_equal"] for case in content["cases"])


def show(content: dict[str, Any]) -> None:
    """The most important of it as a table."""
    calm = content["undisturbed"]
    print(f"undisturbed: {calm['median_s']} s, the median of {calm['rounds']} rounds")
    columns = ("faults", "extra s median", "p90", "max", "equal", "averaged, least", "back s median", "missed")
    print(f"{'kind':12}" + "".join(f"{name:>17}" for name in columns))
    for kind, found in content["kinds"].items():
        extra = found["extra_s"]
        cells = (
            *(found["number"], extra["median"], extra["p90"], extra["max"], f"{found['equal']} of {found['number']}"),
            *(found["fraction_min"], found["back_s"]["median"], found["missed"]),
        )
        print(f"{Kind(kind):12}" + "".join(f"{'-' if cell is None else cell!s:>17}" for cell in cells))
    if content["problem"]:
        print(f"ended early: {content['problem']}")
