"""A run that ends when its model is good enough: the organiser's order, given by the organiser's own backbone."""

from collections import deque
from typing import TYPE_CHECKING

from collab.config import Run, VcAsgd
from collab.errors import BadMessage
from collab.metrics.records import Notice
from collab.ports import Ports
from collab.swarm.crowd import notice_s
from collab.swarm.identity import Identity
from collab.swarm.mandate import Mandate
from collab.swarm.statements import End

if TYPE_CHECKING:
    from collab.tasks.base import Evaluation
    from peers.evaluations import Measured


class Goal:
    """Of one backbone."""

    def __init__(self, ports: Ports, run: Run, mandate: Mandate, owner: Identity | None) -> None:
        """
        Args:
            owner: whose word counts; None: somebody else has that key, and this backbone only tells.
        """
        self._ports, self._run, self._mandate, self._owner = ports, run, mandate, owner
        self._seen: deque[tuple[float, int]] = deque()
        self._era: str | None = None
        """In which the goal was reached last."""
        self._ordered: tuple[str, int] | None = None
        """Mark of the order that ends the run, and the epoch that was good enough."""

    def note_epoch(self, epoch: int, trainers: int) -> None:
        """Where the swarm of so many trainers stands now."""
        now_s = self._ports.clock.monotonic()
        self._seen.append((now_s, epoch))
        while now_s - self._seen[0][0] > notice_s(trainers):
            self._seen.popleft()
        self._see_to_the_order()

    def note_measured(self, measured: "Measured") -> None:
        """What a checkpoint is worth: if that is enough, and it was not rolled back meanwhile, the run ends."""
        epoch, era = measured.epoch, self._mandate.era
        if era == self._era or measured.era != era or not (words := self._reached(measured.found)):
            return
        self._era = era
        if self._owner is None:
            text = f"the run has reached its goal: {words}, at epoch {epoch}"
            self._say(text, "the backbone of the owner's directory ends it when it runs")
            return
        self._order_end(epoch, self._owner, f"the run has reached its goal: {words}, at epoch {epoch}")

    def _order_end(self, epoch: int, owner: Identity, why: str) -> None:
        last, until = epoch if isinstance(self._run.strategy, VcAsgd) else self._soon(epoch), self._mandate.until_epoch
        if until is not None and until <= last:
            self._ordered = None
            self._say(f"{why}; it ends at epoch {until} anyway", "")
            return
        book = self._mandate.book
        try:
            self._mandate.take(len(book.orders), [book.signed(End(at_epoch=last), owner, self._ports.clock.now())])
        except BadMessage as error:
            self._ordered = None
            self._say(f"{why}, and cannot be ended: {error.message}", "it goes on; it can be carried on as another run")
            return
        self._say(f"{why}; it ends at epoch {last}", "")
        self._ordered = self._mandate.book.mark, epoch

    def _see_to_the_order(self) -> None:
        """The owner may have given another order at the same moment: of two with one number everybody keeps the same
        one. If that is not ours, ours is given again, after it; unless it was to go back to before the goal.
        """
        if self._ordered is None or self._owner is None or self._mandate.knows(self._ordered[0]):
            return
        if self._mandate.era != self._era:
            self._ordered = None
            return
        self._order_end(self._ordered[1], self._owner, "another order was given when this run had reached its goal")

    def _reached(self, found: "Evaluation") -> str:
        """What was asked for and is there, in words; empty: not yet."""
        loss, accuracy = self._run.until_loss, self._run.until_accuracy
        if loss is not None and found.loss <= loss:
            return f"loss {found.loss:.4f}, asked for {loss}"
        if accuracy is not None and found.accuracy >= accuracy:
            return f"{100 * found.accuracy:.1f} % right, asked for {100 * accuracy:g}"
        return ""

    def _soon(self, epoch: int) -> int:
        """An epoch that the swarm does not reach before everybody can have heard of it, so that all end together."""
        present = max((seen for _, seen in self._seen), default=epoch)
        passed = present - min((seen for _, seen in self._seen), default=present)
        return max(present, epoch) + 2 * (passed + 1)

    def _say(self, text: str, hint: str) -> None:
        self._ports.observer.observe(Notice(at_s=self._ports.clock.now(), text=text, hint=hint))
