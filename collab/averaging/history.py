"""The last committed means, kept for peers that missed them: catching up costs one vector, not a whole state."""

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable

import numpy as np

from collab.averaging.base import Committed
from collab.averaging.certificates import Certificate, Certified
from collab.averaging.seats import Instance
from collab.errors import BadMessage, NetworkError
from collab.net.base import Stream, Transport
from collab.net.pieces import receive_bytes, send_bytes
from collab.net.wire import Message
from collab.types import Lineage, PeerId, Vector

logger = logging.getLogger(__name__)

RESULTS_PROTOCOL = "collab/results/3"
KEPT_BYTES = 128 << 20
"""Of all kept means together. Vectors of more than 32 million elements are not kept: their peers fetch the state, which
is not much more than two of them."""
KEPT_ROUNDS = 8
"""As far back as a peer can be and still catch up step by step."""
TIMEOUT_S = 20.0

Believe = Callable[[PeerId, Message, Instance], Awaitable[Certified]]
"""What a peer's message tells of a round that followed a history; raises ``BadMessage`` if nothing proves it."""


class History:
    """Remembers committed rounds by the history that they continue."""

    def __init__(self, transport: Transport, fingerprint: str, believe: Believe) -> None:
        self._transport, self._fingerprint, self._believe = transport, fingerprint, believe
        self._rounds: OrderedDict[Instance, tuple[Committed, Certificate]] = OrderedDict()

    async def serve(self) -> None:
        """Begin to answer peers that missed a round."""
        await self._transport.serve(RESULTS_PROTOCOL, self._answer)

    def remember(self, committed: Committed, certificate: Certificate) -> None:
        """Keep one committed round, and the proof that it was."""
        self._rounds[committed.record.epoch, committed.record.lineage] = committed, certificate
        while self._rounds and (len(self._rounds) > KEPT_ROUNDS or self._kept_bytes() > KEPT_BYTES):
            self._rounds.popitem(last=False)

    def _kept_bytes(self) -> int:
        return sum(committed.mean.nbytes for committed, _ in self._rounds.values())

    async def fetch(self, peers: list[PeerId], epoch: int, lineage: Lineage, num_elements: int) -> Committed | None:
        """The round that continued ``lineage`` after ``epoch`` steps, from the first of ``peers`` that has it."""
        for peer in peers:
            try:
                return await self._fetch_from(peer, epoch, lineage, num_elements)
            except NetworkError as error:
                logger.debug("no result from peer=%s epoch=%d reason=%s", peer, epoch, error)
        return None

    async def _fetch_from(self, peer: PeerId, epoch: int, lineage: Lineage, num_elements: int) -> Committed:
        stream = await self._transport.open(peer, RESULTS_PROTOCOL, timeout_s=TIMEOUT_S)
        try:
            fields = {"fingerprint": self._fingerprint, "epoch": epoch, "lineage": lineage}
            await stream.send(Message("get", fields), timeout_s=TIMEOUT_S)
            answer = await stream.receive(timeout_s=TIMEOUT_S)
            if answer.kind != "result":
                raise BadMessage(f"{peer} does not have the round after epoch {epoch}")
            certified = await self._believe(peer, answer, (epoch, lineage))
            mean = await _receive_vector(stream, num_elements)
            await stream.send(Message("thanks"), timeout_s=TIMEOUT_S)
            return Committed(mean=mean, record=certified.record)
        finally:
            stream.close()

    async def _answer(self, stream: Stream) -> None:
        request = await stream.receive(timeout_s=TIMEOUT_S)
        kept = self._rounds.get((request.get("epoch", int), Lineage(request.get("lineage", str))))
        if kept is None or request.get("fingerprint", str) != self._fingerprint:
            await stream.send(Message("unknown"), timeout_s=TIMEOUT_S)
            return
        committed, certificate = kept
        fields = Certified(committed.record, certificate).to_fields()
        await stream.send(Message("result", fields), timeout_s=TIMEOUT_S)
        mean = committed.mean.astype("<f4", copy=False)
        await send_bytes(stream, mean.data, timeout_s=TIMEOUT_S)
        await stream.receive(timeout_s=TIMEOUT_S)  # "thanks": everything arrived


async def _receive_vector(stream: Stream, num_elements: int) -> Vector:
    data = await receive_bytes(stream, 4 * num_elements, timeout_s=TIMEOUT_S)
    vector = np.frombuffer(data, dtype="<f4").astype(np.float32, copy=False)
    if not np.isfinite(vector).all():
        raise BadMessage("the mean has NaN or Inf")
    return vector
