"""Vectors that every peer knows: an element follows from seed, round, peer and position, so each checks its result."""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
AnyFloats = Floats | NDArray[np.float16]
CHUNK_ELEMENTS = 1 << 20
RUN_ELEMENTS = 64
MAX_RUNS = 512
TILE_ELEMENTS = 2_000_003
"""A float16 vector repeats itself after so many: it may be a billion long. A prime, so that nothing that is cut by the
engine begins where a tile does, and would be as good in another place."""
SPREAD = 3**-0.5
"""Root mean square of elements that are uniform in [-1, 1)."""


def elements(seed: int, number: int, peer: int, positions: NDArray[np.uint32]) -> Floats:
    """Elements of ``peer``'s vector in round ``number`` at ``positions``: uniform in [-1, 1), in steps of 2^-23.

    The mixing is the finaliser of MurmurHash3 (Appleby, public domain): every bit of a position changes every bit.
    """
    name = hashlib.sha256(f"{seed}:{number}:{peer}".encode()).digest()
    bits = positions ^ np.uint32(int.from_bytes(name[:4], "little"))
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        bits ^= bits >> np.uint32(shift)
        bits *= np.uint32(factor)
    bits ^= bits >> np.uint32(16)
    return (bits >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1.0)


def half_elements(seed: int, number: int, peer: int, positions: NDArray[np.uint32]) -> NDArray[np.float16]:
    """The same of a float16 vector."""
    return elements(seed, number, peer, positions % np.uint32(TILE_ELEMENTS)).astype(np.float16)


def vector(seed: int, number: int, peer: int, num_elements: int) -> Floats:
    """All of ``peer``'s vector in round ``number``."""
    values = np.empty(num_elements, np.float32)
    for start in range(0, num_elements, CHUNK_ELEMENTS):
        stop = min(start + CHUNK_ELEMENTS, num_elements)
        values[start:stop] = elements(seed, number, peer, np.arange(start, stop, dtype=np.uint32))
    return values


def half_vector(seed: int, number: int, peer: int, num_elements: int) -> NDArray[np.float16]:
    """The same in float16; a second for each billion elements."""
    values = np.empty(num_elements, np.float16)
    tile = half_elements(seed, number, peer, np.arange(min(num_elements, TILE_ELEMENTS), dtype=np.uint32))
    for start in range(0, num_elements, TILE_ELEMENTS):
        values[start : start + TILE_ELEMENTS] = tile[: num_elements - start]
    return values


def weight(peer: int) -> float:
    """Samples behind ``peer``'s vector: different enough to see that weights count."""
    return 16.0 + peer % 3


def tolerance(codec: str, weights: Mapping[int, float], dtype: str = "float32") -> float:
    """Root mean square error up to which a run of elements counts as averaged.

    ``none``: float32 rounding. ``half``: two roundings to float16, as a mean in float16 has whatever the codec.
    ``auto``: half of what a missing sender changes.
    """
    if codec == "auto":
        return SPREAD / 2 * min(weights.values()) / sum(weights.values())
    return 1e-6 if (codec, dtype) == ("none", "float32") else 5e-4


Gap = tuple[int, int, int]
"""A peer of whom nothing is in a stretch of the result: its index, first element, element behind the last."""


def fraction_averaged(
    mean: AnyFloats,
    seed: int,
    number: int,
    weights: Mapping[int, float],
    max_error: float,
    gaps: Sequence[Gap] = (),
) -> float:
    """Share of ``mean`` that is the weighted mean of the vectors of ``weights``' peers, by runs spread over all of it.

    Args:
        max_error: root mean square within a run of 64 elements.
        gaps: where peers died before they had sent their part; there the mean is that of the others.
    """
    starts = np.unique(np.linspace(0, max(0, len(mean) - RUN_ELEMENTS), MAX_RUNS).astype(np.int64))
    positions = starts[:, None] + np.arange(min(RUN_ELEMENTS, len(mean)))
    expected, total = np.zeros(positions.shape), np.zeros(positions.shape)
    known = half_elements if mean.dtype == np.float16 else elements
    for peer, samples in sorted(weights.items()):
        values = known(seed, number, peer, positions.astype(np.uint32))
        share = np.full(positions.shape, samples)
        for start, stop in [(start, stop) for index, start, stop in gaps if index == peer]:
            share[(positions >= start) & (positions < stop)] = 0.0
        expected += values.astype(np.float64) * share
        total += share
    errors = np.sqrt(((mean[positions] - expected / np.maximum(total, 1e-9)) ** 2).mean(axis=1))
    return float((errors <= max_error).mean())


def digest(mean: AnyFloats) -> str:
    """Names the bytes of a result."""
    return hashlib.blake2b(np.ascontiguousarray(mean).data, digest_size=16).hexdigest()
