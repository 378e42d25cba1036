"""Dialling a peer that may be dialling us."""

import asyncio
import random

from collab.net.hivemind_parts import P2P, ControlFailure, Multiaddr, PeerID

MET = ("error reading handshake message", "dial backoff")
"""In the daemon's words: two handshakes met, or it still waits after that."""
AGAIN_S = 0.1, 0.5
"""Shortest and longest time before the next attempt: some round trips, so that one side comes first."""


async def connect(p2p: P2P, peer: PeerID, address: Multiaddr) -> None:
    """Connect to ``peer``; the caller limits the time.

    Over long ways two peers that dial each other at once meet in one TCP connection, and both handshakes fail. Each
    dials again after a time of its own. The daemon tries all addresses of ``peer`` that it knows, and names what became
    of each: what became of ``address`` counts, while others may be backing off again and again.

    Raises:
        ControlFailure: the daemon could not connect for any other reason.
    """
    while True:
        try:
            await p2p._client.connect(peer, [address])
            return
        except ControlFailure as error:
            if not any(sign in _of(address, str(error)) for sign in MET):
                raise
        await asyncio.sleep(random.uniform(*AGAIN_S))


def _of(address: Multiaddr, told: str) -> str:
    """What the daemon tells of one address; all that it tells, if it knows the address by another name."""
    return next((line for line in told.splitlines() if f"[{address}]" in line), told)
