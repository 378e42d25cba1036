"""What a run has been, as each commit on the Hub tells it: thinned curves, and who gave how much.

A backbone has seen only what happened while it was there. What others have published goes on with it: epochs of all,
and of each peer the most that anybody has heard of. People who did not agree to be named are in sums only. What comes
from the Hub may be anybody's: it is checked, bounded, and left aside if it is not what a backbone writes.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from collab.checkpoints.hub_repository import There
from collab.errors import CorruptState
from collab.metrics.names import EVAL_LOSS, LEARNING_RATE, LOSS, MAX_EPOCH, SAMPLES_PER_S
from collab.metrics.store import MetricsStore
from collab.swarm.orders import OrderBook
from collab.swarm.statements import FOREVER, Ban
from collab.types import PeerId
from peers.credits import Credit
from peers.model_card import Point

HISTORY = "collab_history.json"
FORMAT = 1
MOST_BYTES = 4 << 20
"""Of the file: more than we ever write, whatever the names are made of."""
MOST_POINTS = 400
"""Of one curve, as many as a picture shows."""
MOST_NAMED, MOST_RUNS = 500, 16
"""Of one run those who gave most; of a line of runs, each of which went on from the one before, the largest."""
MOST_CHARACTERS = 40
"""Of a name, and of the mark of an era."""
MOST_OF_ONE, MOST_SAMPLES, MOST_MACHINES = 1 << 50, 1 << 62, 1 << 30
"""Samples of one machine and of all, and machines: beyond it somebody lies."""
CURVES = (LOSS.name, EVAL_LOSS.name, SAMPLES_PER_S.name, LEARNING_RATE.name)
KEY = re.compile(r"[0-9a-f]{16}")
NOTHING: Mapping[str, Any] = MappingProxyType({})

Curves = Mapping[str, Mapping[int, float]]
"""Values by epoch, by the name of the metric."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """To one run."""

    machines: int = 0
    """All of them, those that are named included."""
    samples: int = 0
    """Of all of them."""
    named: Mapping[str, tuple[str, int]] = field(default_factory=lambda: NOTHING)
    """Name and samples of who agreed to it, by a digest of the peer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Of a run, and of those that it went on from."""

    era: str = ""
    """Of the checkpoint that it was published with: the mark of the run's last rollback before it."""
    curves: Curves = field(default_factory=lambda: NOTHING)
    runs: Mapping[str, Given] = field(default_factory=lambda: NOTHING)
    """By ``run_key``."""

    @property
    def named(self) -> list[Credit]:
        """Who is named, as often as there are machines."""
        return [Credit(name, 0, samples) for run in self.runs.values() for name, samples in run.named.values()]

    @property
    def others(self) -> Credit:
        """All the others together: their samples."""
        return Credit("", 0, sum(run.samples for run in self.runs.values()) - sum(one.total for one in self.named))

    @property
    def num_others(self) -> int:
        """Machines that are not named."""
        return sum(run.machines - len(run.named) for run in self.runs.values())


def run_key(fingerprint: str) -> str:
    """Of a run, in a history."""
    return _digest(fingerprint)


def own_history(fingerprint: str, era: str, curves: Curves, given: Iterable[tuple[PeerId, Credit]]) -> History:
    """What one backbone has seen itself."""
    peers = [(_digest(f"{fingerprint}:{peer}"), one.name, min(one.total, MOST_OF_ONE)) for peer, one in given]
    named = {key: (name[:MOST_CHARACTERS], samples) for key, name, samples in peers if name}
    samples = min(sum(samples for _, _, samples in peers), MOST_SAMPLES)
    seen = Given(machines=len(peers), samples=samples, named=named)
    return History(era=era, curves=curves, runs={run_key(fingerprint): seen} if peers else NOTHING)


def unnamed(fingerprint: str, given: Iterable[tuple[PeerId, Credit]], bans: Iterable[Ban]) -> frozenset[str]:
    """Digests of who does not want to be named, or not any more, and of machines that are banned for good, be it by an
    invite that they have shown us.
    """
    banned = {ban.who for ban in bans if ban.until_s == FOREVER}
    peers = banned | {peer for peer, one in given if not one.name or one.invite in banned}
    return frozenset(_digest(f"{fingerprint}:{peer}") for peer in peers)


def merged(theirs: History, ours: History, unnamed: frozenset[str] = frozenset()) -> History:
    """Both in one; where both know something, of the curves ours counts, and of samples the most.

    Args:
        unnamed: digests of peers that are not to be named, whoever has named them.
    """
    names = theirs.curves.keys() | ours.curves.keys()
    curves = {name: {**theirs.curves.get(name, {}), **ours.curves.get(name, {})} for name in names}
    runs = {key: _most(theirs.runs.get(key, Given()), ours.runs.get(key, Given()), unnamed)
            for key in theirs.runs.keys() | ours.runs.keys()}  # fmt: skip
    return replace(ours, curves=curves, runs=runs)


def _most(theirs: Given, ours: Given, unnamed: frozenset[str]) -> Given:
    named: dict[str, tuple[str, int]] = {}
    for key, (name, samples) in [*theirs.named.items(), *ours.named.items()]:
        if key not in unnamed:
            named[key] = (name, max(samples, named.get(key, ("", 0))[1]))
    most = dict(sorted(named.items(), key=lambda item: (-item[1][1], item[0]))[:MOST_NAMED])
    return Given(
        machines=max(theirs.machines, ours.machines, len(named)),
        samples=max(theirs.samples, ours.samples, sum(samples for _, samples in most.values())),
        named=most,
    )


def until(history: History, epoch: int) -> History:
    """Nothing of later epochs."""
    curves = {name: {e: value for e, value in curve.items() if e <= epoch} for name, curve in history.curves.items()}
    return replace(history, curves=curves)


def without_undone(history: History, orders: OrderBook) -> History:
    """Nothing of steps that rollbacks after this history's era have undone."""
    epoch = orders.undone_since(history.era)
    return until(history, epoch) if epoch is not None else history


def thinned(curve: Mapping[int, float]) -> dict[int, float]:
    """``MOST_POINTS`` at most: of each stretch of epochs the last one, where all stretches are as long. That length is
    a power of two, so that what is thinned again and again, with what is new, stays as it is wherever it was thin.
    """
    if not curve:
        return {}
    width, first, last = 1, min(curve), max(curve)
    while last // width - first // width >= MOST_POINTS:
        width *= 2
    return dict({epoch // width: (epoch, curve[epoch]) for epoch in sorted(curve)}.values())


def curves_of(store: MetricsStore) -> Curves:
    """What this backbone has seen."""
    found = {name: store.curve(name) for name in CURVES}
    return {name: dict(zip(one.epochs, one.values, strict=True)) for name, one in found.items()}


def points_of(curves: Curves) -> list[Point]:
    """For the card, by epoch."""
    trained, evaluated, speeds, rates = (curves.get(name, {}) for name in CURVES)
    return [
        Point(
            epoch,
            trained.get(epoch, math.nan),
            epoch if epoch in evaluated else -1,
            evaluated.get(epoch, math.nan),
            speeds.get(epoch, math.nan),
            rates.get(epoch, math.nan),
        )
        for epoch in sorted(trained.keys() | evaluated.keys() | speeds.keys() | rates.keys())
    ]


# -- the file ----------------------------------------------------------------------------------------------------------


def written(history: History) -> bytes:
    """The file; ``read_history`` reads it."""
    largest = sorted(history.runs.items(), key=lambda item: (-item[1].samples, item[0]))[:MOST_RUNS]
    content = {
        "format": FORMAT,
        "era": history.era,
        "curves": {name: [list(point) for point in thinned(curve).items()] for name, curve in history.curves.items()},
        "runs": {
            key: {"machines": one.machines, "samples": one.samples, "named": {k: list(n) for k, n in one.named.items()}}
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


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _few(items: Iterable[Any], most: int) -> list[Any]:
    found = list(items)
    if len(found) > most:
        raise ValueError(f"it has {len(found)} entries where {most} are the most")
    return found


def _number(value: Any, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"expected a number up to {most}")
    return int(value)


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
    return Given(machines=machines, samples=samples, named=named)
