"""Giving snapshots to newcomers: chunk by chunk as each asks for them, behind everything else that leaves this peer."""

import asyncio
from collections.abc import Awaitable, Callable

from collab.averaging.flow import Links, Outflow, Part, kept_alive
from collab.averaging.uplink import BACKGROUND
from collab.errors import BadMessage, NetworkError
from collab.net.base import Stream, Transport
from collab.net.pieces import PIECE_BYTES
from collab.net.wire import Message
from collab.swarm.places import Places
from collab.swarm.snapshots import PackedSnapshot

STATE_PROTOCOL = "collab/state/3"
MAX_DONATIONS = 4
"""Newcomers served at once; more wait their turn, so that training keeps most of the uplink."""
MAX_EACH = 2
"""Of these for one newcomer: a download that is begun anew, and the one before."""
MAX_WANTED = 8
"""Chunks that one newcomer may have asked for and not got."""
SHARE = 0.05
"""Of the uplink, for all newcomers together while a round is under way: even what leaves only when no part could makes
the next part wait."""

Provider = Callable[[int | None], Awaitable[PackedSnapshot | None]]
"""Our snapshot of an epoch (None: the newest); None when we do not have it."""


class StateServer:
    """Serves snapshots to whoever asks and belongs to the run."""

    def __init__(self, transport: Transport, links: Links, fingerprint: str, provide: Provider) -> None:
        self._transport, self._links, self._timeouts = transport, links, links.timeouts
        self._fingerprint, self._provide = fingerprint, provide
        self._places = Places(MAX_DONATIONS, MAX_EACH)
        self._next_s = 0.0
        """When a piece may leave beside a round."""

    async def serve(self) -> None:
        """Begin to answer newcomers."""
        await self._transport.serve(STATE_PROTOCOL, self._answer)

    async def _answer(self, stream: Stream) -> None:
        request = await stream.receive(timeout_s=self._timeouts.answer_s())
        theirs, epoch = request.get("fingerprint", str), request.get("epoch", int)
        if theirs != self._fingerprint:
            await self._refuse(stream, f"your run's fingerprint is {theirs}, this run's is {self._fingerprint}")
            return
        async with kept_alive(stream, self._timeouts), self._places.taken_by(stream.remote):
            packed = await self._provide(None if epoch < 0 else epoch)
            if packed is None:
                await self._refuse(stream, "no state yet" if epoch < 0 else f"no snapshot of epoch {epoch}")
                return
            await stream.send(packed.manifest.to_message(), timeout_s=self._timeouts.part_s)
            await self._give(stream, packed)

    async def _refuse(self, stream: Stream, text: str) -> None:
        await stream.send(Message("refused", {"text": text}), timeout_s=self._timeouts.answer_s())

    async def _give(self, stream: Stream, packed: PackedSnapshot) -> None:
        """Send what is asked for until the newcomer closes the stream, or says nothing."""
        wanted: asyncio.Queue[int] = asyncio.Queue()
        outflow = Outflow(stream, self._links)
        sending = asyncio.create_task(self._send(stream, packed, wanted, outflow))
        try:
            while True:
                message = await stream.receive(timeout_s=self._timeouts.part_s)
                if message.kind == "ack":
                    outflow.acknowledged(message)
                elif message.kind == "want":
                    index = message.get("index", int)
                    if not 0 <= index < len(packed.manifest.chunk_digests) or wanted.qsize() >= MAX_WANTED:
                        raise BadMessage(f"{stream.remote} wants chunk {index}, and {wanted.qsize()} others")
                    wanted.put_nowait(index)
                elif message.kind != "wait":
                    raise BadMessage(f"{stream.remote} sends {message.kind} instead of what it wants")
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            outflow.settle()

    async def _send(
        self, stream: Stream, packed: PackedSnapshot, wanted: "asyncio.Queue[int]", outflow: Outflow
    ) -> None:
        while True:
            index = await wanted.get()
            chunk = packed.chunk(index)
            for start in range(0, len(chunk), PIECE_BYTES):
                piece = chunk[start : start + PIECE_BYTES]
                part = Part(
                    kind="piece",
                    index=index,
                    num_bytes=len(piece),
                    encode=lambda piece=piece: piece,  # type: ignore[misc]
                    order=BACKGROUND,
                    extra={"start": start},
                )
                await self._rest(part.num_bytes)
                try:
                    await outflow.send(part, timeout_s=self._timeouts.part_s)
                except NetworkError:
                    return  # who reads from this stream sees the same, and knows why

    async def _rest(self, num_bytes: int) -> None:
        """Leave the uplink to the round that is under way, but for a small share."""
        rate, clock = self._links.uplink.rate(), self._links.clock
        if rate is None or not self._links.downlink.is_under_way:
            return
        began_s = max(self._next_s, clock())
        self._next_s = began_s + num_bytes / (SHARE * rate.bytes_per_s)
        await asyncio.sleep(began_s - clock())
