"""The last trainer's state must not leave with it: a backbone is asked to fetch it first."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass

from collab.averaging.flow import kept_alive
from collab.averaging.timeouts import MeasuredTimeouts
from collab.errors import NetworkError
from collab.net.base import Stream, Transport
from collab.net.wire import Message
from collab.types import PeerId

logger = logging.getLogger(__name__)

HANDOVER_PROTOCOL = "collab/handover/2"
FINAL_HANDOVER_S = 120.0
"""For a trainer to hand over its state when the run is finished, and nobody is in a hurry."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A state that is about to leave."""

    fingerprint: str
    epoch: int
    eval_loss: float = math.nan
    """Of this very state; NaN: not measured."""


TakeState = Callable[[PeerId, Offer], Awaitable[bool]]
"""Fetch the snapshot of an epoch from a peer; whether it is safe with us now."""


async def offer_state(
    transport: Transport, timeouts: MeasuredTimeouts, backbones: list[PeerId], offer: Offer, timeout_s: float
) -> bool:
    """Ask ``backbones`` in turn to take our state; whether one of them has it now.

    Args:
        timeout_s: for all of them; one that says nothing, not even that it is fetching, is given up before.
    """
    try:
        async with asyncio.timeout(timeout_s):
            for backbone in backbones:
                try:
                    if await _offer(transport, timeouts, backbone, offer):
                        return True
                except NetworkError as error:
                    logger.warning("backbone did not take our state peer=%s reason=%s", backbone, error)
    except TimeoutError:
        logger.warning("no backbone took our state of epoch %d within %.0f s", offer.epoch, timeout_s)
    return False


async def _offer(transport: Transport, timeouts: MeasuredTimeouts, backbone: PeerId, offer: Offer) -> bool:
    limit_s = timeouts.answer_s(backbone)
    stream = await transport.open(backbone, HANDOVER_PROTOCOL, timeout_s=limit_s)
    try:
        await stream.send(Message("offer", asdict(offer)), timeout_s=limit_s)
        while (answer := await stream.receive(timeout_s=timeouts.part_s)).kind == "wait":
            pass  # it may fetch gigabytes
        return answer.get("taken", bool)
    finally:
        stream.close()


async def serve_handover(
    transport: Transport, timeouts: MeasuredTimeouts, fingerprint: str, take: TakeState
) -> None:
    """Answer trainers that leave with the newest state."""

    async def answer(stream: Stream) -> None:
        message = await stream.receive(timeout_s=timeouts.answer_s())
        offer = Offer(message.get("fingerprint", str), message.get("epoch", int), message.get("eval_loss", float))
        async with kept_alive(stream, timeouts):
            taken = offer.fingerprint == fingerprint and await take(stream.remote, offer)
        await stream.send(Message("answer", {"taken": taken}), timeout_s=timeouts.answer_s())

    await transport.serve(HANDOVER_PROTOCOL, answer)
