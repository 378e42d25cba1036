"""Trainers go on, and nobody gives a backbone their state: what they have trained since is on no disk but theirs."""

from collab.metrics.records import Notice
from collab.ports import Ports
from peers.keeping import StateKeeper

BEHIND = 2
"""Checkpoints that may be missing: one is being fetched, and the next one has just become due."""
UNGIVEN_S = 180.0
"""For so long every attempt has failed: some minutes, so that links that were full once are not told of."""
HINT = (
    "training goes on, and is lost if all trainers leave: let one join, or come back, that others can dial and that "
    "has upload to spare"
)


class Ungiven:
    """Of one backbone."""

    def __init__(self, ports: Ports, keeper: StateKeeper, every_epochs: int) -> None:
        """
        Args:
            every_epochs: how often a checkpoint is due.
        """
        self._ports, self._keeper, self._every_epochs = ports, keeper, every_epochs
        self._told = ""

    def problem(self, epoch: int) -> tuple[str, str]:
        """Since when nothing is saved, and what to do, in words; both empty: all is as it should be.

        Args:
            epoch: that trainers are at; -1: none is here.
        """
        saved = self._keeper.shelf.saved_epoch
        is_behind = epoch - max(saved, 0) > BEHIND * self._every_epochs
        if not is_behind or self._keeper.fetcher.failing_s < UNGIVEN_S:
            return "", ""
        if saved < 0:
            return "nothing is saved: no trainer gives its state", HINT
        return f"nothing after step {saved} is saved: no trainer gives its state", HINT

    def tell(self, epoch: int) -> None:
        """Say so once, and once when it is over."""
        text, hint = self.problem(epoch)
        if text and not self._told:
            self._told = text
            self._observe(Notice(at_s=self._ports.clock.now(), text=text, hint=hint, is_problem=True))
        elif self._told and not self._keeper.fetcher.failing_s:
            over = Notice(at_s=self._ports.clock.now(), text="trainers give their state again", settles=self._told)
            self._told = ""
            self._observe(over)

    def _observe(self, notice: Notice) -> None:
        self._ports.observer.observe(notice)
