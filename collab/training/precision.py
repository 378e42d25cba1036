"""Arithmetic of forward and backward: float32, or autocast to 16 bits on a GPU."""

from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum

import torch

GROWTH_INTERVAL = 2000
"""Finite microbatches after which the loss scale is tried twice as large; torch's own choice."""
BFLOAT16_CAPABILITY = 8, 0
"""Of NVIDIA's GPUs that compute in it: Ampere and later."""


class Precision(StrEnum):
    """By the word that a volunteer writes."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """Context for the forward pass."""
        if self is Precision.FLOAT32:
            return nullcontext()
        return torch.autocast(device.type, torch.bfloat16 if self is Precision.BFLOAT16 else torch.float16)


def gpu_name(device: torch.device) -> str:
    """What is computed on, as the driver calls it; empty: the CPU."""
    if device.type == "cpu":
        return ""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def best_precision(device: torch.device) -> Precision:
    """What a machine does fastest without harm: bfloat16 where the GPU has it, else float16; float32 on CPUs.

    Asked of the device itself: what torch calls supported it may emulate, several times slower (T4, P100, RTX 20xx).
    """
    if device.type != "cuda":
        return Precision.FLOAT32
    has_bfloat16 = torch.version.hip is not None or torch.cuda.get_device_capability(device) >= BFLOAT16_CAPABILITY
    return Precision.BFLOAT16 if has_bfloat16 else Precision.FLOAT16


class LossScale:
    """Keeps half-precision gradients in range: halves on overflow, doubles after a long time without.

    Local to a peer: it divides its scale out before anything is shared.
    """

    def __init__(self) -> None:
        self.value = 65536.0
        self._finite_in_a_row = 0

    def update(self, was_finite: bool) -> None:
        """Learn from one microbatch."""
        if not was_finite:
            self.value = max(1.0, self.value / 2)
            self._finite_in_a_row = 0
            return
        self._finite_in_a_row += 1
        if self._finite_in_a_row == GROWTH_INTERVAL:
            self.value *= 2
            self._finite_in_a_row = 0
