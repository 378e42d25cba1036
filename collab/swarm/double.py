"""Whether somebody else takes part with this peer's key, as when its directory was copied to another machine."""

import math

from collab.metrics.records import Notice
from collab.ports import Ports
from collab.swarm.records import PeerRecord
from collab.types import PeerId

RESTART_S = 5.0
"""Words of our life before are older than this one; two measurements of the swarm's clock differ by less than this."""
TEXT = "another machine takes part in this run with this peer's key, and the others take the two for one peer"
HINT = (
    "stop one of them, and delete identity.key in the --data-dir that is the copy: it then gets a key of its own, and "
    "its state from the swarm"
)


class Double:
    """Of one life of a peer, as the board knows it that speaks for it. Tells once."""

    def __init__(self, me: PeerId, ports: Ports) -> None:
        self._me, self._ports, self._from_s = me, ports, ports.clock.now() + RESTART_S
        self._newest_s = math.inf
        """Swarm time; what bears our name and is younger was said by somebody else. Who only looks does not know."""
        self._is_told = False

    def said(self, record: PeerRecord) -> None:
        """This is a word of ours."""
        self._newest_s = max(self._from_s, record.said_at)

    def heard(self, record: PeerRecord) -> None:
        """This was in the directory, signed by whom it is about."""
        if record.peer == self._me and record.said_at > self._newest_s and not self._is_told:
            self._is_told = True
            self._ports.observer.observe(Notice(at_s=self._ports.clock.now(), text=TEXT, hint=HINT, is_problem=True))
