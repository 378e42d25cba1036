"""The owner of a run at its directory: what the commands of an organiser have in common."""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from collab.config import load_run
from collab.errors import BadMessage, BootstrapFailed, ConfigError
from collab.net.bootstrap import RECONNECT_S
from collab.net.hivemind_net import NetworkSettings
from collab.net.listening import at_home, is_loopback
from collab.net.startup import Started, StartupSettings, start_peer
from collab.swarm.access import Grant, Papers, pack_grant
from collab.swarm.address_book import AddressBook
from collab.swarm.board import ProgressBoard
from collab.swarm.bundle import Bundle
from collab.swarm.crowd import CROWD_FROM, heartbeat_s
from collab.swarm.identity import Identity, load_or_create_identity
from collab.swarm.last_seen import seen_in
from collab.swarm.mandate import Mandate
from collab.swarm.order_exchange import UNHEARD, make_way, restore_orders, write_orders
from collab.swarm.orders import MAX_ORDER_BYTES, MAX_ORDERS, OrderBook
from collab.swarm.progress import HEARTBEAT_S, SwarmView
from collab.swarm.statements import Statement, check
from collab.swarm.statutes import Statutes
from collab.types import Role
from peers.assets import load_assets
from peers.disk_remedy import remedy
from peers.joining import Relay
from peers.one_command import alone_at
from peers.ordered import trade
from peers.passing_key import passing_key
from peers.places import ADDRESSES, ORDERS, OWNER_KEY, RUN_FILE, DataDir
from peers.process import announce
from peers.served import check_is_served
from peers.summary import history_of

SESSION_S = 3600.0
"""For which an organiser's command may take part in the swarm."""
BOOTSTRAP_S = 6.0
"""How long a command looks for a backbone."""
WATCH_S = 4.0
"""For which a command watches how fast the swarm is: trainers tell of their epochs every second or so; those of a crowd
once a heartbeat, and so long is watched then.
"""
AGAIN_S = 0.5
"""Between two looks for trainers."""
MOST_TIMES = 5
"""That one order is signed, when others come between: whoever gives them so fast is no person."""
MANY = 900
"""Orders: from then on each command says that they run out."""
FULL = "carry it on as another run: collab-peer backbone NEW_DIR --from CHECKPOINT --new-owner"
FOUND_S = RECONNECT_S + HEARTBEAT_S + 1.0
"""In which trainers find a backbone that was started again, and it has their word: they look for it so often, and speak
so often; and a second for all messages."""


@dataclass(frozen=True, slots=True)
class Estate:
    """A run directory, its run and its owner."""

    directory: Path
    bundle: Bundle
    owner: Identity

    @classmethod
    def at(cls, directory: Path) -> "Estate":
        """Read and validated.

        Raises:
            ConfigError: no run, or no key, is there.
        """
        run = load_run(directory / RUN_FILE)
        key = directory / OWNER_KEY
        if not key.is_file():
            raise ConfigError(f"there is no {key}", hint="only the machine with the owner's key can give orders")
        owner = load_or_create_identity(key)
        return cls(directory, Bundle(run, load_assets(run, directory), owner.peer_id), owner)

    def papers(self, person: str, role: Role, until_s: float, *, devices: int = 1, key: Identity) -> Papers:
        """What shows that the owner has invited somebody.

        Args:
            until_s: swarm time.
        """
        grant = Grant(
            fingerprint=self.bundle.fingerprint,
            key=key.peer_id,
            person=person,
            devices=devices,
            expires_at=until_s,
            role=role,
        )
        return Papers(grant=pack_grant(grant, self.owner), key=key)

    def addresses(self) -> tuple[str, ...]:
        """Of the backbone that serves this directory, as it said when it last started, and of the others that it knows.

        Raises:
            ConfigError: it never did, or its word cannot be read.
        """
        path, start = self.directory / ADDRESSES, f"start it: collab-peer backbone {self.directory}"
        try:
            own = tuple(map(str, json.loads(path.read_text(encoding="utf-8"))))
            return tuple(AddressBook(own, DataDir(self.directory / "backbone").backbones))
        except FileNotFoundError as error:
            raise ConfigError(f"no backbone has served {self.directory} yet", hint=start) from error
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}", hint=remedy(path, error)) from error
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{path} holds no addresses", hint=f"{start}; it is written anew then") from error


@dataclass(slots=True)
class Session:
    """An organiser who looks at the swarm, and can speak to it."""

    estate: Estate
    mandate: Mandate
    view: SwarmView
    started: Started | None = None
    """None: no backbone answers."""
    board: ProgressBoard | None = None
    """As ``started``."""
    seen_epoch: int = -1
    """How far the swarm was when the backbone of this directory saw it last; -1: not known."""
    statutes: Statutes | None = None
    """As ``started``: whose word counts."""

    def now(self) -> float:
        """Swarm time; this machine's, if nobody is there."""
        return self.started.ports.clock.now() if self.started is not None else time.time()

    def epoch(self) -> int:
        """Where the swarm stands."""
        history = history_of(self.estate.bundle.run, self.view)
        return history[0] if history is not None else max(self.seen_epoch, self._kept_epoch(), 0)

    def _kept_epoch(self) -> int:
        """Of the newest state that the run's backbones hold; -1: none is here."""
        trusts = self.statutes.trusts_backbone if self.statutes is not None else lambda _: True
        return max((record.epoch for record in self.view.backbones() if trusts(record.peer)), default=-1)

    async def find_trainers(self) -> None:
        """Wait for the word of those who were there before the backbone was started again, if it was.

        What it holds itself is of its last checkpoint, and the swarm has gone on since.
        """
        if self.board is None or self.view.consensus() is not None or self.seen_epoch <= self._kept_epoch():
            return
        announce(f"the swarm was at epoch {self.seen_epoch}; looking for its trainers ...")
        with suppress(TimeoutError):
            async with asyncio.timeout(FOUND_S):
                while self.view.consensus() is None:
                    await asyncio.sleep(AGAIN_S)
                    self.view = await self.board.refresh()

    @property
    def trainers(self) -> int:
        """How many are there."""
        return len(self.view.all_trainers())

    async def epochs_in(self, seconds: float) -> int:
        """How many steps the swarm surely does not take in less; at least 1.

        Those that it could take if rounds took no time; where rounds take most of it, which is seen by watching, twice
        as many as it takes. Where steps are long, the next one counts if it may be under way already.
        """
        began = self.epoch()
        due_s, step_s = self.view.step_ahead(self.mandate.target_batch_size(began), self.now())
        most = max(math.ceil(seconds / step_s), 1)
        if most == 1:
            return 1 if due_s > seconds else 2
        if self.board is None:
            return most
        watch_s = max(WATCH_S, heartbeat_s(self.trainers) if self.trainers >= CROWD_FROM else 0.0)
        await asyncio.sleep(watch_s)
        self.view = await self.board.refresh()
        seen = self.epoch() - began + 1  # one more, of which the records do not tell yet
        return min(most, math.ceil(2 * seen * seconds / watch_s))

    async def say(self, what: Statement, prepare: Callable[[OrderBook], None] = lambda _: None) -> bool:
        """Sign an order, hand it to whoever is there, and keep it; whether somebody has it.

        Where another order is given at the same moment (a backbone ends a run that has reached its goal; the owner's
        key is on another machine, too), both have one number, and everybody keeps the same one of them. If that is not
        ours, it is signed anew, to come after the other.

        Args:
            prepare: called with all orders, this one at their end, before anybody hears of it.

        Raises:
            ConfigError: nobody could follow it; or nobody has it, and it cannot be kept.
        """
        for _ in range(MOST_TIMES):
            book = self._signed(what)
            prepare(book)
            self.mandate.take(len(book.orders) - 1, book.packed[-1:])
            is_heard = await self._hand_on()
            if self.mandate.knows(book.mark):
                self._keep(is_heard=is_heard)
                return is_heard
            announce("another order was given at the same moment; this one comes after it")
        hint = "somebody else gives orders with this key: see 'collab-peer status', and give this one again"
        raise ConfigError("this order is lost: another one came between each time", hint=hint)

    def _signed(self, what: Statement) -> OrderBook:
        book = self.mandate.book
        if len(book.orders) >= MAX_ORDERS:
            raise ConfigError(f"this run has had {MAX_ORDERS} orders, and can have no more", hint=FULL)
        try:
            check(what)
        except (BadMessage, ValueError) as error:
            raise ConfigError(f"this order cannot be given: {error}", hint="see collab-peer --help") from error
        packed = book.signed(what, self.estate.owner, self.now())
        if (over_bytes := len(packed) - MAX_ORDER_BYTES) > 0:
            hint = f"shorten --reason by {over_bytes} bytes: a letter has one to four, a Japanese one three"
            raise ConfigError(f"this order is too long: {MAX_ORDER_BYTES} bytes are the most", hint=hint)
        return book.extended([packed])

    async def _hand_on(self) -> bool:
        """Give our orders to whoever is there, and take what they have heard; whether somebody has answered."""
        if self.started is None:
            return False
        let_us_in, helpers = self.started.bootstrap_peers, (r.peer for r in self.view.helpers() if r.can_be_dialled)
        peers = list(dict.fromkeys((*let_us_in, *helpers)))
        # All at once: whoever likes calls itself a helper, and may never answer.
        answers = await asyncio.gather(*(trade(self.started, self.mandate, peer) for peer in peers))
        heard = [peer for peer, has_answered in zip(peers, answers, strict=True) if has_answered]  # who hand it on
        if heard:
            await trade(self.started, self.mandate, heard[0])  # what it has heard while we spoke
        return bool(heard)

    def _keep(self, *, is_heard: bool) -> None:
        path, number = self.estate.directory / ORDERS, len(self.mandate.book.orders)
        if number >= MANY:
            announce(f"problem: this run has had {number} orders; it can have {MAX_ORDERS}\n  -> {FULL}")
        try:
            if moved := make_way(path, self.mandate.book):
                announce(moved)
            write_orders(path, self.mandate.book)
        except OSError as error:
            text, hint = f"cannot write {path}: {error.strerror}", remedy(path.parent, error)
            if not is_heard:
                raise ConfigError(f"nobody has this order: no backbone answers, and {text}", hint=hint) from error
            announce(f"problem: {text}; the swarm has the order\n  -> {hint}")


@asynccontextmanager
async def open_to_order(directory: Path) -> AsyncIterator[Session]:
    """As ``open_session``, with nobody else who gives orders from this directory: two would sign the same number.

    Raises:
        ConfigError: as ``Estate.at``, and as ``open_session``.
    """
    async with alone_at(directory), open_session(Estate.at(directory)) as session:
        yield session


@asynccontextmanager
async def open_session(estate: Estate) -> AsyncIterator[Session]:
    """Look at a run's swarm, with the newest orders known.

    Raises:
        ConfigError: the directory's backbone serves another run; or as ``Estate.addresses``.
    """
    directory, mandate = estate.directory, Mandate(estate.bundle)
    check_is_served(directory, estate.bundle.fingerprint)
    for path in (directory / ORDERS, directory / "backbone" / ORDERS):
        if trouble := restore_orders(path, mandate):
            announce(f"problem: {trouble}\n  -> {UNHEARD}")
    seen_epoch = seen_in(DataDir(directory / "backbone").last_seen)
    with passing_key() as (path, key):
        papers = estate.papers("organiser", Role.TRAINER, time.time() + SESSION_S, key=key)
        addresses = estate.addresses()
        host = "127.0.0.1" if all(is_loopback(address) for address in addresses) else "0.0.0.0"  # noqa: S104
        network = NetworkSettings(identity_path=path, host=host, is_client=True)
        bootstrap = tuple(dict.fromkeys((*addresses, *filter(None, map(at_home, addresses)))))  # few routers lead back
        settings = StartupSettings(network=network, bootstrap=bootstrap, papers=papers, bootstrap_timeout_s=BOOTSTRAP_S)
        async with AsyncExitStack() as stack:
            started: Started | None = None
            try:
                started = await stack.enter_async_context(start_peer(settings, Relay()))
            except* BootstrapFailed:
                pass  # nobody is there: what is said is kept
            if started is None:
                yield Session(estate, mandate, SwarmView((), 0.0), seen_epoch=seen_epoch)
                return
            statutes = Statutes(started.ports, estate.bundle)
            statutes.mandate.take(0, mandate.book.packed)
            for peer in started.bootstrap_peers:
                await trade(started, statutes.mandate, peer)
            board = ProgressBoard(started.ports, started.identity, estate.bundle.fingerprint, statutes)
            view = await board.refresh()
            yield Session(estate, statutes.mandate, view, started, board, seen_epoch, statutes)
