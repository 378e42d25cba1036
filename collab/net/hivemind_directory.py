"""The real directory: hivemind's Kademlia DHT over the peer's own daemon, in the peer's own event loop."""

import asyncio
import math
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress

from collab.concurrency import end
from collab.errors import NetworkError, TimedOut
from collab.net import hivemind_time
from collab.net.base import Entry
from collab.net.hivemind_net import HivemindTransport
from collab.net.hivemind_parts import DHTNode, MSGPackSerializer, PeerID, routing, storage
from collab.net.keeper_calls import KeeperCalls, Unresponsive, beside_keys
from collab.net.kept_records import mend
from collab.net.lookups import CALL_FIRST_S
from collab.net.owned_records import OwnedRecords
from collab.types import PeerId

SHUTDOWN_S = 1.0
"""For the daemon to take the DHT's handlers back; it ends right after, and whoever leaves need not wait for that."""


class HivemindDirectory:
    """Implements ``Directory`` over hivemind's DHT node."""

    def __init__(self, node: DHTNode, me: PeerId) -> None:
        self._node, self.me = node, me
        self._calls = KeeperCalls(node.protocol)
        node.find_nearest_nodes = self._calls.remembering(beside_keys(node.find_nearest_nodes))
        self._storing: set[asyncio.Task[bool]] = set()
        """Under way, whether anybody still waits or not."""

    async def greet(self, peer: PeerId) -> None:
        """Let ``peer``'s DHT node and ours know each other: a restarted peer's node has forgotten everybody.

        As long as a call may take, whether it answers or not. Who keeps nothing is in nobody's tables, so it only
        greets whom it does not know itself: 64 of a backbone's peers would each 5 s.
        """
        protocol, other = self._node.protocol, PeerID.from_base58(peer)
        if protocol.client_mode and other in protocol.routing_table:
            return
        await protocol.call_ping(other)

    async def store(self, key: str, subkey: str, value: bytes, *, expires_at: float, timeout_s: float) -> bool:
        """A search for keepers that nobody waits for any more goes on until its calls have ended, as those of reads do.

        hivemind's cancelled ones leave a task for each node that they have visited, until Python looks for rings.
        """
        self._calls.question_s = timeout_s
        storing = asyncio.ensure_future(self._store(key, subkey, value, expires_at))
        self._storing.add(storing)
        storing.add_done_callback(self._has_ended)
        ended, _ = await asyncio.wait((storing,), timeout=timeout_s)
        if not ended:
            raise TimedOut(f"the DHT did not take {key} within {timeout_s:.1f} s")
        with _failures(key):
            return bool(storing.result())

    async def _store(self, key: str, subkey: str, value: bytes, expires_at: float) -> bool:
        """Whether any keeper takes it, which we may be ourselves; what the others say then hides that in hivemind."""
        if await self._calls.is_taken(self._node.store(key, value, expires_at, subkey=subkey)):
            return True
        kept = self._node.protocol.storage.get(routing.DHTID.generate(key))
        if kept is None or not isinstance(kept.value, storage.DictionaryDHTValue):
            return False
        record, signed = kept.value.get(subkey), MSGPackSerializer.dumps(value)
        return record is not None and record.expiration_time == expires_at and bool(record.value.startswith(signed))

    def _forget_questions(self) -> None:
        """Each key that was ever asked for would keep an empty set of searches in hivemind's node."""
        pending = self._node.pending_get_requests
        for key in [key for key, searches in pending.items() if not searches]:
            del pending[key]

    async def close(self) -> None:
        """End the searches that nobody waits for."""
        await end(*self._storing)

    def _has_ended(self, storing: asyncio.Task[bool]) -> None:
        self._storing.discard(storing)
        if not storing.cancelled():
            storing.exception()  # somebody's who waits, or nobody's

    async def get(self, key: str, *, timeout_s: float, fresh_until: float | None = None) -> Mapping[str, Entry]:
        self._calls.question_s = timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                with _failures(key):
                    found = await self._node.get(key, sufficient_expiration_time=fresh_until or math.inf)
        except TimeoutError:
            raise TimedOut(f"the DHT did not answer for {key} within {timeout_s:.1f} s") from None
        finally:
            self._forget_questions()
        if found is None or not isinstance(found.value, Mapping):
            return {}
        return {
            subkey: Entry(item.value, item.expiration_time)
            for subkey, item in found.value.items()
            if isinstance(subkey, str) and isinstance(item.value, bytes)
        }


@contextmanager
def _failures(key: str) -> Iterator[None]:
    """What ends a search inside hivemind, as nonsense from a keeper may, is a failure of the network like others."""
    try:
        yield
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise NetworkError(f"a search for {key} in the DHT failed: {error!r}") from error


@asynccontextmanager
async def open_directory(
    transport: HivemindTransport, known_peers: list[PeerId], *, rules: OwnedRecords, is_client: bool
) -> AsyncIterator[HivemindDirectory]:
    """Join the DHT through ``known_peers``, which must be connected already; none: start a new DHT.

    Args:
        rules: of what is kept; their clock, swarm time, replaces the DHT's own clock for the whole process.
        is_client: keep nothing for others, and be in nobody's tables.
    """
    hivemind_time.use(rules.now)
    mend()
    node = await DHTNode.create(
        p2p=transport._p2p,
        initial_peers=[f"/p2p/{peer}" for peer in known_peers],
        client_mode=is_client,
        record_validator=rules,
        wait_timeout=CALL_FIRST_S,  # for the first greetings; then ``KeeperCalls`` says
        ensure_bootstrap_success=False,
        strict=False,
    )
    node.blacklist = Unresponsive(node.blacklist.base_time, node.blacklist.backoff)
    directory = HivemindDirectory(node, transport.peer_id)
    try:
        yield directory
    finally:
        await directory.close()
        with suppress(TimeoutError):  # a dead daemon never confirms
            async with asyncio.timeout(SHUTDOWN_S):
                await node.shutdown()
