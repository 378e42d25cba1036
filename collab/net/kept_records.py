"""What DHT nodes keep and read: hivemind's storage, mended where records of ours would suffer."""

import asyncio
import heapq
from collections.abc import Awaitable, Callable
from functools import cache, wraps
from itertools import islice
from types import SimpleNamespace
from typing import Any

from collab.net.hivemind_parts import dht_pb2, protocol, storage

OLD_ENDS = 16
"""And as many as there are records: ends of records that were replaced, which are remembered at most."""
_UNDER_WAY: set[asyncio.Task[Any]] = set()
"""Records that are handed over; asyncio itself would forget tasks that nobody holds."""


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
    - Where there are no more keepers than each record should have, each newcomer is handed all of them. hivemind's gets
      only those of keys to which it is nearer than another keeper.
    - Who keeps nothing, as most of a swarm, is not greeted with each record and each question. hivemind's starts a task
      for that, which then finds that there is no node.
    """
    storage.DictionaryDHTValue.store = _newer_only(storage.DictionaryDHTValue.store)
    storage.DHTLocalStorage.store_subkey = _without_old_ends(storage.DHTLocalStorage.store_subkey)
    protocol.DHTProtocol.rpc_store = _record_by_record(_greeting_nodes(protocol.DHTProtocol.rpc_store))
    protocol.DHTProtocol.rpc_find = _greeting_nodes(protocol.DHTProtocol.rpc_find)
    protocol.DHTProtocol.update_routing_table = _to_any_of_few(protocol.DHTProtocol.update_routing_table)


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


class _Nobody:
    """In the place of the node that a request comes from."""

    node_id = b""

    def __bool__(self) -> bool:
        return False


NOBODY = _Nobody()


def _greeting_nodes(answer: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @wraps(answer)
    async def greeting_nodes(node: Any, request: Any, context: Any) -> Any:
        if not request.peer.node_id:
            columns = {field.name: getattr(request, field.name) for field in request.DESCRIPTOR.fields}
            request = SimpleNamespace(**columns | {"peer": NOBODY})
        return await answer(node, request, context)

    return greeting_nodes


def _record_by_record(rpc_store: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @wraps(rpc_store)
    async def record_by_record(node: Any, request: Any, context: Any) -> Any:
        if node.IS_DICTIONARY not in request.subkeys:  # nothing of them is a whole key
            return await rpc_store(node, request, context)
        records, sizes = _records_of(node, request)
        response = await rpc_store(node, records, context)
        taken = iter(list(response.store_ok))
        response.ClearField("store_ok")
        response.store_ok.extend(all(list(islice(taken, size))) for size in sizes)
        return response

    return record_by_record


def _records_of(node: Any, request: Any) -> tuple[Any, list[int]]:
    """A ``StoreRequest`` with the records of whole keys one by one, and how many each of its entries had."""
    records, sizes = dht_pb2.StoreRequest(), []
    records.CopyFrom(request)
    columns = ("keys", "subkeys", "values", "expiration_time", "in_cache")
    for column in columns:
        records.ClearField(column)
    for key, name, value, end_s, in_cache in zip(*(getattr(request, column) for column in columns), strict=True):
        rows = [(name, value, end_s)]
        if name == node.IS_DICTIONARY:
            kept = node.serializer.loads(value)
            rows = [(node.serializer.dumps(one), record.value, record.expiration_time) for one, record in kept.items()]
        sizes.append(len(rows))
        for row in rows:
            for column, content in zip(columns, (key, *row, in_cache), strict=True):
                getattr(records, column).append(content)
    return records, sizes


def _to_any_of_few(update: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @wraps(update)
    async def to_any_of_few(node: Any, node_id: Any, peer_id: Any, responded: bool = True) -> None:
        met = node_id if node_id is not None else node.routing_table.get(peer_id=peer_id)
        is_new = responded and met is not None and met not in node.routing_table
        if is_new and (rows := _kept_for_any(node, met)):
            handing_over = asyncio.create_task(node.call_store(peer_id, *zip(*rows, strict=True), in_cache=False))
            _UNDER_WAY.add(handing_over)
            handing_over.add_done_callback(_UNDER_WAY.discard)
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
