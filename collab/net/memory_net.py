"""Transport and directory in memory, over the links of a simulation.

Every message passes through :mod:`collab.net.wire` as on a real connection. As with a libp2p daemon, an endpoint is not
its peer: the endpoint of a frozen peer still accepts streams and takes bytes until a window is full.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from contextvars import Context

from collab.averaging.history import RESULTS_PROTOCOL
from collab.averaging.messages import PARTS_PROTOCOL
from collab.averaging.probe import PROBE_PROTOCOL
from collab.errors import NetworkError, PeerUnreachable, TimedOut
from collab.net.base import Entry, Handler
from collab.net.memory_directory import LOOKUP_S, MemoryDirectory
from collab.net.memory_stream import MemoryStream
from collab.net.quotas import LIMITS
from collab.simulation.links import Access, Fabric, Link
from collab.simulation.virtual_time import OWNER, VirtualLoop
from collab.swarm.donation import STATE_PROTOCOL
from collab.swarm.handover import HANDOVER_PROTOCOL
from collab.swarm.unit_leases import PARAMETERS_PROTOCOL
from collab.types import PeerId

__all__ = ["MemoryDirectory", "MemoryNetwork", "MemoryStream", "MemoryTransport"]

_logger = logging.getLogger(__name__)

Delivery = Callable[[int, int, str, int], None]
"""Called for each message that arrives whole: index of sender and of receiver, kind, bytes."""
Tamper = Callable[[str, bytes], bytes]
"""Called with protocol and payload of each message sent; returns what goes on the wire."""

Table = dict[str, dict[str, Entry]]
"""Records by key and subkey."""
WHOLE = 0
BULK = frozenset(
    {PARTS_PROTOCOL, RESULTS_PROTOCOL, PROBE_PROTOCOL, STATE_PROTOCOL, HANDOVER_PROTOCOL, PARAMETERS_PROTOCOL}
)
"""What carries vectors, or measures links for them."""


class MemoryNetwork:
    """Everybody's endpoints, and the table that stands for the DHT: one for each part of a network that is split."""

    def __init__(self, loop: VirtualLoop, *, seed: int = 0) -> None:
        self.loop = loop
        self.fabric = Fabric(loop, random.Random(f"links {seed}"))
        self.endpoints: dict[PeerId, MemoryTransport] = {}
        self.bulk_weight = 1
        """Bytes on the links for each byte of a vector: vectors may stand for longer ones."""
        self._tables: dict[int, Table] = {WHOLE: {}}
        """By group; the whole network, and who is in no group of a partition, is group 0."""
        self.relays: dict[PeerId, None] = {}
        """Who passes on what peers in client mode have for each other: the first that both know."""
        self.on_delivery: Delivery | None = None
        self.failures: list[BaseException] = []
        """What handlers raised that is no ``NetworkError``: a defect of the peer's code."""
        self.on_failure: Callable[[BaseException], None] = self.failures.append

    def attach(self, peer_id: PeerId, *, index: int, link: Link, client_mode: bool = False) -> "MemoryTransport":
        """Give a peer its endpoint; an earlier one under the same id must be dead.

        Args:
            index: names the peer in addresses, and as ``OWNER`` of the tasks that serve it.
        """
        earlier = self.endpoints.get(peer_id)
        if earlier is not None and earlier.is_alive:
            raise ValueError(f"{peer_id} is attached already")
        endpoint = MemoryTransport(self, peer_id, index, Access(link), client_mode)
        endpoint.access.group = earlier.access.group if earlier is not None else 0
        self.endpoints[peer_id] = endpoint
        return endpoint

    def weight_of(self, protocol: str) -> int:
        """Bytes on the links for each byte of a stream's payloads."""
        return self.bulk_weight if protocol in BULK else 1

    def relay_between(self, one: "MemoryTransport", other: "MemoryTransport") -> "MemoryTransport | None":
        """None: nobody that both are connected to."""
        known = (self.endpoints[peer] for peer in self.relays if peer in one.connections and peer in other.connections)
        return next((relay for relay in known if relay.is_alive), None)

    def split(self, groups: list[list["MemoryTransport"]]) -> None:
        """Partition the network; endpoints in no group form one more."""
        self.fabric.split([endpoint.access for endpoint in group] for group in groups)
        for number, _ in enumerate(groups, start=1):
            self._tables[number] = {key: dict(records) for key, records in self._tables[WHOLE].items()}

    def heal(self, *, resets_streams: bool = False) -> None:
        """End the partition; with ``resets_streams`` the streams across it break, as after a long one."""
        if resets_streams:
            for endpoint in self.endpoints.values():
                for stream in list(endpoint.streams):
                    if self.fabric.is_cut(endpoint.access, stream.far.access):
                        stream.reset(None)
        self.fabric.heal(endpoint.access for endpoint in self.endpoints.values())
        for number in [number for number in self._tables if number != WHOLE]:
            _merge(self._tables.pop(number), into=self._tables[WHOLE])

    def table_of(self, endpoint: "MemoryTransport") -> "Table":
        """What the keepers on this side of a partition hold: at its beginning all, then what this side stores."""
        return self._tables[endpoint.access.group]

    def is_isolated(self, endpoint: "MemoryTransport") -> bool:
        """Whether a partition leaves ``endpoint`` alone."""
        return self.fabric.is_split and not any(
            other is not endpoint and other.is_alive and other.access.group == endpoint.access.group
            for other in self.endpoints.values()
        )


def _merge(table: "Table", *, into: "Table") -> None:
    """Of two entries the one that lives longer stays, as when keepers meet again."""
    for key, records in table.items():
        there = into.setdefault(key, {})
        for subkey, entry in records.items():
            if subkey not in there or there[subkey].expires_at < entry.expires_at:
                there[subkey] = entry


class MemoryTransport:
    """One peer's endpoint: the transport port, and what fault scripts do to it."""

    def __init__(self, network: MemoryNetwork, peer_id: PeerId, index: int, access: Access, client_mode: bool) -> None:
        self._network = network
        self._peer_id = peer_id
        self.index = index
        self.access = access
        self.client_mode = client_mode
        self.is_alive = True
        self.is_frozen = False
        self.tamper: Tamper | None = None
        self.handlers: dict[str, Handler] = {}
        self.streams: dict[MemoryStream, None] = {}
        self.connections: set[PeerId] = set()
        self.carried: dict[MemoryStream, None] = {}
        """Of others, that we relay."""
        self._serving: dict[asyncio.Task[None], None] = {}
        self.context = Context()
        self.context.run(OWNER.set, index)

    @property
    def peer_id(self) -> PeerId:
        """Who we are."""
        return self._peer_id

    @property
    def address(self) -> str:
        """Where the endpoint is, whether or not others may dial it."""
        high, middle, low = self.index.to_bytes(3, "big")
        return f"/ip4/10.{high}.{middle}.{low}/tcp/4001/p2p/{self._peer_id}"

    async def addresses(self) -> tuple[str, ...]:
        """See ``Transport``."""
        return () if self.client_mode else (self.address,)

    async def dial(self, address: str, *, timeout_s: float) -> PeerId:
        """See ``Transport``."""
        place, _, name = address.rpartition("/p2p/")
        target = self._network.endpoints.get(PeerId(name))
        if target is None or target.address != address or target.client_mode:
            await self._look_up(timeout_s)
            raise PeerUnreachable(f"nobody with id {name or '?'} answers at {place or address}")
        stream = MemoryStream(self._network, self, target, "")
        try:
            await self._shake_hands(stream, timeout_s)
        finally:
            stream.close()
        return target.peer_id

    async def open(self, peer: PeerId, protocol: str, *, timeout_s: float) -> "MemoryStream":
        """See ``Transport``."""
        target = self._network.endpoints.get(peer)
        relay, is_near = None, target is not None and (not target.client_mode or peer in self.connections)
        if target is not None and not is_near and self.client_mode:
            relay = self._network.relay_between(self, target)
        if target is None or target is self or not (is_near or relay is not None):
            await self._look_up(timeout_s)
            raise PeerUnreachable(f"no way to peer {peer}")
        if not protocol:
            raise ValueError("a protocol needs a name")
        stream = MemoryStream(self._network, self, target, protocol, relay=relay)
        is_open = False
        try:
            await self._shake_hands(stream, timeout_s)
            is_open = True
        finally:
            if not is_open:  # refused, late, or the caller was cancelled
                stream.close()
        return stream

    async def serve(self, protocol: str, handler: Handler) -> None:
        """See ``Transport``."""
        if protocol in self.handlers:
            raise ValueError(f"{protocol} is served already")
        self.handlers[protocol] = handler

    async def _look_up(self, timeout_s: float) -> None:
        """The time it takes to learn that a peer cannot be found; without it a retrying peer would never wait."""
        needed_s = LOOKUP_S + 2 * self.access.link.latency_s
        await asyncio.sleep(min(needed_s, timeout_s))
        if needed_s > timeout_s:
            raise TimedOut(f"no answer within {timeout_s} s")

    async def _shake_hands(self, stream: "MemoryStream", timeout_s: float) -> None:
        if self.is_frozen:
            await asyncio.sleep(0)
        if not self.is_alive:
            raise PeerUnreachable("this peer has left the network")
        self.streams[stream] = None
        refusal = await stream.opened(timeout_s)
        if refusal:
            raise PeerUnreachable(f"peer {stream.remote} {refusal}")

    def accept(self, theirs: "MemoryStream") -> None:
        """An opening stream reached us: answer it, and start the handler."""
        if not theirs.near.is_alive:
            return
        handler = self.handlers.get(theirs.protocol)
        refusal = ""
        if not self.is_alive:
            refusal = "is gone"
        elif theirs.relay is not None and not theirs.relay.is_alive:
            refusal = "was behind a relay that is gone"
        elif handler is None and theirs.protocol:
            refusal = f"does not serve {theirs.protocol}"
        elif theirs.relay is None:
            self.connections.add(theirs.near.peer_id)
            theirs.near.connections.add(self._peer_id)
        if handler is not None and not refusal:
            largest = LIMITS.of(theirs.protocol).largest
            ours = MemoryStream(self._network, self, theirs.near, theirs.protocol, largest, theirs.relay)
            ours.join(theirs)
            self.streams[ours] = None
            task = self._network.loop.create_task(
                _serve(handler, ours), context=self.context.copy(), name=f"peer {self.index} serving {theirs.protocol}"
            )
            self._serving[task] = None
            task.add_done_callback(lambda done: self._served(done, ours), context=self._network.fabric.context)
        self._network.fabric.signal(self.access, theirs.near.access, theirs.answered, refusal)

    def _served(self, task: asyncio.Task[None], stream: "MemoryStream") -> None:
        del self._serving[task]
        stream.close()
        error = None if task.cancelled() else task.exception()
        if isinstance(error, NetworkError):
            _logger.debug("stream ended peer=%d protocol=%s error=%s", self.index, stream.protocol, error)
        elif error is not None and self.is_alive:
            error.add_note(f"raised by peer {self.index}'s handler of {stream.protocol}")
            self._network.on_failure(error)

    # -- what happens to peers -----------------------------------------------------------------------------------------

    def die(self) -> None:
        """Vanish at once: what is on the wire arrives, what is queued does not, streams break one latency later."""
        if not self.is_alive:
            return
        self.is_alive = False
        fabric = self._network.fabric
        fabric.drop_queued(self.access)
        for stream in list(self.streams):
            fabric.signal(self.access, stream.far.access, stream.end_far, None)
            stream.reset(None)
        self._forget()

    def leave(self) -> None:
        """End as a process does that is done: what was sent arrives, then streams close."""
        if not self.is_alive:
            return
        for stream in list(self.streams):
            stream.close()
        self.is_alive = False
        self._forget()

    def _forget(self) -> None:
        for stream in list(self.carried):
            self._network.fabric.signal(self.access, stream.near.access, stream.reset, None)
        for task in list(self._serving):
            task.cancel()
        for peer in self.connections:
            self._network.endpoints[peer].connections.discard(self._peer_id)
        self.connections.clear()

    def freeze(self) -> None:
        """The peer stops reading; its endpoint does not."""
        self.is_frozen = True

    def thaw(self) -> None:
        """The peer reads again."""
        self.is_frozen = False
        for stream in self.streams:
            stream.resume_reading()


async def _serve(handler: Handler, stream: "MemoryStream") -> None:
    await handler(stream)
