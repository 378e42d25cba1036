"""Handing snapshots from donors to newcomers, verified chunk by chunk."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from collab.errors import BadMessage, CorruptState, NetworkError, NoDonor
from collab.net.base import Stream, Transport
from collab.net.pieces import receive_bytes, send_bytes
from collab.net.wire import Message
from collab.swarm.snapshots import Manifest, PackedSnapshot, check_chunk
from collab.types import Lineage, PeerId

logger = logging.getLogger(__name__)

STATE_PROTOCOL = "collab/state/2"
PREPARE_TIMEOUT_S = 30.0
"""A donor may have to finish a microbatch before it can copy its state."""
CHUNK_TIMEOUT_S = 20.0
"""Of each message; a piece takes that long at 0.03 Mbit/s, and slower is dead."""
MAX_DONATIONS = 4
"""Newcomers served at once; more wait their turn, so that training keeps most of the uplink."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which state: the history that most trainers hold, or whatever a donor has newest."""

    epoch: int | None = None
    lineage: Lineage | None = None

    def accepts(self, manifest: Manifest) -> bool:
        """Whether ``manifest`` is what was asked for."""
        return (self.epoch is None or manifest.epoch == self.epoch) and self.lineage in (None, manifest.lineage)


Provider = Callable[[int | None], Awaitable[PackedSnapshot | None]]
"""Our snapshot of an epoch (None: the newest); None when we do not have it."""


class StateServer:
    """Serves snapshots to whoever asks and belongs to the run."""

    def __init__(self, transport: Transport, fingerprint: str, provide: Provider) -> None:
        self._transport, self._fingerprint, self._provide = transport, fingerprint, provide
        self._slots = asyncio.Semaphore(MAX_DONATIONS)

    async def serve(self) -> None:
        """Begin to answer newcomers."""
        await self._transport.serve(STATE_PROTOCOL, self._answer)

    async def _answer(self, stream: Stream) -> None:
        request = await stream.receive(timeout_s=CHUNK_TIMEOUT_S)
        theirs, epoch = request.get("fingerprint", str), request.get("epoch", int)
        if theirs != self._fingerprint:
            text = f"your run's fingerprint is {theirs}, this run's is {self._fingerprint}"
            await stream.send(Message("refused", {"text": text}), timeout_s=CHUNK_TIMEOUT_S)
            return
        async with self._slots:
            packed = await self._provide(None if epoch < 0 else epoch)
            if packed is None:
                text = "no state yet" if epoch < 0 else f"no snapshot of epoch {epoch}"
                await stream.send(Message("refused", {"text": text}), timeout_s=CHUNK_TIMEOUT_S)
                return
            await stream.send(packed.manifest.to_message(), timeout_s=CHUNK_TIMEOUT_S)
            for index in range(len(packed.manifest.chunk_digests)):
                await send_bytes(stream, packed.chunk(index), timeout_s=CHUNK_TIMEOUT_S)
            await stream.receive(timeout_s=CHUNK_TIMEOUT_S)  # "thanks": everything arrived, closing loses nothing


async def fetch_state(
    transport: Transport, donors: list[PeerId], *, fingerprint: str, wanted: Wanted
) -> tuple[PackedSnapshot, PeerId]:
    """Take the wanted snapshot from the first donor that can give it whole.

    Raises:
        NoDonor: none of them could; the message says why for each.
    """
    failures = []
    for donor in donors:
        try:
            return await _fetch_from(transport, donor, fingerprint, wanted), donor
        except (NetworkError, CorruptState) as error:
            logger.warning("state not taken donor=%s reason=%s", donor, error)
            failures.append(f"  {donor}: {error.message}")
    listing = "\n".join(failures) or "  nobody is known who could have it"
    raise NoDonor(
        f"the run's state could not be fetched:\n{listing}", hint="is the backbone running? it keeps the state"
    )


async def _fetch_from(transport: Transport, donor: PeerId, fingerprint: str, wanted: Wanted) -> PackedSnapshot:
    stream = await transport.open(donor, STATE_PROTOCOL, timeout_s=CHUNK_TIMEOUT_S)
    try:
        epoch = -1 if wanted.epoch is None else wanted.epoch
        await stream.send(Message("get", {"fingerprint": fingerprint, "epoch": epoch}), timeout_s=CHUNK_TIMEOUT_S)
        answer = await stream.receive(timeout_s=PREPARE_TIMEOUT_S)
        if answer.kind == "refused":
            raise BadMessage(answer.get("text", str))
        manifest = Manifest.from_message(answer)
        if manifest.fingerprint != fingerprint or not wanted.accepts(manifest):
            raise BadMessage(
                f"offers epoch {manifest.epoch} of lineage {manifest.lineage[:8]}, which is not what was asked for"
            )
        data = bytearray()
        for index in range(len(manifest.chunk_digests)):
            chunk = await receive_bytes(stream, manifest.chunk_bytes(index), timeout_s=CHUNK_TIMEOUT_S)
            check_chunk(manifest, index, chunk)
            data += chunk
        await stream.send(Message("thanks"), timeout_s=CHUNK_TIMEOUT_S)
        return PackedSnapshot(manifest, bytes(data))
    finally:
        stream.close()
