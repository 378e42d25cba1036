"""The organiser's orders: a chain of statements, each signed by the run's owner, that every peer of the run follows.

Each order names the one before it by its mark, so that two peers with the same last mark have read the same chain, and
nobody can leave one out. Whoever has the chain may hand it on: it proves itself.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from collab.errors import BadMessage
from collab.net.wire import Message
from collab.swarm.envelope import Envelope
from collab.swarm.identity import Identity
from collab.swarm.statements import NAMES, Amend, Ban, End, Pardon, Rollback, Statement, read_statement
from collab.types import PeerId

TAG = "collab/order/1"
"""First value of everything that is signed as an order; nothing else that peers sign begins like that."""
MAX_ORDERS = 1000
MAX_ORDER_BYTES = 768
"""So that a whole chain fits into one message."""
ENVELOPE = Envelope(name="order", max_bytes=MAX_ORDER_BYTES)
"""Without a purpose: the values begin with the tag."""
MARK_DIGITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One link of the chain."""

    number: int
    """From 1 on."""
    said_at: float
    """Swarm time."""
    what: Statement
    mark: str
    """16 hex digits of the digest of this order, which names the one before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What holds for one global step, beside the run file."""

    mark: str = ""
    """Of the last order that counts for it; empty: none does."""
    learning_rate: float | None = None
    target_batch_size: int | None = None
    minimum_version: str | None = None


@dataclass(frozen=True, slots=True)
class OrderBook:
    """A chain of orders of one run, checked from its beginning to its end."""

    fingerprint: str
    owner: PeerId
    """Empty: a run that nobody owns, which has no orders."""
    orders: tuple[Order, ...] = ()
    packed: tuple[bytes, ...] = ()
    """The same as signed bytes."""

    @property
    def mark(self) -> str:
        """Of the whole chain."""
        return self.mark_of(len(self.orders))

    def mark_of(self, count: int) -> str:
        """Of the first ``count`` orders."""
        return self.orders[count - 1].mark if count else ""

    def extended(self, packed: Sequence[bytes]) -> "OrderBook":
        """With these orders after our own.

        Raises:
            BadMessage: one is malformed, not signed by the owner, or does not follow the one before it.
        """
        orders = list(self.orders)
        if len(orders) + len(packed) > MAX_ORDERS:
            raise BadMessage(f"{len(orders) + len(packed)} orders are over the limit of {MAX_ORDERS}")
        for data in packed:
            previous = orders[-1].mark if orders else ""
            orders.append(_unpack(data, self.fingerprint, self.owner, len(orders) + 1, previous))
        return OrderBook(self.fingerprint, self.owner, tuple(orders), (*self.packed, *packed))

    def merged(self, start: int, packed: Sequence[bytes]) -> "OrderBook":
        """Ours, or the chain of somebody else that begins as ours does, whichever counts.

        The longer chain counts; of equally long ones, which an owner who speaks in two places at once can make, the one
        with the smaller mark.

        Args:
            start: so many of our orders come first.

        Raises:
            BadMessage: as ``extended``.
        """
        if not 0 <= start <= len(self.orders):
            raise BadMessage(f"orders from number {start} on, after {len(self.orders)}")
        begun = OrderBook(self.fingerprint, self.owner, self.orders[:start], self.packed[:start])
        other = begun.extended(packed)
        ranks = [(-len(book.orders), book.mark) for book in (self, other)]
        return self if ranks[0] <= ranks[1] else other

    def signed(self, what: Statement, owner: Identity, said_at: float) -> bytes:
        """The order that says ``what`` after ours, to ``extended``.

        Raises:
            ValueError: ``owner`` does not own the run.
        """
        if owner.peer_id != self.owner:
            raise ValueError("orders are signed by the owner of the run")
        values = [TAG, self.fingerprint, len(self.orders) + 1, self.mark, said_at, NAMES[type(what)], asdict(what)]
        return ENVELOPE.pack(values, owner)

    # -- what they mean ----------------------------------------------------------------------------------------------

    def terms_at(self, epoch: int, mark: str | None = None) -> Terms:
        """What holds for the step after ``epoch`` ones.

        Args:
            mark: counts the orders up to this one only, as a round did; None: all of ours.

        Raises:
            KeyError: no order of ours has this mark.
        """
        orders = self.orders
        if mark is not None:
            count = 0 if not mark else next((order.number for order in orders if order.mark == mark), -1)
            if count < 0:
                raise KeyError(mark)
            orders = orders[:count]
        values: dict[str, Any] = {}
        last = 0
        for number, what in _amendments(orders):
            if what.from_epoch <= epoch:
                said = asdict(what)
                del said["from_epoch"]
                values |= {name: value for name, value in said.items() if value is not None}
                last = number
        if (end := _end(orders)) is not None and end[1] <= epoch + 1:
            last = max(last, end[0])
        return Terms(**values, mark=self.mark_of(last))

    def amendments(self) -> list[Amend]:
        """In the order in which they were given, but for those that a rollback has made void."""
        return [what for _, what in _amendments(self.orders)]

    def void_with(self, rollback: Rollback) -> list[Amend]:
        """Amendments that a rollback makes void: they are about steps that never counted."""
        return [what for what in self.amendments() if what.from_epoch >= rollback.to_epoch]

    def void_before(self, rollback: Rollback) -> list[Amend]:
        """Amendments for steps before ``rollback`` that an earlier one has made void: it does not bring them back."""
        held = self.amendments()
        said = (order.what for order in self.orders if isinstance(order.what, Amend))
        return [what for what in said if what not in held and what.from_epoch < rollback.to_epoch]

    def ends_at(self, until_epoch: int | None, taken: int = 0, mark: str = "") -> int | None:
        """Where the run ends; the last word counts.

        Args:
            until_epoch: as the run file says.
            taken: steps that the swarm has taken, as far as is known.
            mark: of the terms of the last one; the end is not before a step that counts its order.
        """
        if (end := _end(self.orders)) is None:
            return until_epoch
        number, at_epoch = end
        if taken < at_epoch:
            return at_epoch
        is_counted = any(order.mark == mark for order in self.orders[number - 1 :])
        return taken if is_counted else taken + 1

    def rollback(self) -> Order | None:
        """The last one."""
        return next((order for order in reversed(self.orders) if isinstance(order.what, Rollback)), None)

    def eras(self) -> list[str]:
        """Marks of all rollbacks, in order, behind the empty one of what was before the first."""
        return ["", *(order.mark for order in self.orders if isinstance(order.what, Rollback))]

    def undone_since(self, era: str) -> int | None:
        """The last epoch of an era that still counts: the earliest one that rollbacks since have gone back to.

        Args:
            era: mark of the rollback that it began with; of one that we do not know, none of ours was heard of.

        Returns:
            None: all of it counts.
        """
        found = [(order.mark, order.what.to_epoch) for order in self.orders if isinstance(order.what, Rollback)]
        marks = [mark for mark, _ in found]
        since = found[marks.index(era) + 1 :] if era in marks else found
        return min((epoch for _, epoch in since), default=None)

    def bans(self) -> dict[str, Ban]:
        """Of peers and invites, those included that have ended by themselves."""
        found: dict[str, Ban] = {}
        for order in self.orders:
            if isinstance(order.what, Ban):
                found[order.what.who] = order.what
            elif isinstance(order.what, Pardon):
                found.pop(order.what.who, None)
        return found


def _amendments(orders: Sequence[Order]) -> list[tuple[int, Amend]]:
    """Those that no later rollback has made void, with their numbers."""
    found: list[tuple[int, Amend]] = []
    for order in orders:
        if isinstance(order.what, Amend):
            found.append((order.number, order.what))
        elif isinstance(order.what, Rollback):
            found = [(number, what) for number, what in found if what.from_epoch < order.what.to_epoch]
    return found


def _end(orders: Sequence[Order]) -> tuple[int, int] | None:
    """Number and epoch of the last one; None: there is none."""
    ends = ((order.number, order.what.at_epoch) for order in reversed(orders) if isinstance(order.what, End))
    return next(ends, None)


def _unpack(data: Any, fingerprint: str, owner: PeerId, number: int, previous: str) -> Order:
    def read(values: Any) -> Order:
        tag, run, its_number, its_previous, said_at, kind, told = values
        if (tag, run, its_number, its_previous) != (TAG, fingerprint, number, previous):
            raise BadMessage(f"order {number} is of another run, or does not follow the one before it")
        said_at = Message("order", {"said_at": said_at}).get("said_at", float)
        mark = hashlib.sha256(ENVELOPE.body(data)).hexdigest()[:MARK_DIGITS]
        return Order(number=number, said_at=said_at, what=read_statement(kind, told), mark=mark)

    return replace(ENVELOPE, name=f"order {number}").unpack(data, owner, read)
