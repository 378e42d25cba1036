"""What a peer has given and seen over all its sessions: a pause between two of them takes nothing away."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from collab.metrics.records import EpochFinished, Event, RoundEnded
from peers.present_unit import PresentUnit
from peers.rhythm import Rhythm, RhythmKeeper


@dataclass(slots=True)
class Tally:
    """Of one process. Implements ``Sink``."""

    own_samples: int = 0
    """Of this machine, in the steps that it took with others."""
    swarm_samples: float = 0.0
    """Of everybody in these steps."""
    rounds: int = 0
    """Committed, that it was in."""
    unit: PresentUnit = field(default_factory=PresentUnit)
    _keeper: RhythmKeeper = field(default_factory=RhythmKeeper)

    @classmethod
    def of(cls, sums: Mapping[str, float]) -> "Tally":
        """Goes on from what ``sums`` was."""
        return cls(int(sums["own_samples"]), sums["swarm_samples"], int(sums["rounds"]))

    @property
    def sums(self) -> dict[str, float]:
        """All that adds up."""
        return {"own_samples": self.own_samples, "swarm_samples": self.swarm_samples, "rounds": self.rounds}

    @property
    def rhythm(self) -> Rhythm:
        """How long steps take, as they came."""
        return self._keeper.rhythm

    def observe(self, event: Event) -> None:
        self.unit.observe(event)
        self._keeper.observe(event)
        if isinstance(event, EpochFinished):
            self.own_samples += event.own_samples
            self.swarm_samples += event.swarm_samples
        elif isinstance(event, RoundEnded) and event.committed:
            self.rounds += 1
