"""What the 16-bit codecs do with elements beyond their range."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from collab.types import Vector

Mask: TypeAlias = NDArray[np.bool_]
"""[num_elements] bool."""


def saturated(values: Vector, largest: float) -> tuple[Vector, Mask | None]:
    """Limit finite elements to ``largest``, since an infinity made by rounding would poison the mean.

    Returns:
        The elements within +-``largest``, with 0 for what is not finite, and where that is; None: nowhere. A vector
        that lies within the range already, as nearly all do, is returned itself.
    """
    with np.errstate(invalid="ignore"):
        if values.max(initial=0) <= largest and values.min(initial=0) >= -largest:  # False for NaN
            return values, None
        limited = values.copy()  # not np.clip: where a process flushes subnormal numbers, that does too
        limited[values > largest] = largest
        limited[values < -largest] = -largest
    not_finite = ~np.isfinite(values)
    limited[not_finite] = 0
    return limited, not_finite
