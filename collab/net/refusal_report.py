"""Telling others whom this peer refused: for people who look at the swarm from outside."""

import math

from collab.errors import BadMessage
from collab.metrics.records import safe_reason
from collab.metrics.refusals import Refusals, Refused, safe_peer
from collab.net.base import Stream, Transport
from collab.net.quotas import REPORT_PROTOCOL
from collab.net.wire import Message
from collab.types import PeerId

MAX_ROWS = 100
"""Most refused first; 10 KB."""
TIMEOUT_S = 3.0
"""Of one step: ten round trips of 300 ms; who asks looks from outside, and asks each peer once."""


async def serve_report(transport: Transport, refusals: Refusals) -> None:
    """Answer whoever asks."""

    async def answer(stream: Stream) -> None:
        await stream.receive(timeout_s=TIMEOUT_S)
        rows = [[row.peer, row.reason, row.count, row.first_at_s, row.last_at_s] for row in refusals.rows()[:MAX_ROWS]]
        await stream.send(Message("refusals", {"rows": rows}), timeout_s=TIMEOUT_S)
        await stream.receive(timeout_s=TIMEOUT_S)  # "thanks": everything arrived

    await transport.serve(REPORT_PROTOCOL, answer)


async def fetch_report(transport: Transport, peer: PeerId) -> list[Refused]:
    """Whom ``peer`` says it refused; nothing of it is proven, and all of it is safe to show.

    Raises:
        NetworkError: it does not answer, or nonsense.
    """
    stream = await transport.open(peer, REPORT_PROTOCOL, timeout_s=TIMEOUT_S)
    try:
        await stream.send(Message("refusals?"), timeout_s=TIMEOUT_S)
        answer = await stream.receive(timeout_s=TIMEOUT_S)
        rows = [_checked(row) for row in answer.rows("rows", str, str, int, float, float)[:MAX_ROWS]]
        await stream.send(Message("thanks"), timeout_s=TIMEOUT_S)
        return rows
    finally:
        stream.close()


def _checked(row: list[object]) -> Refused:
    peer, reason, count, first_at_s, last_at_s = row
    if not (isinstance(count, int) and isinstance(first_at_s, float) and isinstance(last_at_s, float)):
        raise BadMessage("a refusal that is no count with two times")
    if not (0 <= count < 1 << 53 and math.isfinite(first_at_s) and math.isfinite(last_at_s)):
        raise BadMessage(f"{count} refusals between {first_at_s} and {last_at_s}")
    return Refused(
        peer=safe_peer(str(peer)),
        reason=safe_reason(str(reason)),
        count=count,
        first_at_s=first_at_s,
        last_at_s=last_at_s,
    )
