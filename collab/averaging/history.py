"""The last committed means, kept for peers that missed them: catching up costs one vector, not a whole state."""

import logging
from collections import OrderedDict

import numpy as np

from collab.averaging.agreement import CommitRecord
from collab.averaging.base import Committed
from collab.errors import BadMessage, NetworkError
from collab.net.base import Stream, Transport
from collab.net.pieces import receive_bytes, send_bytes
from collab.net.wire import Message
from collab.types import Lineage, PeerId, Vector

logger = logging.getLogger(__name__)

RESULTS_PROTOCOL = "collab/results/2"
KEPT_BYTES = 128 << 20
"""Of all kept means together. Vectors of more than 32 million elements are not kept: their peers fetch the state, which
is not much more than two of them."""
KEPT_ROUNDS = 8
"""As far back as a peer can be and still catch up step by step."""
TIMEOUT_S = 20.0


class History:
    """Remembers committed rounds by the history that they continue."""

    def __init__(self, transport: Transport, fingerprint: str) -> None:
        self._transport, self._fingerprint = transport, fingerprint
        self._rounds: OrderedDict[tuple[int, Lineage], Committed] = OrderedDict()

    async def serve(self) -> None:
        """Begin to answer peers that missed a round."""
        await self._transport.serve(RESULTS_PROTOCOL, self._answer)

    def remember(self, committed: Committed) -> None:
        """Keep one committed round."""
        self._rounds[(committed.record.epoch, committed.record.lineage)] = committed
        while self._rounds and (len(self._rounds) > KEPT_ROUNDS or self._kept_bytes() > KEPT_BYTES):
            self._rounds.popitem(last=False)

    def _kept_bytes(self) -> int:
        return sum(committed.mean.nbytes for committed in self._rounds.values())

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
            record = CommitRecord.from_fields(answer.get("record", dict))
            if (record.epoch, record.lineage) != (epoch, lineage):
                raise BadMessage(f"{peer} sent another round than was asked for")
            mean = await _receive_vector(stream, num_elements)
            await stream.send(Message("thanks"), timeout_s=TIMEOUT_S)
            return Committed(mean=mean, record=record)
        finally:
            stream.close()

    async def _answer(self, stream: Stream) -> None:
        request = await stream.receive(timeout_s=TIMEOUT_S)
        committed = self._rounds.get((request.get("epoch", int), Lineage(request.get("lineage", str))))
        if committed is None or request.get("fingerprint", str) != self._fingerprint:
            await stream.send(Message("unknown"), timeout_s=TIMEOUT_S)
            return
        await stream.send(Message("result", {"record": committed.record.to_fields()}), timeout_s=TIMEOUT_S)
        mean = committed.mean.astype("<f4", copy=False)
        await send_bytes(stream, mean.data, timeout_s=TIMEOUT_S)
        await stream.receive(timeout_s=TIMEOUT_S)  # "thanks": everything arrived


async def _receive_vector(stream: Stream, num_elements: int) -> Vector:
    data = await receive_bytes(stream, 4 * num_elements, timeout_s=TIMEOUT_S)
    vector = np.frombuffer(data, dtype="<f4").astype(np.float32, copy=False)
    if not np.isfinite(vector).all():
        raise BadMessage("the mean has NaN or Inf")
    return vector
