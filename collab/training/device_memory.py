"""When a device's memory is full, or it fails: how torch says so, and what a person can do about it."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from collab.errors import DeviceFull

SAYS_FULL = ("out of memory", "ALLOC_FAILED")
"""In texts of CUDA and its libraries, where no memory is left before torch's own allocator asks for any."""
SAYS_FAILED = ("CUDA error", "HIP error", "CUDNN_STATUS")
"""In texts of a device, or its libraries, that did not do what it was asked to."""
HINT = "end what else uses the device, raise --gpu-memory where it is set, or join with --device cpu"


def is_full(error: BaseException) -> bool:
    """Whether this is about the device's memory."""
    if not isinstance(error, RuntimeError):
        return False
    return isinstance(error, torch.cuda.OutOfMemoryError) or any(words in str(error) for words in SAYS_FULL)


def is_of_device(error: BaseException) -> bool:
    """Whether the device has failed, or its memory is full. After most failures it does nothing more for a process."""
    return is_full(error) or (isinstance(error, RuntimeError) and any(words in str(error) for words in SAYS_FAILED))


def device_full(what: str, error: BaseException | None = None) -> DeviceFull:
    """
    Args:
        what: did not fit.
        error: that torch has raised; what its frames hold is let go, since most of it is on the device.
    """
    if error is not None:
        traceback.clear_frames(error.__traceback__)
    return DeviceFull(f"the device's memory is too small: {what}", hint=HINT)


@contextmanager
def room_for(what: str) -> Iterator[None]:
    """For work on a device.

    Raises:
        DeviceFull: its memory is full.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_full(error):
            raise
        raise device_full(what, error) from None


def first_line(error: BaseException) -> str:
    """What happened, without the advice to programmers that CUDA's errors end with."""
    return (str(error).splitlines() or [type(error).__name__])[0]
