"""Sections of the run file: what is learnt, from what, how vectors travel, what is kept. Validated only here."""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator


class Section(BaseModel):
    """Root of all sections: immutable, and an unknown or misspelt field is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _refuse_truth(value: Any) -> Any:
    """Without this ``true`` and ``yes`` would become 1."""
    if isinstance(value, bool):
        raise ValueError("expected a number, not true or false")
    return value


Whole = Annotated[int, BeforeValidator(_refuse_truth)]
Real = Annotated[float, BeforeValidator(_refuse_truth)]


# -- what volunteers are told ----------------------------------------------------------------------------------------


OneLine = Annotated[str, Field(max_length=300, pattern=r"^[^\x00-\x1f\x7f]*$")]


class About(Section):
    """The organiser's word to those who are asked to take part; nothing follows from it."""

    purpose: OneLine = ""
    """What the model is for."""
    contact: OneLine = ""
    """Where questions go: an address, a page."""
    data_license: OneLine = ""
    """Of what is trained on."""
    model_license: OneLine = ""
    """Of what comes out of it."""


# -- data and task ---------------------------------------------------------------------------------------------------


Placement = Literal["shared", "local"]
"""``shared``: peers that have the same data divide it among themselves; ``local``: each site has data of its own, draws
its samples by itself, and tells nobody anything about them."""


class BuiltinData(Section):
    """The Python standard library's own source: real text that is on every machine."""

    source: Literal["builtin"] = "builtin"
    placement: Placement = "shared"
    max_megabytes: Real = Field(default=8.0, gt=0)


class FilesData(Section):
    """Local text, JSON lines or parquet files; each volunteer needs them under the same path."""

    source: Literal["files"]
    path: str
    """A file, a directory or a glob pattern; ``.txt .md .py`` are text, ``.jsonl`` and ``.parquet`` have a field."""
    text_field: str = "text"
    max_megabytes: Real = Field(default=200.0, gt=0)
    placement: Placement = "shared"


class HubData(Section):
    """A dataset of the Hugging Face Hub, streamed: shared, each shard by the peer that has its lease; local, by each
    peer in an order of its own, of which it keeps the first ``max_megabytes``.
    """

    source: Literal["hub"]
    dataset: str
    subset: str | None = None
    split: str = "train"
    text_field: str = "text"
    revision: str | None = None
    max_megabytes: Real = Field(default=200.0, gt=0)
    placement: Placement = "shared"


Data = Annotated[BuiltinData | FilesData | HubData, Field(discriminator="source")]


REMOTE_CODE = {"auto_map", "trust_remote_code", "custom_pipelines", "code_revision"}
"""Fields by which transformers would fetch and execute somebody's code."""


class CausalLMTask(Section):
    """Next-token prediction with a ``transformers`` causal language model."""

    name: Literal["causal_lm"]
    model: dict[str, Any]
    """A ``transformers`` configuration: ``model_type`` and its fields; the vocabulary size is set by the tokenizer."""
    sequence_length: Whole = Field(default=128, ge=8)
    vocab_size: Whole = Field(default=4096, ge=257)
    """Size of the byte-level BPE that the backbone trains when ``tokenizer`` is not given."""
    tokenizer: str | None = None
    """Path of a ``tokenizer.json`` on the organiser's machine; it travels with the run."""
    data: Data = BuiltinData()
    eval_samples: Whole = Field(default=64, ge=1)

    @model_validator(mode="after")
    def _check_model(self) -> "CausalLMTask":
        if not isinstance(self.model.get("model_type"), str):
            raise ValueError("task.model needs a model_type that transformers knows, for example gpt2 or llama")
        if forbidden := self.model.keys() & REMOTE_CODE:
            raise ValueError(f"task.model cannot have {min(forbidden)}: code never travels with a run")
        try:
            json.dumps(self.model, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"task.model holds a value that is no text, number, list or map: {error}") from error
        return self


class ImageClassificationTask(Section):
    """A small perceptron on scikit-learn's digits (1,797 images of 8 x 8): the miniature that runs everywhere."""

    name: Literal["image_classification"]
    hidden_sizes: tuple[Annotated[Whole, Field(ge=1)], ...] = (32,)
    eval_samples: Whole = Field(default=297, ge=1, le=1000)


class Foreign(Section):
    """A class in a module that is not of this package: each machine has its own copy, and its owner has allowed it."""

    name: Literal["module"]
    module: str = Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")
    """As it would be imported."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Of its one file."""
    class_name: str = Field(pattern=r"^[A-Za-z_]\w*$")
    options: dict[str, Any] = {}
    """What the class is made with, by name."""


class ForeignTask(Foreign):
    """A task of somebody's own; see ``collab.tasks.base.Task``."""

    placement: Placement = "shared"


Task = Annotated[CausalLMTask | ImageClassificationTask | ForeignTask, Field(discriminator="name")]


def placement_of(task: Task) -> Placement:
    """Where the data of a task lies; what every machine has is shared."""
    if isinstance(task, CausalLMTask):
        return task.data.placement
    return task.placement if isinstance(task, ForeignTask) else "shared"


# -- averaging -------------------------------------------------------------------------------------------------------


class Averaging(Section):
    """How vectors travel."""

    compression: Literal["exact", "half", "int8", "int4", "auto", "sparse", "sparse_both"] = "auto"
    """``exact``: float32; ``half``: float16; ``int8``, ``int4``: so many bits for everything, with error feedback;
    ``auto``: for each peer what its own link needs, with error feedback; ``sparse``: of 4096 elements each peer sends
    the 64 largest, the others when they have grown; ``sparse_both``: the signs of the largest ninth, at one level, and
    so the means."""
    reduction: Literal["mean", "clipped_mean", "median", "trimmed_mean", "centered_clip"] = "clipped_mean"
    """How contributions to a part become one. ``mean`` is large-batch training exactly, and one liar can spoil it; the
    others let liars move it only so far, at a price: see docs/robust.md. Whoever has a run's address may join."""
    max_share: Real = Field(default=1.0, gt=0, le=1)
    """No peer's weight is more than this of a round, whatever it claims; 1: no cap. Where liars may be, 0.2 or so."""
    worker_momentum: Real = Field(default=0.0, ge=0, lt=1)
    """Peers send running means of their gradients, which keep so much of themselves each epoch: see docs/robust.md."""

    @model_validator(mode="after")
    def _check_sparse(self) -> "Averaging":
        if self.compression in ("sparse", "sparse_both") and self.reduction in ("median", "trimmed_mean"):
            raise ValueError(
                f"compression {self.compression}: {self.reduction} takes what few peers send for a lie, and most "
                "elements are sent by few; choose reduction mean, clipped_mean or centered_clip"
            )
        return self


# -- what is kept ----------------------------------------------------------------------------------------------------


class Checkpoints(Section):
    """What the backbone writes to its disk."""

    every_epochs: Whole = Field(default=10, ge=1)
    keep: Whole = Field(default=3, ge=1)
