"""How the organiser's orders get to every peer: whoever sees that another one knows more asks for it.

The order book proves itself, so it does not matter who hands it on. A peer's record says how many orders it knows; that
it knows more than we do may be a lie, which costs one question now and then.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path

import msgpack
from cachetools import TTLCache

from collab.durable import replace_file
from collab.errors import BadMessage, NetworkError
from collab.metrics.records import Notice
from collab.net.base import Stream, Transport
from collab.net.errands import Errands
from collab.net.wire import Message
from collab.ports import Ports
from collab.swarm.mandate import Mandate
from collab.swarm.orders import OrderBook
from collab.swarm.progress import SwarmView
from collab.types import PeerId

logger = logging.getLogger(__name__)

ORDERS_PROTOCOL = "collab/orders/1"
LOOK_S = 0.5
"""How often the swarm as last seen is searched for somebody who knows more."""
FILE_S = 3.0
"""How often a backbone looks whether its organiser has left orders on its disk."""
REST_S = 30.0
"""For which a peer that promised orders and had none is not asked again."""
MAX_REMEMBERED = 1024
UNHEARD = "peers that have heard them tell of them; what nobody has heard has to be ordered again"
"""What to do where an organiser's orders are lost."""


class OrderExchange:
    """Keeps one peer's orders level with the swarm's, and on its disk."""

    def __init__(self, ports: Ports, mandate: Mandate, view: Callable[[], SwarmView], path: Path | None) -> None:
        """
        Args:
            view: the swarm as last seen.
            path: where the orders are kept for the next life; None: nowhere.
        """
        self._ports, self._mandate, self._view, self._path = ports, mandate, view, path
        self._disappointing: TTLCache[PeerId, None] = TTLCache(MAX_REMEMBERED, REST_S, ports.clock.monotonic)
        mandate.on_orders.append(lambda _: self._write())

    def restore(self) -> None:
        """What an earlier life knew, as far as it proves itself."""
        if self._path is not None and (trouble := restore_orders(self._path, self._mandate)):
            self._say(trouble, "they come from the swarm again, and this file is put aside with the first one")

    async def follow(self, path: Path) -> None:
        """Take what a command of the organiser leaves at ``path``, as far as it proves itself, until cancelled.

        What cannot be used is told of once, and looked at again: somebody may be copying the file just now.
        """
        taken: tuple[int, ...] | None = None
        said = ""
        while True:
            if (stamp := await self._ports.compute.beside(lambda: _stamp(path))) != taken:
                trouble = restore_orders(path, self._mandate)
                if trouble and trouble != said:
                    self._say(trouble, UNHEARD)
                taken, said = None if trouble else stamp, trouble
            await asyncio.sleep(FILE_S)

    def _write(self) -> None:
        if self._path is None:
            return
        try:
            if moved := make_way(self._path, self._mandate.book):
                self._say(moved, is_problem=False)
            write_orders(self._path, self._mandate.book)
        except OSError as error:
            self._say(f"cannot write the organiser's orders to {self._path}: {error.strerror}", "make room on the disk")

    def _say(self, text: str, hint: str = "", *, is_problem: bool = True) -> None:
        at_s = self._ports.clock.now()
        self._ports.observer.observe(Notice(at_s=at_s, text=text, hint=hint, is_problem=is_problem))

    # -- serving -----------------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Begin to answer who asks, and to take what the organiser brings."""
        await self._ports.transport.serve(ORDERS_PROTOCOL, self._answer)

    async def _answer(self, stream: Stream) -> None:
        errands = self._ports.errands
        message = await stream.receive(timeout_s=errands.limit_s())
        await stream.send(_missing_in(message, self._mandate.book), timeout_s=errands.limit_s())
        take_from(await stream.receive(timeout_s=errands.limit_s()), self._mandate)
        await stream.send(Message("thanks"), timeout_s=errands.limit_s())

    # -- asking ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow the swarm's orders until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.level()

    async def level(self) -> None:
        """Ask one of those who say that they know more, if somebody does."""
        known = len(self._mandate.book.orders)
        ahead = [record for record in self._view().records if record.orders > known]
        rested = [record.peer for record in ahead if record.peer not in self._disappointing]
        if rested:
            await self.catch_up([self._ports.rng.choice(rested)])

    async def knows(self, mark: str, peers: Collection[PeerId]) -> bool:
        """Whether we have the orders up to the one of this mark; asks ``peers`` for them if not."""
        if not self._mandate.knows(mark):
            await self.catch_up(peers)
        return self._mandate.knows(mark)

    async def catch_up(self, peers: Collection[PeerId]) -> bool:
        """Ask these peers, one after the other, until one knows more than we do; whether one did."""
        for peer in peers:
            try:
                if await exchange(self._ports.transport, self._ports.errands, peer, self._mandate):
                    return True
            except NetworkError as error:
                logger.info("orders are not to be had peer=%s reason=%s", peer, error)
            self._disappointing[peer] = None
        return False


def read_orders(path: Path) -> list[bytes]:
    """What ``write_orders`` has written there, unchecked; nothing, if it never did.

    Raises:
        BadMessage: the file cannot be read, or is something else.
    """
    try:
        packed = msgpack.unpackb(path.read_bytes())
    except FileNotFoundError:
        return []
    except (OSError, ValueError, msgpack.UnpackException) as error:
        raise BadMessage(f"{path} cannot be read: {error}") from error
    if not isinstance(packed, list):
        raise BadMessage(f"{path} holds no list of orders")
    return packed


def kept_orders(paths: Iterable[Path], fingerprint: str, owner: PeerId) -> OrderBook:
    """A run's orders as far as a disk knows them: what lies at these paths and proves itself."""
    book = OrderBook(fingerprint, owner)
    for path in paths:
        with suppress(BadMessage):  # said where they are taken
            book = book.merged(0, read_orders(path))
    return book


def _stamp(path: Path) -> tuple[int, ...] | None:
    """Another one whenever something else lies there; None: nothing does."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def restore_orders(path: Path, mandate: Mandate) -> str:
    """Take the orders that were kept at ``path``; why they cannot be used, in words, or nothing.

    They stay where they are: a run file that was changed, and is changed back, has them again.
    """
    try:
        mandate.take(0, read_orders(path))
    except BadMessage as error:
        return f"the organiser's orders in {path} cannot be used: {error.message}"
    return ""


def make_way(path: Path, book: OrderBook) -> str:
    """Put aside what lies at ``path`` and is no chain of this run's orders, before ours are written there; where it
    lies then, in words, or nothing.

    Raises:
        OSError: it cannot be put aside.
    """
    try:
        OrderBook(book.fingerprint, book.owner).extended(read_orders(path))
    except BadMessage:
        names = (path.with_name(f"{path.name}.unusable-{number}") for number in count(1))
        aside = next(name for name in names if not name.exists())
        path.rename(aside)
        return f"what could not be used in {path} lies in {aside.name} now"
    return ""


def write_orders(path: Path, book: OrderBook) -> None:
    """Keep all orders; a reader, and a power cut, find the old file or the new one.

    Raises:
        OSError: there is no room, or no permission.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, msgpack.packb(list(book.packed)))


async def exchange(transport: Transport, errands: Errands, peer: PeerId, mandate: Mandate) -> bool:
    """Take the orders that ``peer`` knows and we do not, and give it those that it lacks; whether we know more now.

    Raises:
        NetworkError: it does not answer, or what it sends is not the owner's.
    """
    with errands.asking(peer) as limit_s:
        stream = await transport.open(peer, ORDERS_PROTOCOL, timeout_s=limit_s)
        try:
            await stream.send(_told(mandate.book, len(mandate.book.orders)), timeout_s=limit_s)
            answer = await stream.receive(timeout_s=limit_s)
            is_news = take_from(answer, mandate)
            await stream.send(_missing_in(answer, mandate.book), timeout_s=limit_s)
            await stream.receive(timeout_s=limit_s)  # it has them
            return is_news
        finally:
            stream.close()


def take_from(message: Message, mandate: Mandate) -> bool:
    """Take what a message brings; whether we know more now.

    Raises:
        BadMessage: it is malformed, or not the owner's.
    """
    packed, start = message.get("orders", list), message.get("start", int)
    return bool(packed) and mandate.take(start, packed)


def _told(book: OrderBook, start: int) -> Message:
    """How much we know, and our orders from ``start`` on."""
    fields = {"count": len(book.orders), "mark": book.mark, "start": start, "orders": list(book.packed[start:])}
    return Message("orders", fields)


def _missing_in(message: Message, book: OrderBook) -> Message:
    """Our orders beyond those that somebody knows; all of them, if its are others."""
    count = message.get("count", int)
    is_behind = 0 <= count <= len(book.orders) and book.mark_of(count) == message.get("mark", str)
    return _told(book, count if is_behind else 0)
