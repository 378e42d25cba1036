"""Starting a real peer: key, libp2p, bootstrap peers, swarm time, DHT; the result is a peer's ports."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

from collab.clock import SystemClock
from collab.compute import ThreadCompute
from collab.concurrency import Background
from collab.errors import BootstrapFailed
from collab.metrics.refusals import Refusals
from collab.net.base import Transport
from collab.net.bootstrap import RETRY_PAUSE_S, dial_any, stay_connected
from collab.net.dial_back import DialBack
from collab.net.greeting import GreetingTransport
from collab.net.guard import Guard, GuardedTransport
from collab.net.hello import check_version, serve_hello
from collab.net.hivemind_directory import HivemindDirectory, open_directory
from collab.net.hivemind_net import HivemindTransport, NetworkSettings, open_transport
from collab.net.limits import within_limits
from collab.net.listening import is_global, is_loopback, tcp_port_in
from collab.net.loopback import LoopbackTransport
from collab.net.owned_records import OwnedRecords
from collab.net.punching import find_hole
from collab.net.reaching import find_reach, keep_places, reserve_places, watch_reach
from collab.net.refusal_report import serve_report
from collab.ports import NO_LIMITS, Entrance, LinkLimits, Observer, Ports
from collab.swarm.access import Papers
from collab.swarm.address_book import AddressBook
from collab.swarm.board import ProgressBoard
from collab.swarm.bundle import Bundle, fetch_bundle
from collab.swarm.identity import Identity, load_or_create_identity
from collab.swarm.invite import Invite
from collab.swarm.reachability import ASKED_FOR_CLIENT, FIRST, Reaching, Verdict, as_told, relayed
from collab.swarm.time_sync import ALARMING_OFFSET_S, TIMEOUT_S, Nearby, follow_time, measure_offset
from collab.types import PeerId, Reachability

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupSettings:
    """How to get into the network."""

    network: NetworkSettings
    bootstrap: Collection[str] = ()
    """Multiaddresses of bootstrap peers; none: this peer is the first. It may grow: see ``AddressBook``."""
    may_be_alone: bool = False
    """Whether to go on when none of them answers, and look for them: a backbone may be the first that comes back."""
    bootstrap_timeout_s: float = 20.0
    """How long to keep trying before giving up."""
    limits: LinkLimits = NO_LIMITS
    clock_error_s: float = 0.0
    """Pretend that this machine's clock is off; for tests."""
    reach: Reachability | None = None
    """How others can reach this machine, if its owner says so; None: they are asked to try."""
    fingerprint: str = ""
    """Of the run, whose peers are asked, too; empty: only bootstrap peers are."""
    papers: Papers | None = None
    """What an invite gives to show; None: nothing."""
    keeps_directory: bool = True
    """Whether this peer, when it can be dialled, keeps a part of the directory for others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A peer that is in the network."""

    ports: Ports
    identity: Identity
    bootstrap_peers: tuple[PeerId, ...]
    """Those that answered."""
    clock_offset_s: float
    """What the swarm's clock is ahead of ours; already corrected."""
    refusals: Refusals
    """Whom this peer refused, and why."""
    reaching: Reaching
    """How others can reach this peer, as far as is known by now."""
    verdict_s: float = 0.0
    """What the first verdict took."""

    @property
    def verdict(self) -> Verdict:
        return self.reaching.verdict


@asynccontextmanager
async def start_peer(settings: StartupSettings, observer: Observer) -> AsyncIterator[Started]:
    """Bring a peer up, and take it down at the end.

    It comes up as one that can be dialled. When others find that it cannot, its daemon is started again in client mode:
    nobody shall be told of addresses that lead nowhere.

    Raises:
        ConfigError: the identity cannot be used.
        PortTaken: somebody else listens on the port.
        BootstrapFailed: no bootstrap address answered; each is named with its reason.
    """
    identity = load_or_create_identity(settings.network.identity_path)
    if settings.reach is Reachability.CLIENT:
        settings = replace(settings, network=replace(settings.network, is_client=True))
    async with AsyncExitStack() as stack:
        connected = await stack.enter_async_context(_connected(settings, identity, observer))
        began_s = connected.clock.monotonic()
        verdict = await _judged(connected, settings)
        verdict_s = connected.clock.monotonic() - began_s
        network = fitting_network(settings.network, verdict, await connected.transport.addresses())
        if network != settings.network:
            await stack.aclose()
            again = replace(settings, network=network)
            connected = await stack.enter_async_context(_connected(again, identity, observer))
        if verdict.reach is Reachability.CLIENT and verdict is not ASKED_FOR_CLIENT:
            verdict = relayed(verdict, await reserve_places(connected.daemon, connected.bootstrap_peers))
            relays = tuple(PeerId(address.rpartition("/p2p/")[2]) for address in settings.bootstrap)
            connected.tasks.create_task(keep_places(connected.daemon, relays))
        directory = await stack.enter_async_context(
            connected.directory(is_client=network.is_client or not settings.keeps_directory)
        )
        connected.tasks.create_task(stay_connected(connected.daemon, directory, settings.bootstrap))
        reaching = Reaching(verdict)
        ports = within_limits(connected.ports(directory), settings.limits)
        if network.is_punching and settings.fingerprint:
            board = ProgressBoard(ports, identity, settings.fingerprint)
            me = identity.peer_id
            connected.tasks.create_task(find_hole(connected.daemon, board.refresh, me, ports.rng, reaching))
        if verdict.num_asked:
            look = partial(find_reach, ports, identity, connected.bootstrap_peers, settings.fingerprint)
            connected.tasks.create_task(watch_reach(look, reaching))
        await serve_report(connected.transport, connected.refusals)
        await serve_hello(connected.transport)
        if not network.is_client:
            await DialBack(connected.daemon, connected.clock).serve(connected.transport)
        yield Started(
            ports=ports,
            identity=identity,
            bootstrap_peers=connected.bootstrap_peers,
            clock_offset_s=connected.clock_offset_s,
            refusals=connected.refusals,
            reaching=reaching,
            verdict_s=verdict_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Connected:
    """A peer that has dialled its bootstrap peers, and is in no directory yet."""

    identity: Identity
    daemon: HivemindTransport
    transport: Transport
    """Over the daemon, guarded."""
    clock: SystemClock
    compute: ThreadCompute
    guard: Guard
    entrance: Entrance
    refusals: Refusals
    tasks: Background
    bootstrap_peers: tuple[PeerId, ...]
    clock_offset_s: float

    def directory(self, *, is_client: bool) -> AbstractAsyncContextManager[HivemindDirectory]:
        """The swarm's directory; who is a client reads and stores, and keeps nothing for others."""
        known = list(self.bootstrap_peers)
        rules = OwnedRecords(self.identity, self.clock.now)
        return open_directory(self.daemon, known, rules=rules, is_client=is_client)

    def ports(self, directory: HivemindDirectory) -> Ports:
        return Ports(
            clock=self.clock,
            compute=self.compute,
            transport=self.transport,
            directory=directory,
            keys=self.identity,
            observer=self.guard,
            entrance=self.entrance,
            rng=random.Random(random.SystemRandom().getrandbits(64)),
        )


@asynccontextmanager
async def _connected(settings: StartupSettings, identity: Identity, observer: Observer) -> AsyncIterator[_Connected]:
    async with AsyncExitStack() as stack:
        daemon = await stack.enter_async_context(open_transport(settings.network))
        tasks = await stack.enter_async_context(Background())
        clock = SystemClock(error_s=settings.clock_error_s)
        refusals = Refusals(observer, clock)
        entrance = Entrance()
        if (papers := settings.papers) is not None:
            entrance.credential = papers.credentials(identity.peer_id, clock.now).current
        guard = Guard(clock, refusals, entrance=entrance)
        transport = LoopbackTransport(GreetingTransport(GuardedTransport(daemon, guard), entrance), tasks)
        peers = await dial_any(
            daemon, tuple(settings.bootstrap), settings.bootstrap_timeout_s, may_be_alone=settings.may_be_alone
        )
        measured_s = await measure_offset(transport, clock, peers, timeout_s=TIMEOUT_S)
        offset_s = measured_s or 0.0
        clock.correct(offset_s)
        is_measured = measured_s is not None
        nearby = Nearby(daemon.connected_peers, entrance, random.SystemRandom())
        tasks.create_task(follow_time(transport, clock, peers, nearby, is_measured=is_measured))
        if abs(offset_s) > ALARMING_OFFSET_S:
            logger.warning(
                "this machine's clock is off by %.0f s; corrected for this run, but please set it", -offset_s
            )
        compute = ThreadCompute()
        stack.callback(compute.close)
        yield _Connected(
            identity=identity,
            daemon=daemon,
            transport=transport,
            clock=clock,
            compute=compute,
            guard=guard,
            entrance=entrance,
            refusals=refusals,
            tasks=tasks,
            bootstrap_peers=tuple(peers),
            clock_offset_s=offset_s,
        )


async def _judged(connected: _Connected, settings: StartupSettings) -> Verdict:
    """How others reach us; whoever is asked is asked before anybody is told of us."""
    if settings.network.is_client:
        return ASKED_FOR_CLIENT
    is_alone = settings.may_be_alone and not connected.bootstrap_peers  # nobody could try
    if settings.reach is not None or (is_alone and settings.bootstrap):
        addresses = await connected.transport.addresses()
        return as_told(next((port for address in addresses if (port := tcp_port_in(address))), 0))
    if not settings.bootstrap:
        return FIRST
    async with connected.directory(is_client=True) as directory:
        ports = connected.ports(directory)
        return await find_reach(ports, connected.identity, connected.bootstrap_peers, settings.fingerprint)


def fitting_network(network: NetworkSettings, verdict: Verdict, addresses: tuple[str, ...]) -> NetworkSettings:
    """How a peer takes part that is reached as ``verdict`` says.

    Args:
        addresses: those that it knows of itself: neighbours behind the same router still use them.
    """
    if verdict.reach is Reachability.CLIENT:
        told = tuple(address.rpartition("/p2p/")[0] for address in addresses if not is_global(address))
        return replace(network, is_client=True, is_punching=verdict.port > 0, port=verdict.port, announce=told)
    if verdict.is_announced or network.announce:
        return network
    near = tuple(address.rpartition("/p2p/")[0] for address in addresses if not is_loopback(address))
    kind = "ip6" if ":" in verdict.host else "ip4"
    return replace(network, port=verdict.port, announce=(f"/{kind}/{verdict.host}/tcp/{verdict.port}", *near))


@asynccontextmanager
async def open_run(
    invite: Invite, settings: StartupSettings, observer: Observer
) -> AsyncIterator[tuple[Started, Bundle]]:
    """Get into the swarm that ``invite`` names, and learn its run.

    Raises:
        VersionMismatch: the swarm is of another version of this package.
        RunMismatch, ConfigError: the swarm serves another run, or one that this version cannot read.
        BootstrapFailed: see ``start_peer``.
    """
    settings = replace(settings, fingerprint=invite.fingerprint)
    async with start_peer(settings, observer) as started, Background() as tasks:
        if isinstance(settings.bootstrap, AddressBook):
            tasks.create_task(settings.bootstrap.follow(started.ports, invite.fingerprint))
        yield started, await learn_run(started, invite.fingerprint, settings.bootstrap_timeout_s)


async def learn_run(started: Started, fingerprint: str, timeout_s: float) -> Bundle:
    """The run, from the peers that answered; who is just starting, as all are after a power cut, is asked again.

    Raises:
        VersionMismatch: they are of another version of this package.
        RunMismatch, ConfigError, AccessDenied, BootstrapFailed: see ``fetch_bundle``.
    """
    await check_version(started.ports.transport, started.bootstrap_peers)
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + timeout_s
    while True:
        try:
            return await fetch_bundle(started.ports.transport, list(started.bootstrap_peers), fingerprint)
        except BootstrapFailed:
            if loop.time() + RETRY_PAUSE_S >= give_up_s:
                raise
        await asyncio.sleep(RETRY_PAUSE_S)


def default_host(invite: Invite) -> str:
    """Where to listen: loopback when the whole run is on this machine, else every address."""
    return "127.0.0.1" if all(is_loopback(address) for address in invite.addresses) else "0.0.0.0"  # noqa: S104
