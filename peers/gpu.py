"""How much of a GPU's memory a peer may take. Imports torch; only commands that train import this module."""

from typing import Protocol

import torch

from collab.errors import ConfigError

BYTES_PER_GB = 1e9
LEAST_FRACTION = 0.001


class Gpu(Protocol):
    """One device whose memory can be limited."""

    @property
    def total_bytes(self) -> int:
        """Of its memory."""
        ...

    def limit(self, fraction: float) -> None:
        """Take no more than this part of it, above 0, at most 1; whoever asks for more gets an error."""
        ...


class CudaGpu:
    """Implements ``Gpu`` over torch."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @property
    def total_bytes(self) -> int:
        return int(torch.cuda.get_device_properties(self._device).total_memory)

    def limit(self, fraction: float) -> None:
        torch.cuda.set_per_process_memory_fraction(fraction, self._device)


def gpu_of(device: torch.device) -> Gpu | None:
    """The GPU that a device is; None: it is none."""
    return CudaGpu(device) if device.type == "cuda" else None


def keep_within(gpu: Gpu | None, gigabytes: float) -> None:
    """Let this process take at most so much of the device's memory.

    Raises:
        ConfigError: there is no GPU to limit.
    """
    if gpu is None:
        raise ConfigError(
            "--gpu-memory is for a GPU, and this peer computes on the processor",
            hint="leave it out, or name a GPU with --device",
        )
    gpu.limit(min(max(gigabytes * BYTES_PER_GB / gpu.total_bytes, LEAST_FRACTION), 1.0))
