"""One second of traffic at joining, so that the first rounds are not planned blindly.

A newcomer sends parts to some peers for half a second, and then they send parts to it: one direction after the other,
since acknowledgements that stand in one queue with parts would slow the other direction down. Both are judged by when
parts arrived: whatever stood in front of a narrow link leaves it at that link's rate. The parts go through the same
queue as a round's, behind all of them.

newcomer -> peer   probe, part ..., turn   for your parts
peer -> newcomer   ready | busy            before the parts; with what its own link carries
peer -> newcomer   part ..., end           after ``turn``
"""

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass

from collab.averaging.flow import Inflow, Links
from collab.averaging.passages import WINDOW_S, Path, rate_of
from collab.averaging.plan import is_rate
from collab.averaging.probe_traffic import LONGEST_S, Traffic, Volume
from collab.concurrency import Background
from collab.errors import BadMessage, NetworkError, TimedOut
from collab.net.base import Stream, Transport
from collab.net.wire import Message
from collab.swarm.bandwidth import CHANGE, Rate
from collab.types import PeerId

logger = logging.getLogger(__name__)

PROBE_PROTOCOL = "collab/probe/1"
LARGEST_BYTES = 16 << 20
"""In each direction, over all peers: 0.6 s of 200 Mbit/s; a faster link need not be known better."""
ASKED, PEERS = 8, 4
"""The first that are ready take part. One peer could be slower than we are; four seldom are together."""
PATIENCE_S = 3.0
"""For the first that is ready: a connection to a peer on the other side of the world takes a dozen trips there."""
MORE_PATIENCE_S = 0.2
"""For the others, beyond twice what the first one took."""
FIRST_BYTES = 64 << 10
"""Under way at the beginning, over all peers: a quarter of a second of 2 Mbit/s, which a router can hold."""
SERVED_AT_ONCE = 2
"""Newcomers that a peer helps at a time; the others are told that it is busy."""
TRIES, BUSY_S = 3, 2.0
"""When all whom a newcomer asks are busy, as when many join at once, it asks again after about a probe's time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What a probe found out; None: nothing."""

    up: Rate | None = None
    down: Rate | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Partner:
    """A peer that is ready."""

    stream: Stream
    traffic: Traffic
    up_bytes_per_s: float
    """What its own link carries, as far as it knows."""
    down_bytes_per_s: float


class _Meeting:
    """A newcomer and those that help it, who begin together."""

    def __init__(self, num_asked: int) -> None:
        self._num_silent = num_asked
        self._num_exchanging = 0
        self.num_busy = 0
        """Peers that have no time."""
        self._news, self._begun = asyncio.Event(), asyncio.Event()
        self.helpers: list[_Partner] = []

    @property
    def volume(self) -> Volume:
        """For each of them, in each direction."""
        return Volume(num_bytes=LARGEST_BYTES // len(self.helpers), first_bytes=FIRST_BYTES // len(self.helpers))

    def answered(self, helper: _Partner | None) -> bool:
        """A peer is ready, or (None) will not be; whether it takes part."""
        self._num_silent -= 1
        self._news.set()
        if helper is None or self._begun.is_set() or len(self.helpers) == PEERS:
            return False
        self.helpers.append(helper)
        self._num_exchanging += 1
        return True

    def parted(self) -> None:
        """One that takes part is done."""
        self._num_exchanging -= 1
        self._news.set()

    async def begun(self) -> None:
        """Wait until all are there."""
        await self._begun.wait()

    async def hold(self) -> None:
        """Wait for helpers, then until they are done, and never long."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S) as patience:
                while self._num_silent and len(self.helpers) < PEERS:
                    had_none = not self.helpers
                    await self._change()
                    if had_none and self.helpers:
                        patience.reschedule(loop.time() + (loop.time() - began_s) + MORE_PATIENCE_S)
        self._begun.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_S):
                while self._num_exchanging:
                    await self._change()

    async def _change(self) -> None:
        self._news.clear()
        await self._news.wait()

    def probed(self) -> Probed:
        """What has been found out so far."""
        went = [Path(helper.traffic.went) for helper in self.helpers if helper.traffic.went]
        came = [Path(helper.traffic.came) for helper in self.helpers if helper.traffic.came]
        up = rate_of(went, sum(helper.down_bytes_per_s for helper in self.helpers))
        down = rate_of(came, sum(helper.up_bytes_per_s for helper in self.helpers))
        if up is not None and down is not None and down.bytes_per_s * CHANGE < up.bytes_per_s:
            # links narrower down than up are rare, and helpers with other things to send are not
            down = Rate(down.bytes_per_s, is_limit=False)
        return Probed(up=up, down=down)


class Probe:
    """Measures our link with others' help, and helps others."""

    def __init__(self, transport: Transport, links: Links) -> None:
        self._transport, self._links = transport, links
        self._num_served = 0

    async def serve(self) -> None:
        """Begin to help newcomers."""
        await self._transport.serve(PROBE_PROTOCOL, self._help)

    # -- newcomer ----------------------------------------------------------------------------------------------------

    async def measure(self, peers: list[PeerId]) -> Probed:
        """Exchange parts with those of ``peers`` that are ready first; the dead and the silent are not waited for."""
        for _ in range(TRIES - 1):
            probed, num_busy = await self._measure(peers)
            if probed.up is not None or not num_busy:
                return probed
            await asyncio.sleep(BUSY_S)
        return (await self._measure(peers))[0]

    async def _measure(self, peers: list[PeerId]) -> tuple[Probed, int]:
        """Once; and how many were busy."""
        asked = peers[:ASKED]
        meeting = _Meeting(len(asked))
        async with Background() as tasks:
            for peer in asked:
                tasks.create_task(self._visit(peer, meeting))
            await meeting.hold()
        probed = meeting.probed()
        if probed.up is not None:
            self._links.uplink.believe(probed.up, WINDOW_S)
        if probed.down is not None:
            self._links.downlink.believe(probed.down, WINDOW_S)
        return probed, meeting.num_busy

    async def _visit(self, peer: PeerId, meeting: _Meeting) -> None:
        """Ask a peer, wait for the others, and exchange parts with it."""
        helper = await self._ask(peer, meeting)
        takes_part = meeting.answered(helper)
        if helper is None:
            return
        try:
            if takes_part:
                await meeting.begun()
                await self._exchange(helper, meeting.volume)
        except NetworkError as error:
            logger.debug("probe failed peer=%s reason=%s", peer, error)
        finally:
            helper.stream.close()
            await helper.traffic.settle()
            if takes_part:
                meeting.parted()

    async def _ask(self, peer: PeerId, meeting: _Meeting) -> _Partner | None:
        """None: it has no time, or does not answer."""
        try:
            stream = await self._transport.open(peer, PROBE_PROTOCOL, timeout_s=PATIENCE_S)
            try:
                await stream.send(Message("probe"), timeout_s=PATIENCE_S)
                answer = await stream.receive(timeout_s=PATIENCE_S)
                if answer.kind == "ready":
                    return _Partner(stream, Traffic(stream, self._links), *_rates(answer))
                meeting.num_busy += 1
                stream.close()
            except BaseException:
                stream.close()
                raise
        except NetworkError as error:
            logger.debug("no probe with peer=%s reason=%s", peer, error)
        return None

    async def _exchange(self, helper: _Partner, volume: Volume) -> None:
        """Send for half of the time, then receive."""
        stream, traffic = helper.stream, helper.traffic
        turn = Message("turn", {"bytes": volume.num_bytes, "first_bytes": volume.first_bytes})
        async with Inflow(stream, self._links, timeout_s=LONGEST_S) as inflow:
            traffic.begin(volume, turn)
            while (message := await stream.receive(timeout_s=LONGEST_S)).kind != "end":
                await traffic.take(message, inflow, most_bytes=volume.num_bytes)

    # -- helper ------------------------------------------------------------------------------------------------------

    async def _help(self, stream: Stream) -> None:
        if (kind := (await stream.receive(timeout_s=PATIENCE_S)).kind) != "probe":
            raise BadMessage(f"a probe begins with {kind}")
        if self._num_served >= SERVED_AT_ONCE:
            await stream.send(Message("busy"), timeout_s=PATIENCE_S)
            return
        self._num_served += 1
        traffic = Traffic(stream, self._links)
        try:
            async with asyncio.timeout(PATIENCE_S + LONGEST_S):
                await self._receive_and_send(stream, traffic)
        except TimeoutError:
            raise TimedOut(f"the probe of {stream.remote} does not end") from None
        finally:
            await traffic.settle()
            self._num_served -= 1

    async def _receive_and_send(self, stream: Stream, traffic: Traffic) -> None:
        """Until the newcomer closes the stream."""
        measured = self._links.measured()
        fields = {"up_bytes_per_s": measured["up_bytes_per_s"], "down_bytes_per_s": measured["down_bytes_per_s"]}
        await stream.send(Message("ready", fields), timeout_s=PATIENCE_S)
        async with Inflow(stream, self._links, timeout_s=LONGEST_S) as inflow:
            while True:
                message = await stream.receive(timeout_s=PATIENCE_S + LONGEST_S)
                if message.kind == "turn":
                    traffic.begin(_volume(message), Message("end"))
                else:
                    await traffic.take(message, inflow, most_bytes=LARGEST_BYTES)


def _rates(ready: Message) -> tuple[float, float]:
    """What a peer says of its own link, up and down, in bytes/s; 0: not known.

    Raises:
        BadMessage: no link carries that.
    """
    up, down = ready.get("up_bytes_per_s", float), ready.get("down_bytes_per_s", float)
    if not (is_rate(up) and is_rate(down)):
        raise BadMessage(f"rates of {up} and {down} bytes/s")
    return up, down


def _volume(turn: Message) -> Volume:
    """Raises ``BadMessage`` for more than a probe may ask for."""
    num_bytes, first_bytes = turn.get("bytes", int), turn.get("first_bytes", int)
    if not (0 < num_bytes <= LARGEST_BYTES and 0 < first_bytes <= FIRST_BYTES):
        raise BadMessage(f"asks for {num_bytes} bytes, {first_bytes} of them at once")
    return Volume(num_bytes=num_bytes, first_bytes=first_bytes)
