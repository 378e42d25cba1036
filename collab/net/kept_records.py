"""What a DHT node keeps for others: hivemind's storage, mended where records of ours would suffer."""

import heapq
from collections.abc import Callable
from typing import Any

from collab.net.hivemind_parts import storage, timed_storage

OLD_ENDS = 16
"""And as many as there are records: ends of records that were replaced, which are remembered at most."""


def mend(kept: storage.DHTLocalStorage) -> None:
    """Change how ``kept`` stores a record under a key and a name.

    - It takes a record that it has already, and does not refuse it like an older one. Any may come twice: whoever gets
      to know a keeper sends it what it should have, beside the author's own call.
    - An older record that comes after a newer one has no effect. hivemind's would end the newer one with the older.
    - Ends of records that were replaced are not remembered until then, which may be hours.
    """
    store: Callable[[Any, Any, bytes, float], bool] = kept.store_subkey

    def store_subkey(key: Any, subkey: Any, value: bytes, expiration_time: float) -> bool:
        known = _records(kept, key)
        earlier = known.get(subkey) if known is not None else None
        if earlier is not None and earlier.expiration_time >= expiration_time:
            return bool(earlier == (value, expiration_time))
        is_taken = store(key, subkey, value, expiration_time)
        for one in (kept, _records(kept, key)):
            if one is not None:
                _forget_old_ends(one)
        return is_taken

    kept.store_subkey = store_subkey


def _records(kept: storage.DHTLocalStorage, key: Any) -> storage.DictionaryDHTValue | None:
    """Those under a key, by name."""
    found = kept.get(key)
    return found.value if found is not None and isinstance(found.value, storage.DictionaryDHTValue) else None


def _forget_old_ends(timed: timed_storage.TimedStorage) -> None:
    if len(timed.expiration_heap) > 2 * len(timed.data) + OLD_ENDS:
        timed.expiration_heap = list(timed.key_to_heap.values())
        heapq.heapify(timed.expiration_heap)
