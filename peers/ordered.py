"""What the organiser of a run has ordered, as ``collab-peer status`` shows it to whoever asks."""

from dataclasses import asdict
from typing import Any

from collab.config import Run
from collab.errors import NetworkError
from collab.net.startup import Started
from collab.swarm.dates import utc
from collab.swarm.mandate import Mandate
from collab.swarm.order_exchange import exchange
from collab.swarm.orders import Order
from collab.swarm.progress import SwarmView
from collab.swarm.statements import FOREVER, Rollback
from collab.types import PeerId
from peers.summary import learning_rate

MAX_ASKED = 4
"""Peers that are asked for orders beside those that let us in, while some say that they know more."""
SHOWN = 200
"""Characters of a name, an id or a reason; the organiser's are no longer."""
GOOD = "for good"
"""Instead of an end."""
NOBODY_ANSWERED = "orders: nobody who knows them has answered; see again later"


async def learn_orders(started: Started, mandate: Mandate, view: SwarmView) -> bool:
    """Have all orders that the swarm knows of; whether anybody has answered."""
    has_answered = False
    for peer in started.bootstrap_peers:
        has_answered |= await trade(started, mandate, peer)
    others = [one for one in view.records if one.can_be_dialled and one.peer not in started.bootstrap_peers]
    for record in sorted(others, key=lambda record: -record.orders)[:MAX_ASKED]:
        if record.orders > len(mandate.book.orders) or not has_answered:
            has_answered |= await trade(started, mandate, record.peer)
    return has_answered


async def trade(started: Started, mandate: Mandate, peer: PeerId) -> bool:
    """Take the orders that a peer knows, and give it ours; whether it has answered."""
    try:
        await exchange(started.ports.transport, started.ports.errands, peer, mandate)
    except NetworkError:
        return False
    return True


def orders_report(mandate: Mandate, run: Run, epoch: int, now: float) -> dict[str, Any]:
    """As JSON values: what is in force for the step after ``epoch`` ones, and what was ordered.

    Args:
        now: swarm time.
    """
    book = mandate.book
    terms = book.terms_at(epoch)
    base_rate = run.optimizer.learning_rate if terms.learning_rate is None else terms.learning_rate
    return {
        "count": len(book.orders),
        "learning_rate": base_rate,
        "scheduled_learning_rate": learning_rate(run, mandate, epoch),
        "target_batch_size": mandate.target_batch_size(epoch),
        "minimum_version": terms.minimum_version,
        "until_epoch": mandate.until_epoch,
        "ordered_end": book.ends_at(None),
        "amendments": [{**asdict(what), "is_planned": what.from_epoch > epoch} for what in book.amendments()],
        "rollback": _told(book.rollback()),
        "bans": [
            {
                "who": ban.who,
                "name": ban.name,
                "reason": ban.reason,
                "until": None if ban.until_s == FOREVER else ban.until_s,
            }
            for ban in book.bans().values()
            if ban.holds(now)
        ],
    }


def _told(order: Order | None) -> dict[str, Any] | None:
    """A rollback, if there was one."""
    if order is None or not isinstance(order.what, Rollback):
        return None
    return {"to_epoch": order.what.to_epoch, "said_at": order.said_at}


def order_lines(orders: dict[str, Any] | None) -> list[str]:
    """The same for people."""
    if orders is None:
        return [NOBODY_ANSWERED]
    planned = [what for what in orders["amendments"] if what["is_planned"]]
    counted = [what for what in orders["amendments"] if not what["is_planned"]]
    lines = [
        *(f"  since epoch {what['from_epoch']}: {_changes(what)}" for what in counted),
        *(f"  planned from epoch {what['from_epoch']} on: {_changes(what)}" for what in planned),
    ]
    if (back := orders["rollback"]) is not None:
        lines.append(f"  went back to epoch {back['to_epoch']}, ordered at {utc(back['said_at'])}")
    if orders["ordered_end"] is not None:
        lines.append(f"  the run ends at epoch {orders['ordered_end']}")
    lines += [f"  banned {until_words(ban['until'])}: {_named(ban)}: {plain(ban['reason'])}" for ban in orders["bans"]]
    return [_in_force(orders), *(["ordered by the run's owner:", *lines] if lines else [])]


def _in_force(orders: dict[str, Any]) -> str:
    rate, scheduled = orders["learning_rate"], orders["scheduled_learning_rate"]
    words = f"in force: learning rate {rate:g}"
    words += f" ({scheduled:.3g} by the schedule)" if scheduled != rate else ""
    words += f", target batch {orders['target_batch_size']}"
    words += f", version {orders['minimum_version']} at least" if orders["minimum_version"] is not None else ""
    return words + (f"; ends at epoch {orders['until_epoch']}" if orders["until_epoch"] is not None else "")


def _changes(what: dict[str, Any]) -> str:
    named = {"learning_rate": "learning rate", "target_batch_size": "target batch", "minimum_version": "version"}
    return ", ".join(f"{words} {what[field]}" for field, words in named.items() if what[field] is not None)


def _named(ban: dict[str, Any]) -> str:
    return f"{plain(ban['name'])} ({plain(ban['who'])})" if ban["name"] else plain(ban["who"])


def until_words(until: float | None) -> str:
    """When a ban ends; None: never."""
    return GOOD if until is None else f"until {utc(until)}"


def plain(text: str, longest: int = SHOWN) -> str:
    """What somebody else wrote, without what a terminal would obey."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:longest])
