"""What DHT nodes keep and read: hivemind's storage, mended where records of ours would suffer."""

import asyncio
import heapq
import random
from collections.abc import Awaitable, Callable, Coroutine
from functools import cache, wraps
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

from collab.net.hivemind_parts import DHTRecord, MSGPackSerializer, dht_pb2, protocol, routing, storage

PAGE_BYTES = 1 << 20
"""Of values under one key that are told at once, some three times what an honest swarm has there (calculated)."""
KEYS_ASKED = 64
"""In one question at most; nodes ask for sixteen when they read, and for one when they look for where to store."""
NODES_TOLD, ID_BYTES = 64, 64
"""Of those near to a key that an answer names at most, and of the id of each: nodes name 20, with ids of 38 bytes."""
OLD_ENDS = 16
"""And as many as there are records: ends of records that were replaced, which are remembered at most."""
_UNDER_WAY: set[asyncio.Task[Any]] = set()
"""What nobody waits for; asyncio itself would forget tasks that nobody holds."""


@cache
def mend() -> None:
    """Change how this process stores records that have a name under their key, as a keeper and as a reader.

    - A record that is there already is taken, and not refused like an older one. Any may come twice: whoever gets to
      know a keeper sends it what it should have, beside the author's own call.
    - An older record that comes after a newer one has no effect, from another keeper's answer to a search either.
      hivemind's would end the newer one with the older.
    - Ends of records that were replaced are not remembered until then, which may be hours.
    - All that another keeper hands over is looked at, record by record. hivemind's takes nothing of a key after the
      first record of which it knows a newer one, and nothing at all where one is not right.
    - Of what is kept under a key no more is told than fits a message, and of more other records than the last time.
      hivemind's gives no answer at all then, and anybody may fill a page. Questions for too many keys are refused.
    - An answer that names very many nodes, or one by an id as long as a message, is none: hivemind's would write such
      an id as text, which takes the square of its length, hours for some megabytes, and nothing else runs meanwhile.
    - Where there are no more keepers than each record should have, each newcomer is handed all of them. hivemind's gets
      only those of keys to which it is nearer than another keeper.
    - Who keeps nothing, as most of a swarm, is not greeted with each record and each question. hivemind's starts a task
      for that, which then finds that there is no node.
    - Requests go without hivemind's signatures on them, which nobody here asks for, and without the code around each.
    """
    protocol.AuthRPCWrapper = _wrapped_if_signed(protocol.AuthRPCWrapper)
    storage.DictionaryDHTValue.store = _newer_only(storage.DictionaryDHTValue.store)
    storage.DictionaryDHTValue.packb = _packed_as_fits
    storage.DHTLocalStorage.store_subkey = _without_old_ends(storage.DHTLocalStorage.store_subkey)
    protocol.DHTProtocol.rpc_store = _record_by_record(protocol.DHTProtocol.rpc_store)
    protocol.DHTProtocol.rpc_find = _greeting_nodes(protocol.DHTProtocol.rpc_find)
    protocol.DHTProtocol.get_stub = _wary_of_answers(protocol.DHTProtocol.get_stub)
    protocol.DHTProtocol.update_routing_table = _to_any_of_few(protocol.DHTProtocol.update_routing_table)


def _wrapped_if_signed(wrapper: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped_if_signed(requests: Any, role: Any, authorizer: Any, **options: Any) -> Any:
        return requests if authorizer is None else wrapper(requests, role, authorizer, **options)

    return wrapped_if_signed


def _newer_only(store: Callable[..., bool]) -> Callable[..., bool]:
    @wraps(store)
    def newer_only(records: Any, name: Any, value: Any, expiration_time: float) -> bool:
        known = records.data.get(name)
        if known is not None and known.expiration_time >= expiration_time:
            return bool(known == (value, expiration_time))
        is_taken = store(records, name, value, expiration_time)
        _forget_old_ends(records)
        return is_taken

    return newer_only


def _without_old_ends(store: Callable[..., bool]) -> Callable[..., bool]:
    @wraps(store)
    def without_old_ends(kept: Any, *record: Any, **options: Any) -> bool:
        is_taken = store(kept, *record, **options)
        _forget_old_ends(kept)
        return is_taken

    return without_old_ends


def _forget_old_ends(timed: Any) -> None:
    if len(timed.expiration_heap) > 2 * len(timed.data) + OLD_ENDS:
        timed.expiration_heap = list(timed.key_to_heap.values())
        heapq.heapify(timed.expiration_heap)


def _packed_as_fits(records: Any) -> bytes:
    """In the place of ``DictionaryDHTValue.packb``."""
    rows = [[name, value, end_s] for name, (value, end_s) in records.items()]
    if sum(len(value) for _, value, _ in rows) > PAGE_BYTES:
        random.shuffle(rows)
        ends = accumulate(len(value) for _, value, _ in rows)
        rows = rows[: sum(end <= PAGE_BYTES for end in ends)]
    packed: bytes = MSGPackSerializer.dumps([records.maxsize, records.latest_expiration_time, rows])
    return packed


class _Nobody:
    """In the place of the node that a request comes from."""

    node_id = b""

    def __bool__(self) -> bool:
        return False


NOBODY = _Nobody()


def _greeting_nodes(rpc_find: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @wraps(rpc_find)
    async def greeting_nodes(node: Any, request: Any, context: Any) -> Any:
        if len(request.keys) > KEYS_ASKED:
            raise ValueError(f"{len(request.keys)} keys in one question are more than {KEYS_ASKED}")
        if not request.peer.node_id:
            request = SimpleNamespace(keys=request.keys, peer=NOBODY)
        return await rpc_find(node, request, context)

    return greeting_nodes


def _wary_of_answers(get_stub: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    @wraps(get_stub)
    def wary(node: Any, peer: Any) -> Any:
        stub = get_stub(node, peer)
        find = stub.rpc_find

        async def checked_find(request: Any, **options: Any) -> Any:
            answer = await find(request, **options)
            told = [result.nearest_peer_ids for result in answer.results]
            if any(len(ids) > NODES_TOLD or any(len(one) > ID_BYTES for one in ids) for ids in told):
                raise ValueError(f"an answer of {peer} names {sum(map(len, told))} nodes, or one by no id")
            return answer

        stub.rpc_find = checked_find
        return stub

    return wary


def _record_by_record(rpc_store: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @wraps(rpc_store)
    async def record_by_record(node: Any, request: Any, context: Any) -> Any:
        if request.peer.node_id:
            _beside(node.rpc_ping(dht_pb2.PingRequest(peer=request.peer), context))
        columns = request.keys, request.subkeys, request.values, request.expiration_time, request.in_cache
        taken = [_is_taken(node, *row) for row in zip(*columns, strict=True)]
        return dht_pb2.StoreResponse(store_ok=taken, peer=node.node_info)

    return record_by_record


def _is_taken(node: Any, key: bytes, name: bytes, value: bytes, end_s: float, in_cache: bool) -> bool:
    """Of a record, or of all that another keeper has under a key. What has no name is never kept (``OwnedRecords``)."""
    if name == node.IS_DICTIONARY:
        kept = node.serializer.loads(value)
        rows = [(node.serializer.dumps(one), record.value, record.expiration_time) for one, record in kept.items()]
        return min((_is_taken(node, key, *row, in_cache) for row in rows), default=True)  # ``all`` would stop early
    if not node.record_validator.validate(DHTRecord(key, name, value, end_s)):
        return False
    kept = node.cache if in_cache else node.storage
    return bool(kept.store_subkey(routing.DHTID.from_bytes(key), node.serializer.loads(name), value, end_s))


def _beside(work: Coroutine[Any, Any, Any]) -> None:
    task = asyncio.create_task(work)
    _UNDER_WAY.add(task)
    task.add_done_callback(_UNDER_WAY.discard)


def _to_any_of_few(update: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @wraps(update)
    async def to_any_of_few(node: Any, node_id: Any, peer_id: Any, responded: bool = True) -> None:
        met = node_id if node_id is not None else node.routing_table.get(peer_id=peer_id)
        is_new = responded and met is not None and met not in node.routing_table
        if is_new and (rows := _kept_for_any(node, met)):
            _beside(node.call_store(peer_id, *zip(*rows, strict=True), in_cache=False))
        await update(node, node_id, peer_id, responded)

    return to_any_of_few


def _kept_for_any(node: Any, met: Any) -> list[tuple[Any, Any, float]]:
    """Keys with values and ends that ``update`` does not hand over, of which we are the nearest keeper."""
    rows = []
    for key, kept in list(node.storage.items()):
        others = node.routing_table.get_nearest_neighbors(key, node.num_replicas, exclude=node.node_id)
        is_ours = bool(others) and node.node_id.xor_distance(key) < others[0][0].xor_distance(key)
        if is_ours and len(others) < node.num_replicas and met.xor_distance(key) >= others[-1][0].xor_distance(key):
            rows.append((key, kept.value, kept.expiration_time))
    return rows
