"""The file that each commit on the Hub tells a run's history in. It may be anybody's: it is checked, bounded, and left
aside if it is not what a backbone writes.
"""

import json
import math
import re
from collections.abc import Iterable
from typing import Any

from collab.checkpoints.hub_repository import There
from collab.errors import CorruptState
from collab.metrics.names import MAX_EPOCH
from peers.credit import MOST_OF_ONE
from peers.hub_history import (
    CURVES,
    MOST_CHARACTERS,
    MOST_MACHINES,
    MOST_NAMED,
    MOST_POINTS,
    MOST_SAMPLES,
    MOST_WITHDRAWN,
    Given,
    History,
    thinned,
)

HISTORY = "collab_history.json"
FORMAT = 1
MOST_BYTES = 4 << 20
"""Of the file: more than we ever write, whatever the names are made of."""
MOST_RUNS = 16
"""Of a line of runs, each of which went on from the one before, the largest."""
LATEST_S = 1e11
"""Swarm time, which nobody has lived to see."""
KEY = re.compile(r"[0-9a-f]{16}")


def written(history: History) -> bytes:
    """The file; ``read_history`` reads it."""
    largest = sorted(history.runs.items(), key=lambda item: (-item[1].samples, item[0]))[:MOST_RUNS]
    content = {
        "format": FORMAT,
        "era": history.era,
        "curves": {name: [list(point) for point in thinned(curve).items()] for name, curve in history.curves.items()},
        "runs": {
            key: {
                "machines": one.machines,
                "samples": one.samples,
                "named": {peer: list(named) for peer, named in one.named.items()},
                "words": dict(one.words),
            }
            for key, one in largest
        },
    }
    return (json.dumps(content, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n").encode()


def read_history(data: bytes) -> History:
    """A file that anybody may have written.

    Raises:
        ValueError: it is not what a backbone writes.
    """
    if len(data) > MOST_BYTES:
        raise ValueError("it is too large")
    try:
        told = json.loads(data)
        if told["format"] != FORMAT:
            raise ValueError(f"it has format {told['format']!r:.20}")
        return History(
            era=_text(told["era"]),
            curves={name: _curve(told["curves"][name]) for name in CURVES if name in told["curves"]},
            runs={_key(key): _given(one) for key, one in _few(told["runs"].items(), MOST_RUNS)},
        )
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"it is malformed: {error!r:.100}") from error


def fetched(there: There) -> tuple[History, str]:
    """The history in a repository, and what is wrong with it, for people: then, and where there is none, it is empty.

    Raises:
        HubError: it cannot be had.
    """
    try:
        data = there.read(HISTORY, MOST_BYTES)
        return History() if data is None else read_history(data), ""
    except (ValueError, CorruptState):
        return History(), f"{HISTORY} of {there.repository.place} is not what a backbone writes, and was left aside"


def _few(items: Iterable[Any], most: int) -> list[Any]:
    found = list(items)
    if len(found) > most:
        raise ValueError(f"it has {len(found)} entries where {most} are the most")
    return found


def _number(value: Any, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"expected a number up to {most}")
    return int(value)


def _time(value: Any) -> float:
    if type(value) not in (int, float) or not 0.0 <= value <= LATEST_S:
        raise ValueError("expected a time")
    return float(value)


def _text(value: Any, least: int = 0) -> str:
    if type(value) is not str or not least <= len(value) <= MOST_CHARACTERS:
        raise ValueError(f"expected a text of {least} to {MOST_CHARACTERS} characters")
    value.encode()  # half a surrogate pair, which no page can hold
    return value


def _key(value: str) -> str:
    if not KEY.fullmatch(value):
        raise ValueError("expected a digest")
    return value


def _curve(told: Any) -> dict[int, float]:
    curve = {_number(epoch, MAX_EPOCH): value for epoch, value in _few(told, MOST_POINTS)}
    if not all(type(value) in (int, float) and math.isfinite(value) for value in curve.values()):
        raise ValueError("expected finite numbers")
    return {epoch: float(value) for epoch, value in curve.items()}


def _given(told: Any) -> Given:
    named = {_key(key): (_text(name, 1), _number(samples, MOST_OF_ONE))
             for key, (name, samples) in _few(told["named"].items(), MOST_NAMED)}  # fmt: skip
    machines, samples = _number(told["machines"], MOST_MACHINES), _number(told["samples"], MOST_SAMPLES)
    if machines < len(named) or samples < sum(one for _, one in named.values()):
        raise ValueError("it has less than its parts")
    said = {_key(key): _time(at_s) for key, at_s in _few(told.get("words", {}).items(), MOST_NAMED + MOST_WITHDRAWN)}
    words = dict.fromkeys(named, 0.0) | said  # an earlier version has not written when they said so
    return Given(machines=machines, samples=samples, named=named, words=words)
