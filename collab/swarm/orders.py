"""The organiser's orders: a chain of statements, each signed by the run's owner, that every peer of the run follows.

Each order names the one before it by its mark, so that two peers with the same last mark have read the same chain, and
nobody can leave one out. Whoever has the chain may hand it on: it proves itself.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, get_type_hints

from packaging.version import Version

from collab.errors import BadMessage
from collab.net.wire import Message
from collab.swarm.envelope import Envelope
from collab.swarm.identity import Identity
from collab.types import PeerId

TAG = "collab/order/1"
"""First value of everything that is signed as an order; nothing else that peers sign begins like that."""
MAX_ORDERS = 1000
MAX_ORDER_BYTES = 768
"""So that a whole chain fits into one message."""
ENVELOPE = Envelope(name="order", max_bytes=MAX_ORDER_BYTES)
"""Without a purpose: the values begin with the tag."""
MAX_TEXT_CHARACTERS = 200
MARK_DIGITS = 16
FOREVER = 0.0
"""End of what has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amend:
    """From an epoch on, the run is another one in these points; None: as before."""

    from_epoch: int
    """Global steps taken before the first step that this is about."""
    learning_rate: float | None = None
    """Of the optimiser, before the schedule's factor."""
    target_batch_size: int | None = None
    minimum_version: str | None = None
    """Of this package; who has an older one stops, and says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The run is over when it has taken so many global steps."""

    at_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """What came after a checkpoint never counted: everybody goes on from there.

    Nor do amendments for steps after it: what made the loss rise would do so again.
    """

    to_epoch: int
    lineage: str
    """Of the checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ban:
    """Nobody deals with a peer, or with anybody who came with an invite."""

    who: str
    """A peer id, or the id of an invite."""
    reason: str
    until_s: float = FOREVER
    """Swarm time."""

    def holds(self, now: float) -> bool:
        """Whether it has not ended by itself."""
        return self.until_s == FOREVER or now < self.until_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Pardon:
    """The bans of a peer or an invite are void."""

    who: str


Statement = Amend | End | Rollback | Ban | Pardon
KINDS: dict[str, type[Statement]] = {
    "amend": Amend,
    "end": End,
    "rollback": Rollback,
    "ban": Ban,
    "pardon": Pardon,
}
NAMES = {kind: name for name, kind in KINDS.items()}


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
        for amendment, its_mark in _amendments(orders):
            if amendment.from_epoch <= epoch:
                said = asdict(amendment)
                del said["from_epoch"]
                values |= {name: value for name, value in said.items() if value is not None}
                values["mark"] = its_mark
        return Terms(**values)

    def void_with(self, rollback: Rollback) -> list[Amend]:
        """Amendments that a rollback makes void: they are about steps that never counted."""
        return [what for what, _ in _amendments(self.orders) if what.from_epoch >= rollback.to_epoch]

    def ends_at(self, until_epoch: int | None) -> int | None:
        """Where the run ends; the last word counts.

        Args:
            until_epoch: as the run file says.
        """
        said = [order.what.at_epoch for order in self.orders if isinstance(order.what, End)]
        return said[-1] if said else until_epoch

    def rollback(self) -> Order | None:
        """The last one."""
        return next((order for order in reversed(self.orders) if isinstance(order.what, Rollback)), None)

    def bans(self) -> dict[str, Ban]:
        """Of peers and invites, those included that have ended by themselves."""
        found: dict[str, Ban] = {}
        for order in self.orders:
            if isinstance(order.what, Ban):
                found[order.what.who] = order.what
            elif isinstance(order.what, Pardon):
                found.pop(order.what.who, None)
        return found


def _amendments(orders: Sequence[Order]) -> list[tuple[Amend, str]]:
    """Those that no later rollback has made void, and their marks."""
    found: list[tuple[Amend, str]] = []
    for order in orders:
        if isinstance(order.what, Amend):
            found.append((order.what, order.mark))
        elif isinstance(order.what, Rollback):
            found = [(what, mark) for what, mark in found if what.from_epoch < order.what.to_epoch]
    return found


def _unpack(data: Any, fingerprint: str, owner: PeerId, number: int, previous: str) -> Order:
    def read(values: Any) -> Order:
        tag, run, its_number, its_previous, said_at, kind, told = values
        if (tag, run, its_number, its_previous) != (TAG, fingerprint, number, previous):
            raise BadMessage(f"order {number} is of another run, or does not follow the one before it")
        said_at = Message("order", {"said_at": said_at}).get("said_at", float)
        mark = hashlib.sha256(ENVELOPE.body(data)).hexdigest()[:MARK_DIGITS]
        return Order(number=number, said_at=said_at, what=_statement(kind, told), mark=mark)

    return replace(ENVELOPE, name=f"order {number}").unpack(data, owner, read)


def _statement(kind: str, values: dict[str, Any]) -> Statement:
    """A statement whose every field has its type, and a value that makes sense."""
    if not isinstance(values, dict):
        raise BadMessage(f"{kind} without fields")
    made, message = KINDS[kind], Message(kind, values)
    checked: dict[str, Any] = {}
    for field in fields(made):
        hint = get_type_hints(made)[field.name]
        kinds = [option for option in getattr(hint, "__args__", (hint,)) if option is not type(None)]
        is_absent = values.get(field.name) is None and hint is not kinds[0]
        checked[field.name] = None if is_absent else message.get(field.name, kinds[0])
    what = made(**checked)
    check(what)
    return what


def check(what: Statement) -> None:
    """Raises ``BadMessage`` or ``ValueError`` for a statement that nobody could follow."""
    for name, value in asdict(what).items():
        if isinstance(value, str) and len(value) > MAX_TEXT_CHARACTERS:
            raise BadMessage(f"{name} of {len(value)} characters is over the limit of {MAX_TEXT_CHARACTERS}")
        if isinstance(value, int | float) and not (math.isfinite(value) and value >= 0):
            raise BadMessage(f"{name} should be finite and not negative, got {value}")
    if isinstance(what, Amend) and not (what.learning_rate != 0 and what.target_batch_size != 0):
        raise BadMessage("a learning rate and a target batch are larger than zero")
    if isinstance(what, Amend) and all(value is None for name, value in asdict(what).items() if name != "from_epoch"):
        raise BadMessage("an amendment says what changes")
    if isinstance(what, Amend) and what.minimum_version is not None:
        Version(what.minimum_version)
