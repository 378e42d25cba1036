"""hivemind's storage as our keepers use it."""

import asyncio
from types import SimpleNamespace

import pytest

from collab.net.hivemind_parts import (
    DHTRecord,
    MSGPackSerializer,
    PeerID,
    dht_pb2,
    node,
    protocol,
    routing,
    storage,
    timed_storage,
)
from collab.net.kept_records import KEYS_ASKED, OLD_ENDS, PAGE_BYTES, mend

KEY, NAME, OTHER = "key", "name", "other"


class Now:
    """The time by which records end."""

    def __init__(self) -> None:
        self.s = 1000.0


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Now:
    told = Now()
    monkeypatch.setattr(timed_storage, "get_dht_time", lambda: told.s)
    return told


def mended() -> storage.DHTLocalStorage:
    mend()
    mend()  # once is enough
    return storage.DHTLocalStorage()


def known(kept: storage.DHTLocalStorage, name: str = NAME) -> bytes | None:
    found = kept.get(KEY)
    record = found.value.get(name) if found is not None else None
    return record.value if record is not None else None


def test_a_record_that_is_there_is_taken_again_and_another_one_that_ends_with_it_is_not(now: Now) -> None:
    kept = mended()
    assert [kept.store(KEY, value, now.s + 60.0, subkey=NAME) for value in (b"1", b"1", b"2")] == [True, True, False]
    assert known(kept) == b"1"


def test_an_older_record_that_comes_late_does_not_end_the_newer_one(now: Now) -> None:
    kept = mended()
    assert kept.store(KEY, b"other", now.s + 60.0, subkey=OTHER)
    assert kept.store(KEY, b"newer", now.s + 60.0, subkey=NAME)
    assert not kept.store(KEY, b"older", now.s + 1.0, subkey=NAME)
    now.s += 2.0
    assert known(kept, OTHER) == b"other"
    assert known(kept) == b"newer"


def test_an_old_record_that_somebody_replays_to_a_reader_does_not_end_what_it_keeps(now: Now) -> None:
    """hivemind's node puts what others answer to its own records."""

    async def main() -> None:
        kept, answer = mended(), storage.DictionaryDHTValue()
        assert kept.store(KEY, b"newer", now.s + 60.0, subkey=NAME)
        assert answer.store(NAME, b"older", now.s + 1.0)
        search = node._SearchState(routing.DHTID.generate(KEY), now.s + 100.0)
        for found in (kept.get(KEY), timed_storage.ValueWithExpiration(answer, now.s + 1.0)):
            search.add_candidate(found, source_node_id=None)
        now.s += 2.0
        assert known(kept) == b"newer"

    asyncio.run(main())


def test_ends_of_records_that_were_replaced_are_forgotten_and_the_last_ones_count(now: Now) -> None:
    kept = mended()
    for number in range(1000):
        assert kept.store(KEY, b"%d" % number, now.s + 3600.0 + number, subkey=NAME)
        assert kept.store(f"key {number % 3}", b"1", now.s + 1.0 + number, subkey=NAME)
    for one in (kept, kept.get(KEY).value):
        assert len(one.expiration_heap) <= 2 * len(one.data) + OLD_ENDS
    assert known(kept) == b"999"
    now.s += 999.5
    assert kept.get("key 2") is None
    assert kept.get("key 0") is not None
    now.s += 1.0
    assert kept.get("key 0") is None
    assert list(kept.data) == [KEY]
    assert known(kept) == b"999"


REFUSED = b"refused"


def a_keeper() -> protocol.DHTProtocol:
    """Without a network: what it does with what others send it to keep."""
    mend()
    keeper = object.__new__(protocol.DHTProtocol)
    keeper.storage, keeper.cache, keeper.node_info = mended(), mended(), dht_pb2.NodeInfo()
    keeper.record_validator = Validator()
    return keeper


class Validator:
    def validate(self, record: DHTRecord) -> bool:
        return record.value != REFUSED


def stored(keeper: protocol.DHTProtocol, *rows: tuple[str, bytes, bytes, float]) -> list[bool]:
    """What a keeper answers to ``(key, name, value, end)``."""
    request = dht_pb2.StoreRequest(
        keys=[routing.DHTID.generate(key).to_bytes() for key, _, _, _ in rows],
        subkeys=[name for _, name, _, _ in rows],
        values=[value for _, _, value, _ in rows],
        expiration_time=[end_s for _, _, _, end_s in rows],
        in_cache=[False for _ in rows],
    )
    return list(asyncio.run(keeper.rpc_store(request, None)).store_ok)


def whole(now: Now, **records: tuple[bytes, float]) -> tuple[str, bytes, bytes, float]:
    """All that another keeper has under a key, as it hands it over."""
    kept = storage.DictionaryDHTValue()
    for name, (value, life_s) in records.items():
        assert kept.store(name, value, now.s + life_s)
    return KEY, protocol.DHTProtocol.IS_DICTIONARY, MSGPackSerializer.dumps(kept), kept.latest_expiration_time


def kept_by(keeper: protocol.DHTProtocol) -> dict[str, bytes]:
    found = keeper.storage.get(routing.DHTID.generate(KEY))
    return {name: record.value for name, record in found.value.items()} if found is not None else {}


def test_what_another_keeper_hands_over_is_taken_though_something_newer_is_there_already(now: Now) -> None:
    """The author of one was first to find the new keeper, and the goodbyes of others come with the hand-over only."""
    keeper, name = a_keeper(), MSGPackSerializer.dumps("b")
    assert stored(keeper, (KEY, name, b"newer", now.s + 60.0)) == [True]
    handed_over = whole(now, a=(b"1", 60.0), b=(b"older", 30.0), c=(b"3", 60.0))
    assert stored(keeper, handed_over, (KEY, MSGPackSerializer.dumps("d"), b"4", now.s + 9.0)) == [False, True]
    assert kept_by(keeper) == {"a": b"1", "b": b"newer", "c": b"3", "d": b"4"}


def test_of_what_another_keeper_hands_over_only_what_is_not_right_is_refused(now: Now) -> None:
    keeper = a_keeper()
    assert stored(keeper, whole(now, a=(REFUSED, 60.0), b=(b"2", 60.0))) == [False]
    assert kept_by(keeper) == {"b": b"2"}
    assert stored(keeper, whole(now, b=(b"2", 60.0), c=(b"3", 60.0))) == [True]


@pytest.mark.parametrize("node_id", [b"", routing.DHTID.generate("a node").to_bytes()])
def test_who_is_no_node_is_not_greeted_when_it_asks_or_tells_and_all_others_are(now: Now, node_id: bytes) -> None:
    async def main() -> list[object]:
        keeper, greeted = a_keeper(), list[object]()
        keeper.routing_table = routing.RoutingTable(routing.DHTID(1), bucket_size=20, depth_modulo=5)
        keeper.bucket_size = 20
        keeper.routing_table.add_or_update_node(routing.DHTID(5), PeerID(b"\0\1\2"))

        async def rpc_ping(request: dht_pb2.PingRequest, _: object) -> None:
            greeted.append(request.peer.node_id)

        keeper.rpc_ping = rpc_ping
        key, peer = routing.DHTID.generate(KEY).to_bytes(), dht_pb2.NodeInfo(node_id=node_id)
        name = MSGPackSerializer.dumps("a")
        row = {"keys": [key], "subkeys": [name], "values": [b"1"], "expiration_time": [now.s + 60.0]}
        told = await keeper.rpc_store(dht_pb2.StoreRequest(**row, in_cache=[False], peer=peer), None)
        asked = await keeper.rpc_find(dht_pb2.FindRequest(keys=[key], peer=peer), None)
        await asyncio.sleep(0)
        assert list(told.store_ok) == [True]
        assert list(asked.results[0].nearest_peer_ids) == [b"\0\1\2"]
        assert kept_by(keeper) == {"a": b"1"}
        return greeted

    assert asyncio.run(main()) == ([node_id, node_id] if node_id else [])


def asked(keeper: protocol.DHTProtocol, *keys: str) -> dht_pb2.FindResponse:
    request = dht_pb2.FindRequest(keys=[routing.DHTID.generate(key).to_bytes() for key in keys])
    return asyncio.run(keeper.rpc_find(request, None))


def test_of_a_page_that_anybody_has_filled_others_are_told_each_time_and_never_more_than_fits(now: Now) -> None:
    keeper = a_keeper()
    keeper.routing_table, keeper.bucket_size = routing.RoutingTable(routing.DHTID(1), 20, 5), 20
    names = [f"name {number}" for number in range(5 * PAGE_BYTES // 32_000)]
    rows = [(KEY, MSGPackSerializer.dumps(name), bytes(32_000), now.s + 60.0) for name in names]
    assert all(stored(keeper, *rows[:2]))
    few = MSGPackSerializer.loads(asked(keeper, KEY).results[0].value)
    assert {name for name, _ in few.items()} == set(names[:2])
    assert all(stored(keeper, *rows))
    told = set[str]()
    for _ in range(60):
        answer = asked(keeper, KEY)
        assert PAGE_BYTES * 0.9 < answer.ByteSize() < PAGE_BYTES * 1.1
        told |= {name for name, _ in MSGPackSerializer.loads(answer.results[0].value).items()}
    assert told == set(names)


def test_more_keys_than_any_node_asks_for_are_refused(now: Now) -> None:
    keeper = a_keeper()
    keeper.routing_table, keeper.bucket_size = routing.RoutingTable(routing.DHTID(1), 20, 5), 20
    assert len(asked(keeper, *map(str, range(KEYS_ASKED))).results) == KEYS_ASKED
    with pytest.raises(ValueError, match="keys in one question"):
        asked(keeper, *map(str, range(KEYS_ASKED + 1)))


@pytest.mark.parametrize(
    ("ids", "is_taken"),
    [
        ([b"id"] * 20, True),
        ([b"x" * 4_000_000], False),  # which would take hours
        ([b"id", b"x" * 65], False),
        ([bytes((number, 1)) for number in range(65)], False),
    ],
)
def test_an_answer_with_ids_as_long_as_a_message_or_with_very_many_is_none(
    now: Now, ids: list[bytes], is_taken: bool
) -> None:
    mend()
    key = routing.DHTID(7)
    nodes = [routing.DHTID(number).to_bytes() for number in range(len(ids))]
    result = dht_pb2.FindResult(type=dht_pb2.NOT_FOUND, nearest_node_ids=nodes, nearest_peer_ids=ids)
    answered: list[bool] = []

    async def answer(*_: object) -> dht_pb2.FindResponse:
        return dht_pb2.FindResponse(results=[result])

    async def update(*_: object, responded: bool) -> None:
        answered.append(responded)

    async def main() -> None:
        asker = a_keeper()
        asker.p2p, asker.authorizer = SimpleNamespace(call_protobuf_handler=answer), None
        asker.rpc_semaphore, asker.wait_timeout = asyncio.Semaphore(), 1.0
        asker.routing_table, asker.update_routing_table = routing.RoutingTable(routing.DHTID(1), 20, 5), update
        found = await asker.call_find(PeerID(b"teller"), [key])
        await asyncio.sleep(0)
        if is_taken:
            assert list(found[key][1].values()) == [PeerID(one) for one in ids]
            assert answered == []
        else:
            assert found is None
            assert answered == [False], "as one that has not answered"

    asyncio.run(main())


REPLICAS = 3


def handed_over(num_others: int, newcomer: int) -> list[str]:
    """What the keeper nearest to a key hands to a node that it meets.

    Args:
        num_others: nodes that it knows already, at distances 10, 20, 30 to the key.
        newcomer: distance to the key.
    """

    async def main() -> list[str]:
        keeper, calls = a_keeper(), list[str]()
        key = routing.DHTID(1 << 100)
        keeper.node_id, keeper.num_replicas = routing.DHTID(key ^ 1), REPLICAS
        keeper.routing_table = routing.RoutingTable(keeper.node_id, bucket_size=20, depth_modulo=5)
        for number in range(num_others):
            keeper.routing_table.add_or_update_node(routing.DHTID(key ^ (10 * number + 10)), f"peer {number}")
        assert keeper.storage.store(key, b"1", timed_storage.get_dht_time() + 60.0, subkey=NAME)

        async def call_store(peer: str, keys: tuple[int], *_: object, in_cache: bool) -> None:
            calls.extend([peer] * len(keys))

        keeper.call_store = call_store
        await keeper.update_routing_table(routing.DHTID(key ^ newcomer), "newcomer")
        await asyncio.sleep(0)
        assert "newcomer" in keeper.routing_table
        await keeper.update_routing_table(routing.DHTID(key ^ newcomer), "newcomer")  # known by now
        await asyncio.sleep(0)
        return calls

    return asyncio.run(main())


@pytest.mark.parametrize("newcomer", [5, 15, 99])
@pytest.mark.parametrize("num_others", [0, 1, 2])
def test_where_all_should_keep_everything_a_newcomer_is_handed_everything_once(
    now: Now, num_others: int, newcomer: int
) -> None:
    assert handed_over(num_others, newcomer) == ["newcomer"]


def test_where_there_are_enough_a_newcomer_is_handed_what_it_is_near_to(now: Now) -> None:
    assert handed_over(REPLICAS, 25) == ["newcomer"]
    assert handed_over(REPLICAS, 99) == []


def test_other_nodes_still_reach_what_takes_their_records(now: Now) -> None:
    """hivemind reads its handlers' types from their annotations."""
    a_keeper()
    protocol.DHTProtocol._rpc_handlers = None
    protocol.DHTProtocol._collect_rpc_handlers()
    handlers = {one.method_name: one for one in protocol.DHTProtocol._rpc_handlers}
    for name, request, response in (
        ("rpc_store", dht_pb2.StoreRequest, dht_pb2.StoreResponse),
        ("rpc_find", dht_pb2.FindRequest, dht_pb2.FindResponse),
    ):
        assert (handlers[name].request_type, handlers[name].response_type) == (request, response)
