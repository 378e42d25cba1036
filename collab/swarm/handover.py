"""The last trainer's state must not leave with it: a backbone is asked to fetch it first."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass

from collab.errors import NetworkError
from collab.net.base import Stream, Transport
from collab.net.wire import Message
from collab.types import PeerId

logger = logging.getLogger(__name__)

HANDOVER_PROTOCOL = "collab/handover/1"
REPLY_TIMEOUT_S = 120.0
"""A backbone may fetch gigabytes before it answers; the offering side sets its own limit."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A state that is about to leave."""

    fingerprint: str
    epoch: int
    eval_loss: float = math.nan
    """Of this very state; NaN: not measured."""


TakeState = Callable[[PeerId, Offer], Awaitable[bool]]
"""Fetch the snapshot of an epoch from a peer; whether it is safe with us now."""


async def offer_state(transport: Transport, backbones: list[PeerId], offer: Offer, timeout_s: float) -> bool:
    """Ask ``backbones`` in turn to take our state; whether one of them has it now."""
    try:
        async with asyncio.timeout(timeout_s):
            for backbone in backbones:
                try:
                    if await _offer(transport, backbone, offer):
                        return True
                except NetworkError as error:
                    logger.warning("backbone did not take our state peer=%s reason=%s", backbone, error)
    except TimeoutError:
        logger.warning("no backbone took our state of epoch %d within %.0f s", offer.epoch, timeout_s)
    return False


async def _offer(transport: Transport, backbone: PeerId, offer: Offer) -> bool:
    stream = await transport.open(backbone, HANDOVER_PROTOCOL, timeout_s=REPLY_TIMEOUT_S)
    try:
        await stream.send(Message("offer", asdict(offer)), timeout_s=REPLY_TIMEOUT_S)
        return (await stream.receive(timeout_s=REPLY_TIMEOUT_S)).get("taken", bool)
    finally:
        stream.close()


async def serve_handover(transport: Transport, fingerprint: str, take: TakeState) -> None:
    """Answer trainers that leave with the newest state."""

    async def answer(stream: Stream) -> None:
        message = await stream.receive(timeout_s=REPLY_TIMEOUT_S)
        offer = Offer(message.get("fingerprint", str), message.get("epoch", int), message.get("eval_loss", float))
        taken = offer.fingerprint == fingerprint and await take(stream.remote, offer)
        await stream.send(Message("answer", {"taken": taken}), timeout_s=REPLY_TIMEOUT_S)

    await transport.serve(HANDOVER_PROTOCOL, answer)
