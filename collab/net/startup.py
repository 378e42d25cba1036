"""Starting a real peer: key, libp2p, bootstrap peers, swarm time, DHT; the result is a peer's ports."""

import asyncio
import ipaddress
import logging
import random
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from collab.clock import SystemClock
from collab.compute import ThreadCompute
from collab.concurrency import Background
from collab.errors import BootstrapFailed, NetworkError
from collab.metrics.refusals import Refusals
from collab.net.greeting import GreetingTransport
from collab.net.guard import Guard, GuardedTransport
from collab.net.hello import check_version, serve_hello
from collab.net.hivemind_net import (
    HivemindDirectory,
    HivemindTransport,
    NetworkSettings,
    open_directory,
    open_transport,
)
from collab.net.limits import within_limits
from collab.net.loopback import LoopbackTransport
from collab.net.refusal_report import serve_report
from collab.ports import NO_LIMITS, Entrance, LinkLimits, Observer, Ports
from collab.swarm.access import Papers
from collab.swarm.address_book import AddressBook
from collab.swarm.bundle import Bundle, fetch_bundle
from collab.swarm.identity import Identity, load_or_create_identity
from collab.swarm.invite import Invite
from collab.swarm.time_sync import measure_offset
from collab.types import PeerId

logger = logging.getLogger(__name__)

DIAL_TIMEOUT_S = 5.0
RETRY_PAUSE_S = 1.0
ALARMING_OFFSET_S = 3.0
"""A clock that is further off would have its DHT records refused without the correction."""
RECONNECT_S = 5.0
"""How often a lost bootstrap peer is looked for: it may have been restarted."""


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
    papers: Papers | None = None
    """What an invite gives to show; None: nothing."""


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


@asynccontextmanager
async def start_peer(settings: StartupSettings, observer: Observer) -> AsyncIterator[Started]:
    """Bring a peer up, and take it down at the end.

    Raises:
        ConfigError: the identity cannot be used.
        PortTaken: somebody else listens on the port.
        BootstrapFailed: no bootstrap address answered; each is named with its reason.
    """
    identity = load_or_create_identity(settings.network.identity_path)
    async with AsyncExitStack() as stack:
        outer = await stack.enter_async_context(open_transport(settings.network))
        tasks = await stack.enter_async_context(Background())
        clock = SystemClock(error_s=settings.clock_error_s)
        refusals = Refusals(observer, clock)
        entrance = Entrance()
        if (papers := settings.papers) is not None:
            entrance.credential = papers.credentials(identity.peer_id, clock.now).current
        guard = Guard(clock, refusals, entrance=entrance)
        greeting = GreetingTransport(GuardedTransport(outer, guard), entrance)
        transport = LoopbackTransport(greeting, tasks)
        peers = await _bootstrap(outer, settings)
        offset_s = await measure_offset(transport, clock, peers, timeout_s=DIAL_TIMEOUT_S) or 0.0
        clock.correct(offset_s)
        if abs(offset_s) > ALARMING_OFFSET_S:
            logger.warning(
                "this machine's clock is off by %.0f s; corrected for this run, but please set it", -offset_s
            )
        directory = await stack.enter_async_context(open_directory(outer, peers, now=clock.now))
        tasks.create_task(_stay_connected(outer, directory, settings.bootstrap))
        compute = ThreadCompute()
        stack.callback(compute.close)
        ports = Ports(
            clock=clock,
            compute=compute,
            transport=transport,
            directory=directory,
            keys=identity,
            observer=guard,
            entrance=entrance,
            rng=random.Random(random.SystemRandom().getrandbits(64)),
        )
        ports = within_limits(ports, settings.limits)
        await serve_report(transport, refusals)
        await serve_hello(transport)
        yield Started(
            ports=ports,
            identity=identity,
            bootstrap_peers=tuple(peers),
            clock_offset_s=offset_s,
            refusals=refusals,
        )


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


def is_loopback(address: str) -> bool:
    """Whether a multiaddress names this machine only."""
    parts = address.split("/")
    try:
        return parts[1] in ("ip4", "ip6") and ipaddress.ip_address(parts[2]).is_loopback
    except (IndexError, ValueError):
        return False


def default_host(invite: Invite) -> str:
    """Where to listen: loopback when the whole run is on this machine, else every address."""
    return "127.0.0.1" if all(is_loopback(address) for address in invite.addresses) else "0.0.0.0"  # noqa: S104


async def _bootstrap(transport: HivemindTransport, settings: StartupSettings) -> list[PeerId]:
    try:
        return await dial_any(transport, tuple(settings.bootstrap), settings.bootstrap_timeout_s)
    except BootstrapFailed as error:
        if not settings.may_be_alone:
            raise
        logger.info("nobody is here yet: %s", error.message)
        return []


async def dial_any(transport: HivemindTransport, addresses: tuple[str, ...], timeout_s: float) -> list[PeerId]:
    """Dial all addresses at once, again and again, until at least one answers.

    Raises:
        BootstrapFailed: none did within ``timeout_s``.
    """
    if not addresses:
        return []
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + timeout_s
    reasons: dict[str, str] = {}
    while True:
        results = await asyncio.gather(*(_dial(transport, address) for address in addresses))
        reached = [result for result in results if not isinstance(result, NetworkError)]
        if reached:
            return reached
        for address, error in zip(addresses, results, strict=True):
            if isinstance(error, NetworkError):  # libp2p's later answers only say that it is backing off
                reasons.setdefault(address, error.message)
        if loop.time() + RETRY_PAUSE_S >= give_up_s:
            listing = "\n".join(f"  {address}: {reason}" for address, reason in reasons.items())
            raise BootstrapFailed(
                f"none of the {len(addresses)} bootstrap addresses answered within {timeout_s:.0f} s:\n{listing}",
                hint="is the backbone running and its port reachable from here? ask the organiser for a fresh invite",
            )
        await asyncio.sleep(RETRY_PAUSE_S)


async def _dial(transport: HivemindTransport, address: str) -> PeerId | NetworkError:
    try:
        return await transport.dial(address, timeout_s=DIAL_TIMEOUT_S)
    except NetworkError as error:
        return error


async def _stay_connected(
    transport: HivemindTransport, directory: HivemindDirectory, addresses: Collection[str]
) -> None:
    """Look for bootstrap peers for ever: a restarted backbone knows nobody until somebody greets it."""
    while True:
        await asyncio.sleep(RECONNECT_S)
        connected = await transport.connected_peers()
        for address in tuple(addresses):
            peer = PeerId(address.rpartition("/p2p/")[2])
            if peer == transport.peer_id:
                continue
            if peer in connected or not isinstance(await _dial(transport, address), NetworkError):
                await directory.greet(peer)
