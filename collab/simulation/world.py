"""A swarm in one process and in virtual time: peers are the same coroutines as in a real run, over simulated ports.

    world = World(seed=1)
    for _ in range(3):
        world.add_peer(main)
    world.run()
"""

import asyncio
import hashlib
import random
import struct
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from collab.concurrency import Background
from collab.metrics.records import Event
from collab.net.greeting import GreetingTransport
from collab.net.guard import Guard, GuardedTransport
from collab.net.loopback import LoopbackTransport
from collab.net.memory_net import MemoryDirectory, MemoryNetwork, MemoryTransport
from collab.net.quotas import LIMITS
from collab.ports import Ports
from collab.simulation.known_signatures import KnownSignatures, SharingKeys
from collab.simulation.links import Link
from collab.simulation.peer import Main, SimPeer
from collab.simulation.virtual_time import VirtualClock, VirtualCompute, VirtualLoop
from collab.swarm.identity import Identity

Listener = Callable[["SimPeer", Event], None]
"""Called with every event of a living peer, while that peer's code runs."""

_DELIVERY = struct.Struct(">dIIQ")
_TRACED_AT = struct.Struct(">dI")


class _Recorder:
    """The observer port of one peer."""

    def __init__(self, world: "World", index: int, transport: MemoryTransport) -> None:
        self._world = world
        self._index = index
        self._transport = transport

    def observe(self, event: Event) -> None:
        if self._transport.is_alive:
            self._world.note(self._index, event)


class World:
    """All peers, their network and their clock; everything in it follows from ``seed``."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.loop = VirtualLoop()
        self.loop.set_exception_handler(self._report)
        self.network = MemoryNetwork(self.loop, seed=seed)
        self.network.on_delivery = self._trace_delivery
        self.network.on_failure = self._fail
        self.peers: list[SimPeer] = []
        self.limits = LIMITS
        """Of every peer's guard, as of when the peer starts."""
        self.place = ""
        """A path of this machine, which is left out of the digest; empty: none is in any event."""
        self._listeners: list[Listener] = []
        self._trace = hashlib.sha256()
        self._known_signatures = KnownSignatures()
        self._num_running = 0
        self._failure: BaseException | None = None
        self._over: asyncio.Future[None] | None = None

    @property
    def time_s(self) -> float:
        """Virtual seconds since the world began."""
        return self.loop.time()

    def add_peer(
        self,
        main: Main,
        *,
        link: Link | None = None,
        samples_per_s: float = 100.0,
        client_mode: bool = False,
        clock_error_s: float = 0.0,
        name: str | None = None,
    ) -> SimPeer:
        """Start a peer now; before :meth:`run`, or later from :meth:`call_at`. It lives until ``main`` returns."""
        index = len(self.peers)
        identity = Identity.from_seed(self._derive("key", index))
        transport = self.network.attach(
            identity.peer_id, index=index, link=link or Link(), client_mode=client_mode
        )
        clock = VirtualClock(self.loop, error_s=clock_error_s)
        compute = VirtualCompute(self.loop, samples_per_s=samples_per_s)
        ports = self._wire(index, clock, compute, transport, life=1)
        name = name or f"peer {index}"
        peer = SimPeer(index=index, name=name, identity=identity, main=main, clock=clock, compute=compute,
                       transport=transport, ports=ports, task=self._start(index, name, main, ports, transport))
        self.peers.append(peer)
        self._watch(peer)
        return peer

    def call_at(self, time_s: float, callback: Callable[[], object]) -> None:
        """Call ``callback`` when ``time_s`` virtual seconds have passed since the world began."""
        self.loop.call_at(time_s, callback, context=self.network.fabric.context)

    def subscribe(self, listener: Listener) -> None:
        """Show ``listener`` all events from now on."""
        self._listeners.append(listener)

    # -- running -------------------------------------------------------------------------------------------------------

    def run(self, *, until_s: float | None = None) -> None:
        """Run until every peer's main has ended, or until ``until_s``; then it can be called again.

        Raises:
            BaseException: what a peer's main, task or handler raised first; it is a defect, or an error that nobody
                treated. The world is over then.
            Deadlock: everybody waits for something that cannot happen.
        """
        if self.loop.is_closed():
            raise ValueError("this world is over")
        over = self._over = self.loop.create_future()
        timer = None
        if until_s is not None:
            timer = self.loop.call_at(until_s, self._end, context=self.network.fabric.context)
        if self._num_running == 0 or self._failure is not None:
            self._end()
        try:
            self.loop.run_until_complete(over)
        except BaseException:
            self.close()
            raise
        if timer is not None:
            timer.cancel()
        if self._num_running == 0 or self._failure is not None:
            self.close()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End the world: peers that still run are killed."""
        for peer in self.peers:
            peer.transport.die()
        self.loop.shut_down()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # A test that looks at a world before its end would otherwise leave an open loop behind.
        if not self.loop.is_closed():
            self.loop.close()

    # -- what happens to peers -----------------------------------------------------------------------------------------

    def kill(self, index: int) -> None:
        """As ``kill -9``: its code is cancelled, and what it does while it ends reaches nobody."""
        peer = self.peers[index]
        peer.transport.die()
        self.loop.thaw(index)
        for task in self.loop.tasks_of(index):
            task.cancel()

    def freeze(self, index: int) -> None:
        """As SIGSTOP: its code stops, its endpoint goes on."""
        self.loop.freeze(index)
        self.peers[index].transport.freeze()

    def thaw(self, index: int) -> None:
        """As SIGCONT."""
        if self.peers[index].transport.is_frozen:
            self.loop.thaw(index)
            self.peers[index].transport.thaw()

    def set_link(self, index: int, link: Link) -> None:
        """Replace a peer's link; what it has put on the wire still goes by the old one."""
        self.peers[index].transport.access.link = link

    def restart(self, index: int) -> None:
        """Run the main of a dead peer again, with its identity and link, and nothing else from its earlier life."""
        peer = self.peers[index]
        if peer.is_alive:
            raise ValueError(f"{peer.name} is alive")
        old = peer.transport
        peer.lives += 1
        peer.result = peer.exception = None
        peer.transport = self.network.attach(
            peer.peer_id, index=index, link=old.access.link, client_mode=old.client_mode
        )
        peer.compute = VirtualCompute(self.loop, samples_per_s=peer.compute.samples_per_s)
        peer.ports = self._wire(index, peer.clock, peer.compute, peer.transport, life=peer.lives)
        peer.task = self._start(index, peer.name, peer.main, peer.ports, peer.transport)
        self._watch(peer)

    # -- what happened -------------------------------------------------------------------------------------------------

    def note(self, index: int, event: Event) -> None:
        """Keep an event of a peer, and show it to the listeners."""
        text = repr(event).replace(self.place, "") if self.place else repr(event)
        self._trace.update(_TRACED_AT.pack(self.loop.time(), index) + text.encode())
        peer = self.peers[index]
        peer.events.append(event)
        for listener in self._listeners:
            listener(peer, event)

    def digest(self) -> str:
        """SHA-256 over all events and deliveries so far, in order: equal digests mean equal runs."""
        return self._trace.hexdigest()

    def _trace_delivery(self, sender: int, receiver: int, kind: str, size_bytes: int) -> None:
        self._trace.update(_DELIVERY.pack(self.loop.time(), sender, receiver, size_bytes) + kind.encode())

    # -- inside --------------------------------------------------------------------------------------------------------

    def _derive(self, purpose: str, index: int) -> bytes:
        return hashlib.sha256(f"collab simulation {self._seed} {purpose} {index}".encode()).digest()

    def _wire(self, index: int, clock: VirtualClock, compute: VirtualCompute, transport: MemoryTransport, *,
              life: int) -> Ports:
        return Ports(
            clock=clock,
            compute=compute,
            transport=transport,
            directory=MemoryDirectory(self.network, transport),
            keys=SharingKeys(Identity.from_seed(self._derive("key", index)), self._known_signatures),
            observer=_Recorder(self, index, transport),
            rng=random.Random(int.from_bytes(self._derive(f"rng {life}", index), "big")),
        )

    def _start(self, index: int, name: str, main: Main, ports: Ports, transport: MemoryTransport) -> asyncio.Task[Any]:
        return self.loop.create_task(self._live(main, ports), name=name, context=transport.context.copy())

    async def _live(self, main: Main, ports: Ports) -> Any:
        """One peer's life, with streams to itself and a guard for those of others, as a real one has them."""
        guard = Guard(ports.clock, ports.observer, self.limits, ports.entrance)
        async with Background() as tasks:
            greeting = GreetingTransport(GuardedTransport(ports.transport, guard), ports.entrance)
            transport = LoopbackTransport(greeting, tasks)
            return await main(replace(ports, transport=transport, observer=guard))

    def _watch(self, peer: SimPeer) -> None:
        self._num_running += 1
        transport = peer.transport
        peer.task.add_done_callback(lambda task: self._ended(peer, transport, task),
                                    context=self.network.fabric.context)

    def _ended(self, peer: SimPeer, transport: MemoryTransport, task: asyncio.Task[Any]) -> None:
        """A main is over: returned, failed, or killed. Its endpoint goes with it, as a daemon with its process."""
        was_killed = not transport.is_alive
        transport.leave()
        self._num_running -= 1
        error = None if task.cancelled() else _alone(task.exception())
        if peer.transport is transport and not task.cancelled():
            peer.exception = error
            peer.result = None if error is not None else task.result()
        if error is not None and not was_killed:
            error.add_note(f"raised by the main of {peer.name} at {self.time_s:.3f} virtual s")
            self._fail(error)
        if self._num_running == 0:
            self._end()

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._end()

    def _report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback, or a task that nobody awaited, raised."""
        loop.default_exception_handler(context)
        if isinstance(error := context.get("exception"), Exception):
            self._fail(error)

    def _end(self) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(None)


def _alone(error: BaseException | None) -> BaseException | None:
    """``error`` without the task groups that it came through alone."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
