"""hivemind's storage as our keepers use it."""

import asyncio

import pytest

from collab.net.hivemind_parts import node, routing, storage, timed_storage
from collab.net.kept_records import OLD_ENDS, mend

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
