"""The last trainer's state must not leave with it: a backbone is asked to fetch it first."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from collab.errors import NetworkError
from collab.net.base import Stream, Transport
from collab.net.wire import Message
from collab.types import PeerId

logger = logging.getLogger(__name__)

HANDOVER_PROTOCOL = "collab/handover/1"
REPLY_TIMEOUT_S = 120.0
"""A backbone may fetch gigabytes before it answers; the offering side sets its own limit."""

TakeState = Callable[[PeerId, int], Awaitable[bool]]
"""Fetch the snapshot of an epoch from a peer; whether it is safe with us now."""


async def offer_state(
    transport: Transport, backbones: list[PeerId], fingerprint: str, epoch: int, timeout_s: float
) -> bool:
    """Ask ``backbones`` in turn to take our state of ``epoch``; whether one of them has it now."""
    try:
        async with asyncio.timeout(timeout_s):
            for backbone in backbones:
                try:
                    if await _offer(transport, backbone, fingerprint, epoch):
                        return True
                except NetworkError as error:
                    logger.warning("backbone did not take our state peer=%s reason=%s", backbone, error)
    except TimeoutError:
        logger.warning("no backbone took our state of epoch %d within %.0f s", epoch, timeout_s)
    return False


async def _offer(transport: Transport, backbone: PeerId, fingerprint: str, epoch: int) -> bool:
    stream = await transport.open(backbone, HANDOVER_PROTOCOL, timeout_s=REPLY_TIMEOUT_S)
    try:
        await stream.send(Message("offer", {"fingerprint": fingerprint, "epoch": epoch}), timeout_s=REPLY_TIMEOUT_S)
        return (await stream.receive(timeout_s=REPLY_TIMEOUT_S)).get("taken", bool)
    finally:
        stream.close()


async def serve_handover(transport: Transport, fingerprint: str, take: TakeState) -> None:
    """Answer trainers that leave with the newest state."""

    async def answer(stream: Stream) -> None:
        offer = await stream.receive(timeout_s=REPLY_TIMEOUT_S)
        is_ours = offer.get("fingerprint", str) == fingerprint
        taken = is_ours and await take(stream.remote, offer.get("epoch", int))
        await stream.send(Message("answer", {"taken": taken}), timeout_s=REPLY_TIMEOUT_S)

    await transport.serve(HANDOVER_PROTOCOL, answer)
