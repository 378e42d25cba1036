"""What a run is at a given step: its run file, and what the organiser has ordered since."""

from collections.abc import Callable, Mapping, Sequence

from packaging.version import Version

from collab.swarm.bundle import Bundle
from collab.swarm.orders import Order, OrderBook
from collab.swarm.statements import Ban
from collab.version import VERSION


class Mandate:
    """The orders that one peer knows, and what they mean for it. Implements ``Terms`` of the round engine."""

    def __init__(self, bundle: Bundle) -> None:
        self._run = bundle.run
        self.book = OrderBook(bundle.fingerprint, bundle.owner)
        self._bans: Mapping[str, Ban] = {}
        self._step = (0, "")
        """Steps that the swarm has taken, as far as we know, and the mark of the terms of the last one."""
        self.on_orders: list[Callable[[Sequence[Order]], None]] = []
        """Each is called with what is new; all of it, when another chain has taken the place of ours."""

    def take(self, start: int, packed: Sequence[bytes]) -> bool:
        """Orders of somebody else, after the first ``start`` of ours; whether we know more now.

        Raises:
            BadMessage: they are not the owner's.
        """
        era = self.era
        before, self.book = self.book, self.book.merged(start, packed)
        if self.book.mark == before.mark:
            return False
        self._bans = self.book.bans()
        if self.era != era:
            self._step = (0, "")
        kept = sum(a.mark == b.mark for a, b in zip(before.orders, self.book.orders, strict=False))
        for tell in self.on_orders:
            tell(self.book.orders[kept:])
        return True

    def note_step(self, epoch: int, mark: str) -> None:
        """The swarm has taken the step after ``epoch`` ones, under the terms of this mark."""
        self._step = max(self._step, (epoch + 1, mark))

    # -- what holds --------------------------------------------------------------------------------------------------

    def mark_at(self, epoch: int) -> str:
        """Of the terms under which the step after ``epoch`` ones is taken."""
        return self.book.terms_at(epoch).mark

    def knows(self, mark: str) -> bool:
        """Whether we have the orders up to this one."""
        return not mark or any(order.mark == mark for order in self.book.orders)

    def rate_factor(self, epoch: int, mark: str | None = None) -> float:
        """What the learning rates of the run file are multiplied with in the step after ``epoch`` ones.

        Args:
            mark: of the terms that a round names; None: those that we know of.

        Raises:
            KeyError: we do not know the order of this mark.
        """
        rate = self.book.terms_at(epoch, mark).learning_rate
        return 1.0 if rate is None else rate / self._run.optimizer.learning_rate

    def target_batch_size(self, epoch: int) -> int:
        """Samples of the swarm's batch for the step after ``epoch`` ones."""
        amended = self.book.terms_at(epoch).target_batch_size
        return self._run.strategy.target_batch_size if amended is None else amended

    @property
    def until_epoch(self) -> int | None:
        """Where the run ends; None: nowhere."""
        return self.book.ends_at(self._run.until_epoch, *self._step)

    @property
    def era(self) -> str:
        """Mark of the last rollback; empty: there was none. States of other eras do not count any more."""
        rollback = self.book.rollback()
        return rollback.mark if rollback is not None else ""

    def ban_of(self, who: str, now: float) -> Ban | None:
        """The ban that a peer or an invite is under."""
        found = self._bans.get(who)
        return found if found is not None and found.holds(now) else None

    def needed_version(self, epoch: int) -> str | None:
        """The version that the step after ``epoch`` ones asks for, if ours is older; None: ours will do."""
        needed = self.book.terms_at(epoch).minimum_version
        return needed if needed is not None and Version(VERSION) < Version(needed) else None

    def next_needed_version(self, epoch: int) -> tuple[int, str] | None:
        """The first epoch from ``epoch`` on whose step asks for a later version than ours, and which; None: none."""
        asking = (what.from_epoch for what in self.book.amendments() if what.minimum_version is not None)
        for first in sorted({epoch, *(start for start in asking if start > epoch)}):
            if (needed := self.needed_version(first)) is not None:
                return first, needed
        return None
