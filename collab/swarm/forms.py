"""What states look like: names, data types and shapes. Those of another model are told by them, without being read."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from collab.errors import CorruptState, ShapeMismatch
from collab.swarm.snapshots import MAX_HEADER_BYTES, MOST_SHOWN, SCALARS, PackedSnapshot

Shape = tuple[int, ...]
Forms = Mapping[str, tuple[str, Shape]]
"""Data type, as safetensors names it, and shape, by the names of a snapshot; of a scalar the type is empty."""
MODEL, OPTIMIZER = "model.", "optimizer."
"""How names begin."""
QUANTISATION_KEYS = ("qmap", "absmax")
"""How the keys of bitsandbytes' tables begin; any other optimiser state has its parameter's shape or is a scalar."""


def header_bytes(packed: PackedSnapshot) -> int:
    """How long the header of a state says to be."""
    return int.from_bytes(memoryview(packed.data)[:8], "little")


def forms_of(packed: PackedSnapshot, most_bytes: int = MAX_HEADER_BYTES) -> Forms:
    """Of what a state has of the model and its optimiser; only its header is read.

    Args:
        most_bytes: of that header; lists within lists take dozens of times their length in memory.

    Raises:
        CorruptState: it is no safetensors file, or its header is longer.
    """
    data, length, epoch = memoryview(packed.data), header_bytes(packed), packed.manifest.epoch
    if length > most_bytes:
        text = f"the snapshot of epoch {epoch} has a header of {length} bytes, where at most {most_bytes} were expected"
        raise CorruptState(text)
    try:
        header = json.loads(bytes(data[8 : 8 + length]))
        scalars = json.loads(header.pop("__metadata__", {}).get(SCALARS, "{}"))
        if header.keys() & scalars.keys():
            raise ValueError("a scalar has the name of a tensor")
        tensors = {name: (str(one["dtype"]), tuple(map(int, one["shape"]))) for name, one in header.items()}
        forms = tensors | {name: ("", shape_of(value)) for name, value in scalars.items()}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CorruptState(f"the snapshot of epoch {epoch} is no safetensors file: {error}") from error
    return {name: form for name, form in forms.items() if name.startswith((MODEL, OPTIMIZER))}


def shape_of(value: Any) -> Shape:
    """Of a tensor, or of a JSON value.

    Raises:
        CorruptState: it has none.
    """
    try:
        return tuple(np.shape(value))
    except ValueError as error:
        raise CorruptState("a list in the optimiser's state has rows of several lengths") from error


def of_model(forms: Forms) -> Forms:
    """Without what an optimiser keeps, which comes with the first steps."""
    return {name: form for name, form in forms.items() if name.startswith(MODEL)}


def check_forms(theirs: Forms, ours: Forms) -> None:
    """
    Args:
        ours: of what is no parameter of the model, but a buffer, we do not know that: an optimiser may keep something
            for that, too, as far as we can tell.

    Raises:
        ShapeMismatch: theirs are those of another model, or its optimiser's.
    """
    there, here = of_model(theirs), of_model(ours)
    for name in sorted(there.keys() | here.keys()):
        if there.get(name) != here.get(name):
            that, this = (f"{one[0]} {[*one[1]]}" if one else "missing" for one in (there.get(name), here.get(name)))
            what = f"{name[:MOST_SHOWN]} is {that[:MOST_SHOWN]} there, {this[:MOST_SHOWN]} here"
            raise ShapeMismatch(what, hint="the state belongs to another model")
    shapes = {name.removeprefix(MODEL): shape for name, (_, shape) in here.items()}
    for name, (_, shape) in theirs.items():
        if name.startswith(OPTIMIZER):
            parameter_and_key(name, shape, shapes)


def parameter_and_key(name: str, shape: Shape, shapes: Mapping[str, Shape]) -> tuple[str, str]:
    """Of which parameter something of an optimiser's state is, and under which key.

    Args:
        name: of a tensor or scalar of a snapshot, of this ``shape``.
        shapes: of the model's parameters, by name.

    Raises:
        ShapeMismatch: it is that of another model.
    """
    parameter, _, key = name.removeprefix(OPTIMIZER).rpartition(".")
    if parameter not in shapes:
        text = f"the snapshot has optimiser state for {parameter[:MOST_SHOWN]}, which this model lacks"
        raise ShapeMismatch(text, hint="the state belongs to another model")
    if shape not in ((), (1,), shapes[parameter]) and not key.startswith(QUANTISATION_KEYS):
        what = f"optimiser state {key[:MOST_SHOWN]} of {parameter}"
        raise ShapeMismatch(f"{what} has shape {str(shape)[:MOST_SHOWN]}, not {shapes[parameter]}")
    return parameter, key
