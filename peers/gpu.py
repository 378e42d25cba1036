"""Which device is computed on, and how much of a GPU's memory a peer may take. Imports torch; only commands that
train, and the doctor's look at devices, import this module.
"""

from typing import Protocol

import torch

from collab.errors import CollabError, ConfigError, DeviceFull
from collab.training.device_memory import HINT, first_line, is_full

BYTES_PER_GB = 1e9
LEAST_FRACTION = 0.001
OTHER_BUILD = (
    "this PyTorch may be made for other devices or drivers: install the one for this machine, name another --device, "
    "or join with --device cpu"
)


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
        """
        Args:
            device: with its number, without which torch sets no limit.
        """
        self._device = device

    @property
    def total_bytes(self) -> int:
        return int(torch.cuda.get_device_properties(self._device).total_memory)

    def limit(self, fraction: float) -> None:
        torch.cuda.set_per_process_memory_fraction(fraction, self._device)


def gpu_of(device: torch.device) -> Gpu | None:
    """The GPU that a device is; None: it is none."""
    return CudaGpu(device) if device.type == "cuda" else None


def in_words(number: int) -> str:
    """A GPU's name and memory, or why torch does not tell."""
    try:
        card = torch.cuda.get_device_properties(number)
    except (RuntimeError, AssertionError) as error:
        return f"GPU {number}, of which torch says {first_line(error)!r}"
    return f"{card.name}, {card.total_memory / BYTES_PER_GB:.1f} GB"


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


def choose_device(wanted: str | None) -> torch.device:
    """The device a volunteer named, else the first GPU, else the CPU. A GPU is told by its number, and was tried.

    Raises:
        DeviceFull: other programs have its memory.
        ConfigError: the device is not there, or nothing can be computed on it.
    """
    wanted = wanted or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
        if device == torch.device("cuda"):
            device = torch.device("cuda", torch.cuda.current_device())
    except (RuntimeError, AssertionError) as error:
        raise _refusal(wanted, error) from error
    try_out(device)
    return device


def try_out(device: torch.device) -> None:
    """Compute forward and backward, as training does: a device may be there, and this PyTorch made for others.

    Raises:
        DeviceFull: other programs have its memory.
        ConfigError: it is not there, or nothing can be computed on it.
    """
    try:
        rows = torch.ones(8, 8, device=device, requires_grad=True)
        (gradient,) = torch.autograd.grad((rows @ rows).sum(), rows)
        gradient.sum().item()  # waits for the device, whose errors come late
    except (RuntimeError, AssertionError) as error:
        raise _refusal(str(device), error) from error


def _refusal(name: str, error: BaseException) -> CollabError:
    text = f"device {name!r} cannot be used: {first_line(error)}"
    return DeviceFull(text, hint=HINT) if is_full(error) else ConfigError(text, hint=OTHER_BUILD)
