"""Which files a task may have beside the tensors of a checkpoint: others must be able to take them from the Hub."""

import re
from collections.abc import Collection

FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
"""Names come from others, and become names on our disk."""
MAX_FILES = 64
"""Of a checkpoint, with the tensors."""
TENSORS = ("model.safetensors", "optimizer.safetensors")
PAGES = frozenset({"README.md", "run.yaml", "loss.svg", "samples_per_s.svg", "learning_rate.svg"})
"""What a repository holds beside its checkpoint, like all that begins with ``PREFIX``."""
PREFIX = "collab_"


def why_unfit(names: Collection[str]) -> str:
    """Why a checkpoint with files of a task of these names cannot be published; empty: it can."""
    if len(names) > MAX_FILES - len(TENSORS):
        return f"the task has {len(names)} files for each checkpoint, and {MAX_FILES - len(TENSORS)} have room"
    taken = sorted(name for name in names if name in PAGES or name in TENSORS or name.startswith(PREFIX))
    if taken:
        return f"the task's file {taken[0]} has a name that the run itself uses beside each checkpoint"
    odd = sorted(name for name in names if not FILE_NAME.fullmatch(name))
    return f"the task's file {odd[0]!r} has a name that not every machine takes" if odd else ""
