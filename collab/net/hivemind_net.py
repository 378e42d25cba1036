"""The real network: hivemind's libp2p transport and Kademlia DHT, in the peer's own event loop.

Only ``p2pd`` is a child process; it exits when its control connection breaks, so however its peer dies, it dies too.
hivemind's higher layers (optimiser, averagers, matchmaking, codecs) are not used.
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hivemind.dht.node import DHTNode
from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.datastructures import StreamInfo
from hivemind.p2p.p2p_daemon_bindings.utils import (
    ControlFailure,
    P2PDaemonError,
    raise_if_failed,
    read_pbmsg_safe,
    write_pbmsg,
)
from hivemind.proto import p2pd_pb2
from hivemind.utils.multiaddr import Multiaddr

from collab.concurrency import Background
from collab.errors import NetworkError, PeerUnreachable, TimedOut
from collab.net import hivemind_time
from collab.net.base import Entry, Handler
from collab.net.daemon import start_daemon
from collab.net.dialling import connect
from collab.net.fresh_dial import who_answers
from collab.net.hivemind_stream import HivemindStream
from collab.net.listening import check_port, host_in
from collab.net.owned_records import OwnedRecords
from collab.net.quotas import LIMITS
from collab.net.relaying import RelayLimits, Reservation, connect_through, reserve
from collab.types import PeerId

logger = logging.getLogger(__name__)

SHUTDOWN_S = 1.0
"""For the daemon to take the DHT's handlers back; it ends right after."""
DHT_RPC_TIMEOUT_S = 3.0
"""One Kademlia call without an answer; the caller's own deadline bounds the whole operation."""


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
    relay: RelayLimits | None = None
    """Pass on between peers that nobody can dial, within these limits; None: pass nothing on."""


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

    async def connected_peers(self) -> frozenset[PeerId]:
        """Peers with a live connection. Raises ``NetworkError`` when the daemon is gone: we are alone for good."""
        try:
            return frozenset(PeerId(info.peer_id.to_base58()) for info in await self._p2p.list_peers())
        except (OSError, asyncio.IncompleteReadError, P2PDaemonError) as error:
            raise NetworkError("the libp2p daemon (p2pd) of this peer has died", hint="start the peer again") from error

    async def hosts_of(self, peer: PeerId) -> frozenset[str]:
        """See ``Vantage``."""
        try:
            found = await self._p2p.list_peers()
        except (OSError, asyncio.IncompleteReadError, P2PDaemonError):
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
            await write_pbmsg(writer, p2pd_pb2.Request(type=p2pd_pb2.Request.STREAM_OPEN, streamOpen=request))
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
            stream = HivemindStream(PeerId(info.peer_id.to_base58()), reader, writer, largest)
            self._tasks.create_task(_supervise(protocol, handler, stream))

        await self._p2p.add_binary_stream_handler(protocol, accept)


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


class HivemindDirectory:
    """Implements ``Directory`` over hivemind's DHT node."""

    def __init__(self, node: DHTNode, me: PeerId) -> None:
        self._node, self.me = node, me

    async def greet(self, peer: PeerId) -> None:
        """Let ``peer``'s DHT node and ours know each other: a restarted peer's node has forgotten everybody."""
        await self._node.protocol.call_ping(PeerID.from_base58(peer))

    async def store(self, key: str, subkey: str, value: bytes, *, expires_at: float, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                return bool(await self._node.store(key, value, expires_at, subkey=subkey))
        except TimeoutError:
            raise TimedOut(f"the DHT did not take {key} within {timeout_s:.1f} s") from None

    async def get(self, key: str, *, timeout_s: float, fresh_until: float | None = None) -> Mapping[str, Entry]:
        try:
            async with asyncio.timeout(timeout_s):
                found = await self._node.get(key, sufficient_expiration_time=fresh_until or math.inf)
        except TimeoutError:
            raise TimedOut(f"the DHT did not answer for {key} within {timeout_s:.1f} s") from None
        if found is None or not isinstance(found.value, Mapping):
            return {}
        return {
            subkey: Entry(item.value, item.expiration_time)
            for subkey, item in found.value.items()
            if isinstance(subkey, str) and isinstance(item.value, bytes)
        }


@asynccontextmanager
async def open_transport(settings: NetworkSettings) -> AsyncIterator[HivemindTransport]:
    """Start p2pd and stop it at the end, with every handler still running.

    Raises:
        PortTaken: somebody else listens on ``settings.port``.
        NetworkError: p2pd did not start; the message holds its reason.
    """
    if settings.port and not settings.is_client:
        check_port(settings.host, settings.port)
    try:
        listen = () if settings.is_client else (f"/ip4/{settings.host}/tcp/{settings.port}",)
        p2p = await start_daemon(settings.identity_path, listen, settings.announce, settings.relay)
    except P2PDaemonError as error:
        raise NetworkError(f"the libp2p daemon did not start: {error}", hint="run 'collab-peer --help'") from error
    try:
        async with Background() as tasks:
            yield HivemindTransport(p2p, tasks, is_client=settings.is_client)
    finally:
        await p2p.shutdown()


@asynccontextmanager
async def open_directory(
    transport: HivemindTransport, known_peers: list[PeerId], *, rules: OwnedRecords, is_client: bool
) -> AsyncIterator[HivemindDirectory]:
    """Join the DHT through ``known_peers``, which must be connected already; none: start a new DHT.

    Args:
        rules: of what is kept; their clock, swarm time, replaces the DHT's own clock for the whole process.
        is_client: keep nothing for others, and be in nobody's tables.
    """
    hivemind_time.use(rules.now)
    node = await DHTNode.create(
        p2p=transport._p2p,
        initial_peers=[f"/p2p/{peer}" for peer in known_peers],
        client_mode=is_client,
        record_validator=rules,
        wait_timeout=DHT_RPC_TIMEOUT_S,
        ensure_bootstrap_success=False,
        strict=False,
    )
    try:
        yield HivemindDirectory(node, transport.peer_id)
    finally:
        with suppress(TimeoutError):  # a dead daemon never confirms
            async with asyncio.timeout(SHUTDOWN_S):
                await node.shutdown()


def _reason(error: Exception) -> str:
    """p2pd's own words, without the layers that hivemind wraps around them."""
    text = str(error).removeprefix("Connect failed. msg=").removeprefix("failed to dial: ")
    return " ".join(text.split()) or type(error).__name__
