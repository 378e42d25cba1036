"""What DHT nodes keep and read: hivemind's storage, mended where records of ours would suffer."""

import heapq
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

from collab.net.hivemind_parts import storage

OLD_ENDS = 16
"""And as many as there are records: ends of records that were replaced, which are remembered at most."""


@cache
def mend() -> None:
    """Change how this process stores records that have a name under their key, as a keeper and as a reader.

    - A record that is there already is taken, and not refused like an older one. Any may come twice: whoever gets to
      know a keeper sends it what it should have, beside the author's own call.
    - An older record that comes after a newer one has no effect, from another keeper's answer to a search either.
      hivemind's would end the newer one with the older.
    - Ends of records that were replaced are not remembered until then, which may be hours.
    """
    storage.DictionaryDHTValue.store = _newer_only(storage.DictionaryDHTValue.store)
    storage.DHTLocalStorage.store_subkey = _without_old_ends(storage.DHTLocalStorage.store_subkey)


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
