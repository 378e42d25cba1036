"""What happened lately, in memory: rounds, checkpoints, notices. Begins with what the store kept of an earlier life."""

from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Any, TypeVar

from collab.metrics.backbone_events import RoundPlanned, RoundShared
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

T = TypeVar("T")
KINDS: Mapping[type[Event], int] = {
    RoundEnded: 20,
    RoundPlanned: 20,
    RoundShared: 20,
    PeerRefused: 200,
    CheckpointSaved: 20,
    CheckpointOnHub: 20,
    Notice: 10,
    SwarmReport: 1,
}
"""How many of each are shown, or looked through."""
MOST_PEERS = 5_000
"""Of whom it is remembered when they contributed last, as many as there are credits."""


class Recent:
    """Implements ``Sink``. Events as ``event_fields``."""

    def __init__(self, store: MetricsStore) -> None:
        self._told = {kind: deque[dict[str, Any]](maxlen=number) for kind, number in KINDS.items()}
        self.brought_at_s: OrderedDict[str, float] = OrderedDict()
        """When each peer's samples were in a round last, swarm time."""
        self.links: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Bytes/s up and down of each peer, as it said when it joined a round last; 0: not measured."""
        for kind, number in KINDS.items():
            for fields in reversed(store.newest(kind, number)):
                self._note(kind, fields)

    def observe(self, event: Event) -> None:
        if type(event) in KINDS:
            self._note(type(event), event_fields(event))

    def newest(self, kind: type[Event]) -> list[dict[str, Any]]:
        """Newest first."""
        return list(reversed(self._told[kind]))

    def _note(self, kind: type[Event], fields: dict[str, Any]) -> None:
        self._told[kind].append(fields)
        if kind is RoundShared:
            _keep(self.brought_at_s, {peer: fields["at_s"] for peer, _ in fields["brought"]})
        if kind is RoundPlanned:
            _keep(self.links, {peer: (up, down) for peer, up, down, _ in fields["links"]})


def _keep(known: OrderedDict[str, T], newest: Mapping[str, T]) -> None:
    """Put these last, and forget the first of too many."""
    for peer, value in newest.items():
        known[peer] = value
        known.move_to_end(peer)
    while len(known) > MOST_PEERS:
        known.popitem(last=False)
