"""Getting to the peers that an invite names, and staying in touch with them."""

import asyncio
import logging
from collections.abc import Collection

from collab.errors import BootstrapFailed, NetworkError
from collab.net.hivemind_directory import HivemindDirectory
from collab.net.hivemind_net import HivemindTransport
from collab.types import PeerId

logger = logging.getLogger(__name__)

DIAL_TIMEOUT_S = 5.0
"""Of one attempt, before anything is known: ten round trips of 300 ms, and the pauses of two busy machines."""
RETRY_PAUSE_S = 1.0
RECONNECT_S = 5.0
"""How often a lost bootstrap peer is looked for: it may have been restarted."""


async def dial_any(
    transport: HivemindTransport, addresses: tuple[str, ...], timeout_s: float, *, may_be_alone: bool = False
) -> list[PeerId]:
    """Dial all addresses at once, again and again, until at least one answers.

    Args:
        may_be_alone: whether it is fine that nobody does.

    Raises:
        BootstrapFailed: none did within ``timeout_s``.
    """
    if not addresses:
        return []
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + timeout_s
    reasons: dict[str, str] = {}
    while True:
        results = await asyncio.gather(*(_dial(transport, address) for address in addresses))
        reached = [result for result in results if not isinstance(result, NetworkError)]
        if reached:
            return reached
        for address, error in zip(addresses, results, strict=True):
            if isinstance(error, NetworkError):  # libp2p's later answers only say that it is backing off
                reasons.setdefault(address, error.message)
        if loop.time() + RETRY_PAUSE_S >= give_up_s:
            if may_be_alone:
                logger.info("nobody is here yet: %s", reasons)
                return []
            listing = "\n".join(f"  {address}: {reason}" for address, reason in reasons.items())
            raise BootstrapFailed(
                f"none of the {len(addresses)} bootstrap addresses answered within {timeout_s:.0f} s:\n{listing}",
                hint="is the backbone running and its port reachable from here? ask the organiser for a fresh invite",
            )
        await asyncio.sleep(RETRY_PAUSE_S)


async def _dial(transport: HivemindTransport, address: str) -> PeerId | NetworkError:
    try:
        return await transport.dial(address, timeout_s=DIAL_TIMEOUT_S)
    except NetworkError as error:
        return error


async def stay_connected(
    transport: HivemindTransport, directory: HivemindDirectory, addresses: Collection[str]
) -> None:
    """Look for bootstrap peers for ever: a restarted backbone knows nobody until somebody greets it.

    Args:
        addresses: may grow meanwhile.
    """
    while True:
        await asyncio.sleep(RECONNECT_S)
        connected = await transport.connected_peers()
        for address in tuple(addresses):
            peer = PeerId(address.rpartition("/p2p/")[2])
            if peer == transport.peer_id:
                continue
            if peer in connected or not isinstance(await _dial(transport, address), NetworkError):
                await directory.greet(peer)
