"""What of a model and its optimiser peers share, by name."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch

from collab.errors import ShapeMismatch
from collab.swarm.forms import MODEL, OPTIMIZER, Forms, parameter_and_key, shape_of
from collab.swarm.snapshots import DTYPES, MOST_SHOWN, PackedSnapshot, Snapshot, unpack
from collab.types import Lineage

logger = logging.getLogger(__name__)


def model_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers by name, each storage once (tied weights under their first name)."""
    tensors: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor.detach()
    return tensors


def model_forms(build: Callable[[], torch.nn.Module]) -> Forms:
    """What a snapshot of a model that ``build`` makes has of it.

    Built without numbers, which takes no memory and no time; only a model that looks at its own while it is built, as
    somebody's task may have one, is built with them.
    """
    with torch.random.fork_rng(devices=[]):
        try:
            with torch.device("meta"):
                model = build()
        except Exception as error:  # noqa: BLE001 - of any kind; what is wrong in any case is raised by the next line
            logger.debug("the model cannot be built without numbers reason=%s", type(error).__name__)
            model = build()
    forms: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, tensor in model_tensors(model).items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        forms[f"{MODEL}{name}"] = DTYPES[dtype], tuple(tensor.shape)
    return forms


def optimizer_state(snapshot: Snapshot, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """``state_dict`` for the optimiser: its own groups with the snapshot's state.

    Raises:
        ShapeMismatch: it is that of another model.
    """
    packed = optimizer.state_dict()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    state: dict[str, dict[str, Any]] = {name: {} for name in names.values()}
    for name, key, value in optimizer_values(snapshot, model):
        state[name][key] = torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray) else value
    order = [names[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]
    packed["state"] = {index: state[name] for index, name in enumerate(order) if state[name]}
    return packed


def optimizer_values(snapshot: Snapshot, model: torch.nn.Module) -> Iterator[tuple[str, str, Any]]:
    """Of each parameter, by name, what a snapshot has of the optimiser's state, and under which key.

    Raises:
        CorruptState: it can be that of no model.
        ShapeMismatch: it is that of another model.
    """
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    for source in (snapshot.tensors, snapshot.scalars):
        for full_name, value in source.items():
            if full_name.startswith(OPTIMIZER):
                yield *parameter_and_key(full_name, shape_of(value), shapes), value


def unpack_for(model: torch.nn.Module, packed: PackedSnapshot) -> Snapshot:
    """A state as bytes, verified, for this model.

    Raises:
        CorruptState: it cannot be read.
        ShapeMismatch: it is that of another model.
    """
    snapshot = unpack(packed)
    tensors_of(snapshot, model)
    for _ in optimizer_values(snapshot, model):
        pass  # each is checked as it comes
    return snapshot


def tensors_of(snapshot: Snapshot, model: torch.nn.Module) -> dict[str, Any]:
    """A snapshot's tensors for a model, by the model's own names.

    Raises:
        ShapeMismatch: they are not those of this model.
    """
    own = model_tensors(model)
    theirs = {n.removeprefix("model."): t for n, t in snapshot.tensors.items() if n.startswith("model.")}
    if set(own) != set(theirs):
        name = min(set(own) ^ set(theirs))
        where = "the snapshot lacks" if name in own else "this model lacks"
        raise ShapeMismatch(f"{where} the tensor {name[:MOST_SHOWN]}", hint="the state belongs to another model")
    for name, tensor in own.items():
        if tuple(tensor.shape) != tuple(theirs[name].shape):
            there = str(tuple(theirs[name].shape))[:MOST_SHOWN]
            raise ShapeMismatch(
                f"tensor {name} has shape {tuple(tensor.shape)} here, {there} in the snapshot",
                hint="the state belongs to another model",
            )
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype != theirs[name].dtype.name:
            raise ShapeMismatch(
                f"tensor {name} is {dtype} here, {theirs[name].dtype} in the snapshot",
                hint="the state belongs to another model",
            )
    return theirs


def move(model: torch.nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Keep both on another device, in the same parameters; gradients are dropped."""
    model.zero_grad(set_to_none=True)
    model.to(device)
    for state in optimizer.state.values():
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                state[key] = value.to(device)


def as_numpy(tensor: torch.Tensor) -> Any:
    """In this machine's memory; of a tensor that is there already, no copy."""
    return tensor.detach().cpu().contiguous().numpy()


class OfHistory(Protocol):
    """A state that is on a history."""

    lineage: Lineage


@contextmanager
def whole_or_nobodys(state: OfHistory) -> Iterator[None]:
    """Around a change of ``state``. One that fails half-way, as where memory ends, leaves something that belongs to no
    history: nobody is given it, and no copy of it is made.
    """
    try:
        yield
    except BaseException:
        state.lineage = Lineage("")
        raise
