"""A strategy of somebody's own, as a run file may name it: DeDLOC with half of each mean gradient."""

from dataclasses import replace

from collab.averaging.base import Committed
from collab.strategies.base import Replica, Target
from collab.strategies.dedloc import Dedloc


class HalfSteps(Dedloc):
    """The update rule of DeDLOC with ``share`` times the mean gradient."""

    def __init__(self, *, target: Target, share: float = 0.5) -> None:
        super().__init__(target=target, max_gradient_norm=None)
        self._share = share

    def apply(self, replica: Replica, committed: Committed) -> None:
        super().apply(replica, replace(committed, mean=committed.mean * self._share))
