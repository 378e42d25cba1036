"""A reducer whose contributors are played by the test."""

import numpy as np

from collab.averaging.plan import PART_ELEMENTS
from collab.averaging.reduction import Reduction, Work
from collab.compression.base import Codec, codec_by_name
from collab.types import PeerId, Vector

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")
NONE, HALF = codec_by_name("none"), codec_by_name("float16")


def vector(*values: float) -> Vector:
    return np.array(values, np.float32)


def make_reduction(
    num_elements: int,
    weights: dict[PeerId, float],
    *,
    codec: Codec = NONE,
    own: dict[PeerId, Vector] | None = None,
    readers: int = 1,
) -> Reduction:
    """The work of a reducer that contributes ``own``, if anything, itself; all encodings are by ``codec``."""
    own = own or {}

    def own_part(start: int, stop: int) -> Vector:
        return next(iter(own.values()))[start:stop]

    return Reduction(
        Work(
            num_elements=num_elements,
            part_elements=PART_ELEMENTS,
            weights=weights,
            codecs={peer: codec for peer in weights if peer not in own},
            own_part=own_part,
            encode=lambda start, mean: codec.encode(mean),
            readers=readers,
        )
    )


async def mean_of(reduction: Reduction, codec: Codec = NONE) -> Vector:
    """The only part of a short span, as a receiver decodes it."""
    await reduction.finished()
    assert reduction.num_parts == 1
    data = (await reduction.result(0)).data
    return codec.decode(data, memoryview(data).nbytes // codec.encoded_bytes(1))
