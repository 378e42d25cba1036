"""What one peer has given to a run, as it says itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field

MOST_OF_ONE = 1 << 50
"""Samples of one machine: beyond it somebody lies."""
LIVES = 4
"""Of a peer, whose words may still come: records that are read late, or another machine that has the same key."""
NO_OTHERS: Mapping[int, int] = {}
"""What all share who have had one life: most of those who have ever come are strangers that came once."""


@dataclass(slots=True)
class Credit:
    """One peer."""

    name: str = ""
    """Empty: it does not want to be named."""
    earlier: int = 0
    """Samples of its lives before those that follow."""
    samples: int = 0
    """Of the life that spoke last."""
    invite: str = ""
    """Id of the one that it has shown last; empty: none, as far as we have seen."""
    is_seen: bool = False
    """Whether this backbone has seen it in a round that committed."""
    life: int = 0
    """Which one spoke last, see ``PeerRecord``."""
    others: Mapping[int, int] = field(default_factory=lambda: NO_OTHERS)
    """Samples of the lives that spoke before, by their marks, the latest last. Never changed in place."""
    said_at_s: float = 0.0
    """When it has last said whether it wants to be named, swarm time."""
    grew_at_s: float = 0.0
    """When it said for the first time that it had given more, swarm time; 0: that was before anybody noted it."""

    @property
    def total(self) -> int:
        """Samples of all its lives."""
        return min(self.earlier + sum(self.others.values()) + self.samples, MOST_OF_ONE)

    def hear(self, life: int, samples: int) -> None:
        """So many samples of this life. One that bears no mark, of an earlier version, has ended when it says less."""
        if self.life == 0 and samples >= self.samples:
            self.life = life
        if life == self.life:
            if life == 0 and samples < self.samples:
                self.earlier, self.samples = min(self.earlier + self.samples, MOST_OF_ONE), 0
            self.samples = max(self.samples, samples)
            return
        others = {**self.others, self.life: self.samples}
        self.life, self.samples = life, max(samples, others.pop(life, 0))
        if len(others) >= LIVES:
            self.earlier = min(self.earlier + others.pop(next(iter(others))), MOST_OF_ONE)
        self.others = others
