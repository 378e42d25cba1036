"""Access links in virtual time: when the bytes that one peer sends are there at another.

Every peer hangs on the network by one link with an uplink and a downlink that do not disturb each other; what lies
between the links costs nothing. An uplink takes turns between its flows, one piece each, so that a large message
delays a small one by one piece per busy flow. A downlink serves pieces in the order in which they arrive. A path's
latency is the sum of both links'. Loss never shows in the data: it costs the time of a retransmission.
"""

import math
import random
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context
from dataclasses import dataclass
from typing import Any

from collab.simulation.virtual_time import VirtualLoop

PIECE_BYTES = 1 << 16
"""What a flow may send before others get their turn: 5 ms at 100 Mbit/s, and an 8 MiB message is 128 pieces."""
PACKET_BYTES = 1460
"""Payload of a TCP segment on Ethernet; loss strikes packets."""
MIN_RETRANSMIT_S = 0.2
"""Lower bound of Linux' retransmission time-out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How a peer is connected. The default is a good home line: 100 Mbit/s both ways, 20 ms to a peer like it."""

    up_bytes_per_s: float = 12.5e6
    down_bytes_per_s: float = 12.5e6
    latency_s: float = 0.01
    """One way, from the peer to the middle of the network."""
    loss: float = 0.0
    """Share of packets lost on this link."""

    def __post_init__(self) -> None:
        if not (self.up_bytes_per_s > 0 and self.down_bytes_per_s > 0):
            raise ValueError(f"a link needs rates > 0, got {self.up_bytes_per_s} up and {self.down_bytes_per_s} down")
        if not (0 <= self.latency_s < math.inf and 0 <= self.loss < 1):
            raise ValueError(f"a link needs latency_s >= 0 and 0 <= loss < 1, got {self.latency_s} and {self.loss}")


class Access:
    """One peer's end of its link. ``link`` may be replaced at any time; pieces that start later go by the new one."""

    __slots__ = ("down_free_s", "group", "is_scheduled", "link", "received_bytes", "ring", "sent_bytes", "up_free_s")

    def __init__(self, link: Link) -> None:
        self.link = link
        self.group = 0
        """Peers of different groups are cut off from each other."""
        self.ring: deque[Flow] = deque()
        self.is_scheduled = False
        self.up_free_s = 0.0
        self.down_free_s = 0.0
        self.sent_bytes = 0
        self.received_bytes = 0


class Flow:
    """Pieces from one peer to another that stay in order."""

    __slots__ = ("dst", "is_waiting", "last_arrival_s", "onward", "pieces", "src")

    def __init__(self, src: Access, dst: Access, onward: "Flow | None" = None) -> None:
        """
        Args:
            onward: takes each piece on from ``dst``, which only passes it on; None: it is meant for ``dst``.
        """
        self.src = src
        self.onward = onward
        self.dst = dst
        self.pieces: deque[tuple[int, Callable[[Any], None], Any]] = deque()
        self.is_waiting = False
        self.last_arrival_s = 0.0


class Fabric:
    """All links, and the partition between them."""

    def __init__(self, loop: VirtualLoop, rng: random.Random) -> None:
        self._loop = loop
        self._rng = rng
        self.context = Context()
        """Belongs to no peer, so that the network goes on while peers are frozen."""
        self._is_split = False
        self._held: list[tuple[Access, Access, Callable[..., None], tuple[Any, ...]]] = []

    def push(self, flow: Flow, size_bytes: int, deliver: Callable[[Any], None], what: Any) -> None:
        """Send one piece, at most ``PIECE_BYTES`` so that others get their turn; ``deliver(what)`` when it is there."""
        src = flow.src
        now_s = self._loop.time()
        if not flow.is_waiting and (size_bytes == 0 or (not src.ring and src.up_free_s <= now_s)):
            self._put_on_wire(flow, size_bytes, deliver, what)
            return
        flow.pieces.append((size_bytes, deliver, what))
        if not flow.is_waiting:
            flow.is_waiting = True
            src.ring.append(flow)
            if not src.is_scheduled:
                src.is_scheduled = True
                self._loop.post(src.up_free_s, self._transmit, src)

    def signal(self, src: Access, dst: Access, deliver: Callable[[Any], None], what: Any) -> None:
        """Send something too small to take a turn on the links: acknowledgements and resets."""
        at_s = self._loop.time() + src.link.latency_s + dst.link.latency_s
        self._loop.post(at_s, self._signal_arrives, src, dst, deliver, what)

    def drop_queued(self, src: Access) -> None:
        """Forget what ``src`` has not put on the wire yet: its machine is gone."""
        for flow in src.ring:
            flow.pieces.clear()
            flow.is_waiting = False
        src.ring.clear()

    def split(self, groups: Iterable[Iterable[Access]]) -> None:
        """Hold everything between peers of different groups until :meth:`heal`; unnamed peers are one more group."""
        for number, group in enumerate(groups, start=1):
            for access in group:
                access.group = number
        self._is_split = True

    def heal(self, everybody: Iterable[Access]) -> None:
        """End the partition; what was held arrives one latency later, in the order in which it was held."""
        for access in everybody:
            access.group = 0
        self._is_split = False
        held, self._held = self._held, []
        now_s = self._loop.time()
        for src, dst, arrive, arguments in held:
            at_s = now_s + src.link.latency_s + dst.link.latency_s
            if isinstance(arguments[0], Flow):
                arguments[0].last_arrival_s = max(arguments[0].last_arrival_s, at_s)
            self._loop.post(at_s, arrive, *arguments)

    @property
    def is_split(self) -> bool:
        """Whether a partition is in force."""
        return self._is_split

    def is_cut(self, one: Access, other: Access) -> bool:
        """Whether nothing gets from ``one`` to ``other`` now."""
        return self._is_split and one.group != other.group

    def _transmit(self, src: Access) -> None:
        """The uplink is free: next pieces of the flows that wait, one each in turn."""
        src.is_scheduled = False
        now_s = self._loop.time()
        while src.ring:
            if src.up_free_s > now_s:
                src.is_scheduled = True
                self._loop.post(src.up_free_s, self._transmit, src)
                return
            flow = src.ring.popleft()
            size_bytes, deliver, what = flow.pieces.popleft()
            if flow.pieces:
                src.ring.append(flow)
            else:
                flow.is_waiting = False
            self._put_on_wire(flow, size_bytes, deliver, what)

    def _put_on_wire(self, flow: Flow, size_bytes: int, deliver: Callable[[Any], None], what: Any) -> None:
        src, here, there = flow.src, flow.src.link, flow.dst.link
        at_s = self._loop.time()
        airtime_s = size_bytes / here.up_bytes_per_s
        if size_bytes:
            at_s += airtime_s
            src.up_free_s = at_s
            src.sent_bytes += size_bytes
        at_s += here.latency_s + there.latency_s
        if here.loss or there.loss:
            at_s += self._retransmit_s(flow, size_bytes)
        at_s = flow.last_arrival_s = max(at_s, flow.last_arrival_s)
        self._loop.post(at_s, self._piece_arrives, flow, size_bytes, airtime_s, deliver, what)

    def _retransmit_s(self, flow: Flow, size_bytes: int) -> float:
        """One time-out for each packet that is lost; a retransmission can be lost again."""
        here, there = flow.src.link, flow.dst.link
        arrives = (1 - here.loss) * (1 - there.loss)
        packets = max(1, -(-size_bytes // PACKET_BYTES))
        lost = 0
        for _ in range(packets):
            while self._rng.random() >= arrives:
                lost += 1
        return lost * max(MIN_RETRANSMIT_S, 2 * (here.latency_s + there.latency_s))

    def _piece_arrives(self, flow: Flow, size_bytes: int, airtime_s: float, deliver: Callable[[Any], None],
                       what: Any) -> None:
        """The last byte reached the downlink; its first came ``airtime_s`` earlier, and went through meanwhile."""
        dst = flow.dst
        if self._is_split and flow.src.group != dst.group:
            self._held.append((flow.src, dst, self._piece_arrives, (flow, size_bytes, airtime_s, deliver, what)))
            return
        now_s = self._loop.time()
        if flow.onward is not None:
            deliver, what = self._pass_on, (flow.onward, size_bytes, deliver, what)
        dst.received_bytes += size_bytes
        dst.down_free_s = max(dst.down_free_s, now_s - airtime_s) + size_bytes / dst.link.down_bytes_per_s
        if dst.down_free_s > now_s:
            self._loop.post(dst.down_free_s, deliver, what)
        else:
            deliver(what)

    def _pass_on(self, piece: "tuple[Flow, int, Callable[[Any], None], Any]") -> None:
        self.push(*piece)

    def _signal_arrives(self, src: Access, dst: Access, deliver: Callable[[Any], None], what: Any) -> None:
        if self._is_split and src.group != dst.group:
            self._held.append((src, dst, self._signal_arrives, (src, dst, deliver, what)))
            return
        deliver(what)
