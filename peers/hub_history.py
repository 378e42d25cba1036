"""What a run has been, as each commit on the Hub tells it: thinned curves, and who gave how much.

A backbone has seen only what happened while it was there. What others have published goes on with it: epochs of all,
and of each peer the most that anybody has heard of. People who did not agree to be named are in sums only, and whether
somebody is named goes by the last that they have said to any backbone.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from collab.metrics.names import EVAL_LOSS, LEARNING_RATE, LOSS, SAMPLES_PER_S
from collab.metrics.store import MetricsStore
from collab.swarm.orders import OrderBook
from collab.swarm.statements import FOREVER, Ban
from collab.types import PeerId
from peers.credit import MOST_OF_ONE, Credit
from peers.model_card import Point

MOST_POINTS = 400
"""Of one curve, as many as a picture shows."""
MOST_NAMED, MOST_WITHDRAWN = 500, 1000
"""Of one run: those who gave most, and those who took it back last that they are named."""
MOST_CHARACTERS = 40
"""Of a name, and of the mark of an era."""
MOST_SAMPLES, MOST_MACHINES = 1 << 62, 1 << 30
"""Samples of all, and machines: beyond it somebody lies."""
CURVES = (LOSS.name, EVAL_LOSS.name, SAMPLES_PER_S.name, LEARNING_RATE.name)
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
    words: Mapping[str, float] = field(default_factory=lambda: NOTHING)
    """When they said so last, swarm time, by the same digests; who is here and not named has taken it back."""


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
    peers = [
        (_digest(f"{fingerprint}:{peer}"), one.name, min(one.total, MOST_OF_ONE), one.said_at_s) for peer, one in given
    ]
    named = {key: (name[:MOST_CHARACTERS], samples) for key, name, samples, _ in peers if name}
    words = {key: said_at_s for key, name, _, said_at_s in peers if name}
    samples = min(sum(samples for _, _, samples, _ in peers), MOST_SAMPLES)
    seen = Given(machines=len(peers), samples=samples, named=named, words=words)
    return History(era=era, curves=curves, runs={run_key(fingerprint): seen} if peers else NOTHING)


def unnamed(fingerprint: str, given: Iterable[tuple[PeerId, Credit]], bans: Iterable[Ban]) -> frozenset[str]:
    """Digests of machines that are banned for good, be it by an invite that they have shown us."""
    banned = {ban.who for ban in bans if ban.until_s == FOREVER}
    peers = banned | {peer for peer, one in given if one.invite in banned}
    return frozenset(_digest(f"{fingerprint}:{peer}") for peer in peers)


def taken_back(fingerprint: str, given: Iterable[tuple[PeerId, Credit]], known: History) -> History:
    """Who has told this backbone not to be named, of those whose word is known; of all others there are sums only."""
    key = run_key(fingerprint)
    unnamed = {_digest(f"{fingerprint}:{peer}"): one.said_at_s for peer, one in given if not one.name}
    words = {one: unnamed[one] for one in unnamed.keys() & known.runs.get(key, Given()).words.keys()}
    return History(runs={key: Given(words=words)} if words else NOTHING)


def merged(theirs: History, ours: History, unnamed: frozenset[str] = frozenset()) -> History:
    """Both in one; where both know something, of the curves ours counts, of samples the most, and of words whether
    somebody is named the last one.

    Args:
        unnamed: digests of peers that are not to be named, whoever has named them.
    """
    names = theirs.curves.keys() | ours.curves.keys()
    curves = {name: {**theirs.curves.get(name, {}), **ours.curves.get(name, {})} for name in names}
    runs = {key: _most(theirs.runs.get(key, Given()), ours.runs.get(key, Given()), unnamed)
            for key in theirs.runs.keys() | ours.runs.keys()}  # fmt: skip
    return replace(ours, curves=curves, runs=runs)


def named_as_in(newest: History, history: History) -> History:
    """``history`` without the names that were taken back by the time of ``newest``."""
    gone = {key: {peer: at_s for peer, at_s in one.words.items() if peer not in one.named}
            for key, one in newest.runs.items()}  # fmt: skip
    runs = {key: _most(one, Given(words=gone.get(key, NOTHING)), frozenset()) for key, one in history.runs.items()}
    return replace(history, runs=runs)


def _most(theirs: Given, ours: Given, unnamed: frozenset[str]) -> Given:
    named: dict[str, tuple[str, int]] = {}
    words = {key: max(one.words[key] for one in (theirs, ours) if key in one.words)
             for key in theirs.words.keys() | ours.words.keys()}  # fmt: skip
    for key, said_at_s in words.items():
        last = [one.named.get(key) for one in (theirs, ours) if one.words.get(key) == said_at_s]
        if last[-1] is not None and None not in last and key not in unnamed:
            samples = [one.named[key][1] for one in (theirs, ours) if key in one.named]
            named[key] = (last[-1][0], max(samples))
    most = dict(sorted(named.items(), key=lambda item: (-item[1][1], item[0]))[:MOST_NAMED])
    withdrawn = sorted(words.keys() - named.keys(), key=lambda key: (-words[key], key))[:MOST_WITHDRAWN]
    return Given(
        machines=max(theirs.machines, ours.machines, len(named)),
        samples=max(theirs.samples, ours.samples, sum(samples for _, samples in most.values())),
        named=most,
        words={key: words[key] for key in (*most, *withdrawn)},
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


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
