"""The store in memory."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from collab.swarm.parameter_store.base import ParameterStore
from collab.swarm.parameter_store.in_process import InProcessStore
from tests.swarm.parameter_store.store_contract import FIRST, StoreContract, now, push


class TestInProcessStore(StoreContract):
    @contextmanager
    def open(self) -> Iterator[tuple[ParameterStore, ParameterStore]]:
        store = InProcessStore()
        yield store, store

    def test_what_was_read_never_changes(self) -> None:
        with self.begun() as (store, _):
            before = now(store)
            store.assimilate(push(0, FIRST + 1))
            np.testing.assert_array_equal(before.values, FIRST)
            with pytest.raises(ValueError, match="read-only"):
                before.values[0] = 1
