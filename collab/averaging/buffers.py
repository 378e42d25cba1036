"""Memory for results, used again round after round.

A machine of a cloud gives memory that a process has not touched yet at a few hundred MB/s, several times slower than
a round on a fast link needs it; memory that the process has had before is there at once.
"""

import weakref
from typing import Any

import numpy as np

from collab.types import AnyVector

LARGEST_BYTES = 128 << 20
"""Of a buffer that is kept for the next round; larger ones are given back, since between rounds they are missed."""
MAX_SPARE = 2
"""Buffers in nobody's hands: of the round under way and of one that left the history meanwhile."""


class Buffers:
    """Lends arrays; the memory of one that nobody refers to any more, nor to a part of it, is lent again."""

    def __init__(self) -> None:
        self._spare: list[AnyVector] = []

    def take(self, num_elements: int, dtype: np.dtype[np.float32] | np.dtype[np.float16]) -> AnyVector:
        """[num_elements] of ``dtype``, of any values."""
        fitting = [index for index, one in enumerate(self._spare) if (len(one), one.dtype) == (num_elements, dtype)]
        memory: Any = self._spare.pop(fitting[0]) if fitting else np.empty(num_elements, dtype)
        lent: Any = np.frombuffer(memoryview(memory), dtype)  # not a view: parts of it keep this array alive
        if memory.nbytes <= LARGEST_BYTES:
            weakref.finalize(lent, self._back, memory).atexit = False
        vector: AnyVector = lent
        return vector

    def _back(self, memory: AnyVector) -> None:
        """Keep the newest: the vector's length may have changed."""
        self._spare.append(memory)
        del self._spare[:-MAX_SPARE]
