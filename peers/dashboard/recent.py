"""What happened lately, in memory: rounds, checkpoints, notices. Begins with what the store kept of an earlier life."""

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from typing import Any

from collab.metrics.backbone_events import RolledBack, RoundPlanned, RoundShared
from collab.metrics.names import Metric, counter_of, figures_of
from collab.metrics.records import (
    CheckpointOnHub,
    CheckpointSaved,
    Event,
    Notice,
    PeerRefused,
    RoundEnded,
    SwarmReport,
)
from collab.metrics.sinks import event_fields
from collab.metrics.store import MetricsStore

KINDS: Mapping[type[Event], int] = {
    RoundEnded: 20,
    RoundPlanned: 20,
    RoundShared: 20,
    PeerRefused: 200,
    CheckpointSaved: 20,
    CheckpointOnHub: 20,
    Notice: 10,
    SwarmReport: 1,
    RolledBack: 1,
}
"""How many of each are shown, or looked through."""


class Recent:
    """Implements ``Sink``. Events as ``event_fields``. Forgets peers that are not here and in no round of these."""

    def __init__(self, store: MetricsStore, here: Callable[[], Collection[str]]) -> None:
        """
        Args:
            here: ids of the peers whose word is fresh.
        """
        self._here = here
        self._told = {kind: deque[dict[str, Any]](maxlen=number) for kind, number in KINDS.items()}
        self.brought_at_s: dict[str, float] = {}
        """When each peer's samples were in a round last, swarm time."""
        self.links: dict[str, tuple[float, float]] = {}
        """Bytes/s up and down of each peer, as it said when it joined a round last; 0: not measured."""
        self._figures = store.newest_points()
        self.counters: Counter[str] = Counter(store.counters())
        """By name."""
        for kind, number in KINDS.items():
            for fields in reversed(store.newest(kind, number)):
                self._note(kind, fields)

    def observe(self, event: Event) -> None:
        self._count(event)
        if type(event) in KINDS:
            known = len(self.brought_at_s), len(self.links)
            self._note(type(event), event_fields(event))
            if known != (len(self.brought_at_s), len(self.links)):
                self._forget_those_who_are_gone()

    @property
    def figures(self) -> dict[str, float]:
        """Of each metric the value of its last epoch."""
        return {name: value for name, (_, value) in self._figures.items()}

    def last_epoch(self, metric: Metric) -> int:
        """Of which there is a value; -1: there is none."""
        return self._figures.get(metric.name, (-1, math.nan))[0]

    def newest(self, kind: type[Event]) -> list[dict[str, Any]]:
        """Newest first."""
        return list(reversed(self._told[kind]))

    def _count(self, event: Event) -> None:
        if isinstance(event, RolledBack):
            self._figures = {name: told for name, told in self._figures.items() if told[0] <= event.epoch}
        for figure in figures_of(event):
            if figure.epoch >= self._figures.get(figure.name, (-1, 0.0))[0]:
                self._figures[figure.name] = figure.epoch, figure.value
        if counter := counter_of(event):
            self.counters[counter] += 1

    def _note(self, kind: type[Event], fields: dict[str, Any]) -> None:
        self._told[kind].append(fields)
        if kind is RoundShared:
            self.brought_at_s |= {peer: fields["at_s"] for peer, _ in fields["brought"]}
        if kind is RoundPlanned:
            self.links |= {peer: (up, down) for peer, up, down, _ in fields["links"]}

    def _forget_those_who_are_gone(self) -> None:
        kept = set(self._here())
        kept.update(peer for told in self._told[RoundShared] for peer, _ in told["brought"])
        kept.update(peer for told in self._told[RoundPlanned] for peer, *_ in told["links"])
        self.brought_at_s = {peer: at_s for peer, at_s in self.brought_at_s.items() if peer in kept}
        self.links = {peer: rates for peer, rates in self.links.items() if peer in kept}
