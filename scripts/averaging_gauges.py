"""What is measured beside the rounds of a benchmark: gauges run in a peer's process, and are read at the end."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

Period = tuple[float, float]
"""From, to: seconds of the monotonic clock, which all processes of a machine share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Periods:
    """What a gauge tells apart."""

    rounds: tuple[Period, ...]
    """While vectors travelled: from the first group to the last whole result."""
    quiet: tuple[Period, ...]
    """While peers were asked for nothing."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Periods":
        fields = json.loads(text)
        return cls(**{name: tuple((start_s, stop_s) for start_s, stop_s in fields[name]) for name in fields})


def is_within(at_s: float, periods: Sequence[Period]) -> bool:
    """Whether some period contains ``at_s``."""
    return any(start_s <= at_s <= stop_s for start_s, stop_s in periods)


class Gauge(Protocol):
    """Measures in a peer's process from ``start`` to the process's end."""

    name: str

    def start(self) -> None:
        """Everybody is up; returns when measuring has begun."""
        ...

    def read(self, periods: Periods) -> dict[str, Any]:
        """What was measured in these periods."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Company:
    """Which gauges there are."""

    heartbeats: tuple[int, int] | None = None
    """From, to."""
    computing: tuple[int, ...] = ()
    cores: Mapping[int, int] = field(default_factory=dict)
    """Whose work has a core of its own, and which; empty: all share all."""
    other_cores: tuple[int, ...] = ()
    """Where everything else runs then."""

    @property
    def is_any(self) -> bool:
        return self.heartbeats is not None or bool(self.computing)

    def heartbeats_to(self, peer: int) -> int | None:
        """Whom ``peer`` sends heartbeats."""
        return self.heartbeats[1] if self.heartbeats is not None and self.heartbeats[0] == peer else None

    def figures(self, found: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
        """Everybody's readings, by peer and gauge, as one; null where the peer did not live to tell."""
        content: dict[str, Any] = {}
        if self.heartbeats is not None:
            sender, receiver = self.heartbeats
            beats = found.get(sender, {}).get("heartbeats")
            content["heartbeats"] = {"from": sender, "to": receiver, **beats} if beats else None
        if self.computing:
            told = {peer: found[peer]["compute"] for peer in self.computing if peer in found}
            content["compute"] = self._compute(told)
        return content

    def _compute(self, told: Mapping[int, Mapping[str, Any]]) -> dict[str, Any] | None:
        """The peer that keeps least, and what the others keep."""
        kept = {peer: reading["share_kept"] for peer, reading in told.items() if reading["share_kept"] is not None}
        if not kept:
            return None
        worst = min(kept, key=lambda peer: kept[peer])
        return {
            "peer": worst,
            **told[worst],
            "core": self.cores.get(worst),
            "other_cores": list(self.other_cores),
            "shares_kept": {str(peer): share for peer, share in kept.items()},
        }


NO_COMPANY = Company()


def own_cores(computing: Sequence[int], available: Sequence[int]) -> tuple[dict[int, int], tuple[int, ...]]:
    """A core for each peer that computes, and those left for everything else; none at all where they do not suffice."""
    if not computing or len(computing) >= len(available):
        return {}, ()
    own = sorted(available)[-len(computing) :]
    return dict(zip(computing, own, strict=True)), tuple(core for core in sorted(available) if core not in own)
