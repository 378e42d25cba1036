"""Vectors that every peer knows: an element follows from seed, round, peer and position, so each checks its result."""

import hashlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
CHUNK_ELEMENTS = 1 << 20
RUN_ELEMENTS = 64
MAX_RUNS = 512
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


def vector(seed: int, number: int, peer: int, num_elements: int) -> Floats:
    """All of ``peer``'s vector in round ``number``."""
    values = np.empty(num_elements, np.float32)
    for start in range(0, num_elements, CHUNK_ELEMENTS):
        stop = min(start + CHUNK_ELEMENTS, num_elements)
        values[start:stop] = elements(seed, number, peer, np.arange(start, stop, dtype=np.uint32))
    return values


def weight(peer: int) -> float:
    """Samples behind ``peer``'s vector: different enough to see that weights count."""
    return 16.0 + peer % 3


def tolerance(codec: str, weights: Mapping[int, float]) -> float:
    """Root mean square error up to which a run of elements counts as averaged.

    ``none``: float32 rounding. ``half``: two roundings to float16. ``auto``: half of what a missing sender changes.
    """
    if codec == "auto":
        return SPREAD / 2 * min(weights.values()) / sum(weights.values())
    return {"none": 1e-6, "half": 5e-4}[codec]


def fraction_averaged(mean: Floats, seed: int, number: int, weights: Mapping[int, float], max_error: float) -> float:
    """Share of ``mean`` that is the weighted mean of the vectors of ``weights``' peers, by runs spread over all of it.

    Args:
        max_error: root mean square within a run of 64 elements.
    """
    starts = np.unique(np.linspace(0, max(0, len(mean) - RUN_ELEMENTS), MAX_RUNS).astype(np.int64))
    positions = starts[:, None] + np.arange(min(RUN_ELEMENTS, len(mean)))
    expected = np.zeros(positions.shape)
    for peer, samples in sorted(weights.items()):
        values = elements(seed, number, peer, positions.astype(np.uint32))
        expected += values.astype(np.float64) * (samples / sum(weights.values()))
    errors = np.sqrt(((mean[positions] - expected) ** 2).mean(axis=1))
    return float((errors <= max_error).mean())


def digest(mean: Floats) -> str:
    """Names the bytes of a result."""
    return hashlib.blake2b(np.ascontiguousarray(mean).data, digest_size=16).hexdigest()
