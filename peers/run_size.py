"""How large a run's state is, before anybody is told of the run."""

from dataclasses import replace
from pathlib import Path

from peers.workshop import Workshop


def state_bytes(checkpoints: Path, workshop: Workshop) -> tuple[int, Workshop]:
    """Bytes of the newest checkpoint's tensors; of the first state, if there is none yet.

    Returns:
        The bytes, and a workshop that hands out, once, the first state if that had to be made.
    """
    newest = max(checkpoints.glob("epoch-*"), default=None)
    if newest is not None:
        return sum(file.stat().st_size for file in newest.glob("*.safetensors")), workshop
    if workshop.make_first_state is None:
        return 0, workshop
    first = workshop.make_first_state()
    return sum(tensor.nbytes for tensor in first.tensors.values()), replace(workshop, make_first_state=[first].pop)
