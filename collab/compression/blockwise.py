"""Blockwise quantisation: each block of neighbours has one scale, and its elements are small multiples of that.

A scale is the block's largest magnitude divided by the largest multiple, cut to so few significant bits that multiple x
scale is exact in float32. So every machine decodes to the same numbers, an encoding encodes to itself again, and the
largest element still rounds to the largest multiple. A scale has a float32's exponent: a half's would underflow below
6e-8, where the gradients of large models live.
Source: absmax quantisation as in 8-bit Optimizers via Block-wise Quantization (Dettmers et al., 2022), linear codes.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from collab.types import Vector

Multiples: TypeAlias = NDArray[np.float32]
"""[num_elements] float32 that hold small integers."""

SMALLEST_SCALE = np.finfo(np.float32).smallest_normal
"""Below, a block counts as zero: subnormal numbers are slow, and some processes flush them."""


def num_blocks(num_elements: int, block_elements: int) -> int:
    return -(-num_elements // block_elements)


def block_scales(values: Vector, block_elements: int, largest_multiple: int, *, significant_bits: int) -> Vector:
    """The scale of each block, the last of which may be short.

    Returns:
        [num_blocks] float32 with ``significant_bits``; 0 for blocks of (nearly) zeros, NaN for those with NaN or Inf.
    """
    if not len(values):
        return np.zeros(0, np.float32)
    magnitudes = np.abs(values).view(np.int32)  # bits of positive floats sort like the floats, but faster, NaN last
    scales = np.maximum.reduceat(magnitudes, np.arange(0, len(values), block_elements)).view(np.float32)
    with np.errstate(under="ignore", invalid="ignore"):
        scales /= np.float32(largest_multiple)
    bits = scales.view(np.uint32)
    bits &= np.uint32(0x1_0000_0000 - (1 << (24 - significant_bits)))  # of a float32's 24 bits
    scales[scales < SMALLEST_SCALE] = 0
    scales[~np.isfinite(scales)] = np.nan
    return scales


def quantised(values: Vector, scales: Vector, block_elements: int) -> Multiples:
    """Multiples of its block's scale that are nearest to each element, half to even; 0 where the scale is 0 or NaN."""
    divisors = np.where(scales > 0, scales, np.float32(np.inf))
    multiples = np.repeat(divisors, block_elements)[: len(values)]
    with np.errstate(under="ignore", invalid="ignore"):
        np.divide(values, multiples, out=multiples)
    if np.isnan(scales).any():
        multiples[np.isnan(multiples)] = 0
    np.rint(multiples, out=multiples)
    return multiples


def dequantise(multiples: Multiples, scales: Vector, block_elements: int) -> Vector:
    """Turn multiples into elements, in place. Hostile scales give NaN, Inf, or finite numbers."""
    with np.errstate(all="ignore"):
        multiples *= np.repeat(scales, block_elements)[: len(multiples)]
    return multiples
