"""Memory of results is lent again, and never while somebody still looks at it."""

import gc

import numpy as np
import pytest
import torch

from collab.averaging import buffers as module
from collab.averaging.buffers import MAX_SPARE, Buffers
from collab.types import AnyVector

SINGLE = np.dtype(np.float32)


def address(vector: AnyVector) -> int:
    """Of its first element."""
    return vector.__array_interface__["data"][0]


def test_memory_that_nobody_holds_is_lent_again() -> None:
    buffers = Buffers()
    first = buffers.take(1000, SINGLE)
    where = address(first)
    del first
    assert address(buffers.take(1000, SINGLE)) == where


@pytest.mark.parametrize("hold", [lambda v: v, lambda v: v[10:20][2:], lambda v: torch.from_numpy(v[5:])])
def test_memory_that_somebody_looks_at_is_not_lent(hold) -> None:
    buffers = Buffers()
    lent = buffers.take(1000, SINGLE)
    lent[:] = 7.0
    held = hold(lent)
    del lent
    gc.collect()
    other = buffers.take(1000, SINGLE)
    other[:] = 1.0
    assert (np.asarray(held) == 7.0).all()
    del held
    gc.collect()
    assert len(buffers._spare) == 1


def test_another_length_or_type_gets_memory_of_its_own() -> None:
    buffers = Buffers()
    del_me = buffers.take(1000, SINGLE)
    del del_me
    assert buffers.take(999, SINGLE).shape == (999,)
    half = buffers.take(1000, np.dtype(np.float16))
    assert half.dtype == np.float16
    assert half.shape == (1000,)


def test_little_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = Buffers()
    many = [buffers.take(1000, SINGLE) for _ in range(MAX_SPARE + 3)]
    many.clear()
    assert len(buffers._spare) == MAX_SPARE
    monkeypatch.setattr(module, "LARGEST_BYTES", 4000)
    for num_elements in (1000, 1001):
        del_me = buffers.take(num_elements, SINGLE)
        del del_me
    assert {len(one) for one in buffers._spare} == {1000}
