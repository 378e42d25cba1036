"""The real network: hivemind's libp2p transport, in the peer's own event loop.

Only ``p2pd`` is a child process; it exits when its control connection breaks, so however its peer dies, it dies too.
hivemind's higher layers (optimiser, averagers, matchmaking, codecs) are not used.
"""

import asyncio
import ipaddress
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from collab.concurrency import Background
from collab.errors import NetworkError, PeerUnreachable, TimedOut
from collab.net.base import Handler
from collab.net.daemon import daemon_traffic, start_daemon
from collab.net.daemon_messages import write_at_once
from collab.net.dialling import connect
from collab.net.fresh_dial import who_answers
from collab.net.hivemind_parts import (
    P2P,
    ControlFailure,
    Multiaddr,
    P2PDaemonError,
    PeerID,
    PeerInfo,
    StreamInfo,
    p2pd_pb2,
    raise_if_failed,
    read_pbmsg_safe,
)
from collab.net.hivemind_stream import HivemindStream
from collab.net.listening import check_port, host_in
from collab.net.quotas import LIMITS
from collab.net.relaying import PUNCHING_PROTOCOL, RelayLimits, Reservation, connect_through, reserve
from collab.types import LONGEST_ID, PeerId, one_peer_id

logger = logging.getLogger(__name__)

Metered: TypeAlias = Callable[[Callable[[], int]], AbstractContextManager[None]]
"""Is given what says how many bytes a daemon has sent and taken, by the kernel's count: libp2p's own, too."""


def unmetered(_traffic_bytes: Callable[[], int]) -> AbstractContextManager[None]:
    """Nobody counts."""
    return nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings:
    """How this machine takes part in the network."""

    identity_path: Path
    """libp2p key file, see ``collab.swarm.identity``."""
    host: str = "0.0.0.0"  # noqa: S104 - volunteers dial us; loopback is a flag away
    port: int = 0
    """TCP port to listen on; 0: any free one."""
    announce: tuple[str, ...] = ()
    """Multiaddresses to tell others instead of the local ones."""
    is_client: bool = False
    """Dial only, never be dialled (behind a firewall, or on rented notebooks)."""
    is_punching: bool = False
    """A client that listens all the same: two such who dial each other at one moment get through their routers."""
    relay: RelayLimits | None = None
    """Pass on between peers that nobody can dial, within these limits; None: pass nothing on."""
    metered: Metered = unmetered
    """Entered while a daemon runs."""


class HivemindTransport:
    """Implements ``Transport`` and ``Vantage`` over p2pd."""

    def __init__(self, p2p: P2P, tasks: Background, *, is_client: bool) -> None:
        self._p2p, self._tasks, self._is_client = p2p, tasks, is_client
        self._relays: dict[PeerId, None] = {}
        """Where we have places."""

    @property
    def peer_id(self) -> PeerId:
        return PeerId(self._p2p.peer_id.to_base58())

    async def addresses(self) -> tuple[str, ...]:
        if self._is_client:
            return ()
        return tuple(str(address) for address in await self._p2p.get_visible_maddrs(latest=True))

    async def hosts_outside(self) -> frozenset[str]:
        """Public addresses of those with whom we have a direct connection."""
        hosts = {host_in(str(address)) for info in await self._connections() for address in info.addrs}
        return frozenset(host for host in hosts if host and ipaddress.ip_address(host).is_global)

    async def through_holes(self) -> frozenset[PeerId]:
        """Peers that we met through a relay, and now have a direct connection with."""
        kinds: dict[PeerId, set[bool]] = {}
        for connection in await self._connections():
            is_direct = {bool(host_in(str(address))) for address in connection.addrs}
            kinds.setdefault(PeerId(connection.peer_id.to_base58()), set()).update(is_direct)
        return frozenset(peer for peer, found in kinds.items() if len(found) == 2)

    async def connected_peers(self) -> frozenset[PeerId]:
        """Peers with a live connection. Raises ``NetworkError`` when the daemon is gone: we are alone for good."""
        return frozenset(PeerId(info.peer_id.to_base58()) for info in await self._connections())

    async def _connections(self) -> Sequence[PeerInfo]:
        with _while_it_lives():
            found: Sequence[PeerInfo] = await self._p2p.list_peers()
        return found

    async def hosts_of(self, peer: PeerId) -> frozenset[str]:
        """See ``Vantage``."""
        try:
            found = await self._connections()
        except NetworkError:
            return frozenset()  # whoever looks for connections next will say that the daemon is gone
        addresses = (str(a) for info in found if info.peer_id.to_base58() == peer for a in info.addrs)
        return frozenset(host for address in addresses if (host := host_in(address)))

    async def answers(self, peer: PeerId, host: str, port: int, *, timeout_s: float) -> bool:
        """See ``Vantage``. The daemon itself would take the connection that it has for an answer."""
        try:
            return await who_answers(host, port, timeout_s=timeout_s) == peer
        except NetworkError:
            return False

    async def dial(self, address: str, *, timeout_s: float) -> PeerId:
        try:
            maddr = Multiaddr(address)
            peer = PeerID.from_base58(maddr["p2p"])
        except Exception as error:
            raise PeerUnreachable(f"{address!r} is no multiaddress ending in /p2p/<peer id>") from error
        try:
            async with asyncio.timeout(timeout_s):
                await connect(self._p2p, peer, Multiaddr(address.rpartition("/p2p/")[0]))
        except TimeoutError:
            raise TimedOut(f"no answer from {address} within {timeout_s:.1f} s") from None
        except (ControlFailure, P2PDaemonError, OSError) as error:
            raise PeerUnreachable(_reason(error)) from error
        return PeerId(peer.to_base58())

    async def open(self, peer: PeerId, protocol: str, *, timeout_s: float) -> HivemindStream:
        if len(peer) > LONGEST_ID:
            raise PeerUnreachable(f"a name of {len(peer)} characters is no peer's: {peer[:LONGEST_ID]}...")
        try:
            async with asyncio.timeout(timeout_s):
                return await self._open_somehow(peer, protocol, timeout_s / 2)
        except TimeoutError:
            raise TimedOut(f"{peer} did not accept {protocol} within {timeout_s:.1f} s") from None
        except (ControlFailure, P2PDaemonError, OSError, asyncio.IncompleteReadError, ValueError) as error:
            raise PeerUnreachable(f"cannot open {protocol} to {peer}: {_reason(error)}") from error

    async def _open_somehow(self, peer: PeerId, protocol: str, patience_s: float) -> HivemindStream:
        """Through a relay, if we are one of those who need it, and cannot reach ``peer`` in any other way."""
        if not self._relays:
            return await self._open(peer, protocol)
        direct = asyncio.create_task(self._open(peer, protocol))
        try:
            await asyncio.wait((direct,), timeout=patience_s)
            if not direct.done() or direct.exception() is not None:
                try:
                    await self._meet_through_relays(peer)
                except (ControlFailure, P2PDaemonError):
                    if direct.done():
                        raise
                else:
                    if not direct.done() or direct.exception() is not None:
                        return await self._open(peer, protocol)
            return await direct
        finally:
            direct.cancel()

    async def is_punching(self, peer: PeerId, *, timeout_s: float) -> bool:
        """See ``Burrow``: daemons that know where they are seen accept this protocol, whoever opens it."""
        try:
            async with asyncio.timeout(timeout_s):
                (await self._open(peer, PUNCHING_PROTOCOL)).close()
        except (TimeoutError, ControlFailure, P2PDaemonError, OSError, asyncio.IncompleteReadError, ValueError):
            return False
        return True

    async def meet(self, peer: PeerId, *, timeout_s: float) -> None:
        """Connect through a relay to ``peer``, which nobody can dial either; what connection there was ends.

        Raises:
            PeerUnreachable, TimedOut: none of our relays connects us.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._p2p._client.disconnect(PeerID.from_base58(peer))
                await self._meet_through_relays(peer)
        except TimeoutError:
            raise TimedOut(f"no relay connected us to {peer} within {timeout_s:.1f} s") from None
        except (ControlFailure, P2PDaemonError, OSError) as error:
            raise PeerUnreachable(f"no relay connects us to {peer}: {_reason(error)}") from error

    async def _meet_through_relays(self, peer: PeerId) -> None:
        reason: Exception = ControlFailure("no relay has a place for us any more")
        for relay in tuple(self._relays):
            try:
                await connect_through(self._p2p, relay, peer)
            except (ControlFailure, P2PDaemonError) as error:
                reason = error
            else:
                return
        raise reason

    async def reserve(self, relay: PeerId, *, timeout_s: float) -> Reservation:
        """A place at ``relay``, through which others that nobody can dial either then reach us, and we them.

        Raises:
            PeerUnreachable, BadMessage, TimedOut: it has no place for us that is of use.
        """
        try:
            reservation = await reserve(self._p2p, relay, timeout_s=timeout_s)
            if not reservation.is_useful:
                raise PeerUnreachable(f"{relay} passes on only {reservation.data_bytes} bytes")
        except NetworkError:
            self._relays.pop(relay, None)
            raise
        self._relays[relay] = None
        return reservation

    async def _open(self, peer: PeerId, protocol: str) -> HivemindStream:
        # hivemind's own stream_open leaks the control connection when the daemon refuses
        reader, writer = await self._p2p._client.control.daemon_connector.open_connection()
        try:
            request = p2pd_pb2.StreamOpenRequest(peer=PeerID.from_base58(peer).to_bytes(), proto=[protocol])
            await write_at_once(writer, p2pd_pb2.Request(type=p2pd_pb2.Request.STREAM_OPEN, streamOpen=request))
            response = p2pd_pb2.Response()
            await read_pbmsg_safe(reader, response)
            raise_if_failed(response)
        except BaseException:  # cancellation included: the connection would stay open for ever
            writer.close()
            raise
        return HivemindStream(peer, reader, writer)

    async def serve(self, protocol: str, handler: Handler) -> None:
        largest = LIMITS.of(protocol).largest

        async def accept(info: StreamInfo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            stream = HivemindStream(one_peer_id(info.peer_id.to_base58()), reader, writer, largest)
            self._tasks.create_task(_supervise(protocol, handler, stream))

        await self._p2p.add_binary_stream_handler(protocol, accept)


@contextmanager
def _while_it_lives() -> Iterator[None]:
    """Raises ``NetworkError`` when the daemon does not answer any more: it is gone for good."""
    try:
        yield
    except (OSError, asyncio.IncompleteReadError, ControlFailure, P2PDaemonError) as error:
        raise NetworkError("the libp2p daemon (p2pd) of this peer has died", hint="start the peer again") from error


async def _supervise(protocol: str, handler: Handler, stream: HivemindStream) -> None:
    """The one place where an unexpected error of a handler ends: its stream closes, the peer lives on."""
    try:
        await handler(stream)
    except NetworkError as error:
        logger.debug("stream ended protocol=%s peer=%s reason=%s", protocol, stream.remote, error)
    except Exception:
        logger.exception("handler failed protocol=%s peer=%s", protocol, stream.remote)
    finally:
        stream.close()


@asynccontextmanager
async def open_transport(settings: NetworkSettings) -> AsyncIterator[HivemindTransport]:
    """Start p2pd and stop it at the end, with every handler still running.

    Raises:
        PortTaken: somebody else listens on ``settings.port``, or ``settings.host`` is no address of this machine.
        NetworkError: p2pd did not start; the message holds its reason.
    """
    is_deaf = settings.is_client and not settings.is_punching
    if not is_deaf:
        check_port(settings.host, settings.port)
    try:
        listen = () if is_deaf else (f"/ip4/{settings.host}/tcp/{settings.port}",)
        p2p = await start_daemon(
            settings.identity_path, listen, settings.announce, settings.relay, is_punching=settings.is_punching
        )
    except P2PDaemonError as error:
        hint = "have memory and processes free for it; 'collab-peer doctor' tries it, too"
        raise NetworkError(f"the libp2p daemon did not start: {error}", hint=hint) from error
    try:
        with settings.metered(lambda: daemon_traffic(p2p)):
            async with Background() as tasks:
                yield HivemindTransport(p2p, tasks, is_client=settings.is_client)
    finally:
        await p2p.shutdown()


def _reason(error: Exception) -> str:
    """p2pd's own words, without the layers that hivemind wraps around them."""
    text = str(error).removeprefix("Connect failed. msg=").removeprefix("failed to dial: ")
    return " ".join(text.split()) or type(error).__name__
