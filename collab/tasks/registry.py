"""From a run file to a task."""

from collections.abc import Collection, Mapping
from pathlib import Path

from collab.config import CausalLMTask, ForeignTask, ImageClassificationTask, Run
from collab.errors import DataError
from collab.tasks.base import Task

TOKENIZER_FILE = "tokenizer.json"
"""The asset of causal_lm."""

_ORGANISER = "organiser"
"""Who reads a streamed dataset to train the tokenizer: no peer, so that any machine would make the same one."""


def make_assets(run: Run, *, base_dir: Path, cache_dir: Path) -> dict[str, bytes]:
    """What the organiser's machine makes once, and what then travels with the run; checks the task on the way.

    Args:
        run: the run file.
        base_dir: the run file's folder, where relative paths in it start.
        cache_dir: where a trained tokenizer is kept; with the same data the second call takes it from there.

    Raises:
        ConfigError: ``task.model`` is no model that can be built.
        DataError: the data or the tokenizer cannot be read.
    """
    match run.task:
        case CausalLMTask():
            from collab.tasks.causal_lm import make_tokenizer

            return {TOKENIZER_FILE: make_tokenizer(run.task, seed=run.seed, base_dir=base_dir, cache_dir=cache_dir,
                                                   peer_id=_ORGANISER)}
        case ImageClassificationTask() | ForeignTask():
            return {}


def build_task(run: Run, *, assets: Mapping[str, bytes], cache_dir: Path, peer_id: str,
               base_dir: Path | None = None, allowed: Collection[str] = ()) -> Task:
    """Make the task of a run.

    Args:
        run: the run file.
        assets: what :func:`make_assets` returned on the organiser's machine.
        cache_dir: where encoded text is kept; processes may share it.
        peer_id: decides which part of a streamed dataset this machine keeps.
        base_dir: where a relative ``task.data.path`` starts; the current directory unless given.
        allowed: modules of others that the owner of this machine has allowed.

    Raises:
        ConfigError: ``task.model`` is no model that can be built, or the task's module is not allowed or not here.
        DataError: the tokenizer is missing or cannot be used. Text is read later, when it is first needed.
    """
    match run.task:
        case CausalLMTask():
            from collab.data.sources import Reader
            from collab.tasks.causal_lm import CausalLM

            if TOKENIZER_FILE not in assets:
                raise DataError(f"the run came without its {TOKENIZER_FILE}",
                                hint="ask the organiser for a new invite; the backbone makes this file when it starts")
            reader = Reader(seed=run.seed, peer_id=peer_id, base_dir=base_dir or Path())
            return CausalLM(run.task, assets[TOKENIZER_FILE], cache_dir=cache_dir, reader=reader)
        case ImageClassificationTask():
            from collab.tasks.image_classification import ImageClassification

            return ImageClassification(run.task)
        case ForeignTask():
            from collab.foreign import load_class

            made: Task = load_class(run.task.module, run.task.sha256, run.task.class_name, allowed)(**run.task.options)
            return made
