"""What goes wrong in a benchmark of averaging, on purpose."""

import signal
import time
from dataclasses import dataclass

from averaging_contest import Contestant
from averaging_setup import Part, Swarm
from netlab import Lab
from netlab_links import Link

DISTURBANCES = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
SLOWED = 0.1
"""What a link falls to when it becomes slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What befalls a peer in the first measured round."""

    kind: str
    """kill, stop: the peer with all its processes. slow: its link falls to a tenth for the rest of the round."""
    peer: int
    after_s: float
    """Since the first trainer had its group."""

    @classmethod
    def parse(cls, text: str) -> "Fault":
        """``kill:3:1.5``. Raises ``ValueError``."""
        kind, peer, after_s = text.split(":")
        if kind not in (*DISTURBANCES, "slow"):
            raise ValueError(f"no fault is called {kind!r}")
        return cls(kind=kind, peer=int(peer), after_s=float(after_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A link that becomes another one before a round."""

    number: int
    peer: int
    link: Link

    @classmethod
    def parse(cls, text: str) -> "Change":
        """``4:3:20/100``: from round 4 on, peer 3. Raises ``ValueError``."""
        number, peer, link = text.split(":")
        return cls(number=int(number), peer=int(peer), link=Link.parse(link))


def strike(contestant: Contestant, fault: Fault, swarm: Swarm, lab: Lab | None) -> None:
    """Let a fault happen when it is due."""
    trainers = [index for index in sorted(contestant.peers_left) if swarm.parts[index] is not Part.AUXILIARY]
    contestant.await_group(next(index for index in trainers if index != fault.peer))
    time.sleep(fault.after_s)
    if fault.kind in DISTURBANCES:
        contestant.disturb(fault.peer, DISTURBANCES[fault.kind])
    elif lab is not None:
        lab.set_link(fault.peer, lab.links[fault.peer].scaled(SLOWED))
