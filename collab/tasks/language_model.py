"""From ``task.model`` of a run file to a ``transformers`` configuration that can be built."""

import difflib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError

from collab.errors import ConfigError

_OURS = frozenset({"architectures", "dtype", "torch_dtype", "name_or_path", "transformers_version",
                   "is_encoder_decoder", "return_dict", "use_cache"})
"""Fields that follow from what this package does with a model; in a run file they would be mistakes."""

_CANNOT_BUILD = (StrictDataclassError, TypeError, ValueError, KeyError, AttributeError, RuntimeError, ImportError)
"""What transformers raises for values that do not fit together, by model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What a model must know of its tokenizer and its samples."""

    size: int
    end_id: int
    sequence_length: int


def model_configuration(fields: Mapping[str, Any], vocabulary: Vocabulary) -> Any:
    """Make the ``transformers`` configuration of a causal language model, and prove that its model can be built.

    The end-of-text token is begin and end of text. There is no padding token, unless ``fields`` names one: models give
    the embedding of their padding token no gradient, and end-of-text has to be learnt.

    Args:
        fields: ``model_type`` and any fields of its configuration.
        vocabulary: sizes that the model has to fit.

    Raises:
        ConfigError: unknown model type, misspelt field, or values that give no model; nothing was allocated.
    """
    model_type = fields["model_type"]
    kind = _configuration_class(model_type)
    _check_fields(fields, kind, model_type)
    if fields.get("vocab_size", vocabulary.size) != vocabulary.size:
        raise ConfigError(f"task.model.vocab_size is {fields['vocab_size']}, but the tokenizer has {vocabulary.size}",
                          hint="leave it out: the tokenizer sets it; task.vocab_size sets the tokenizer's")
    settings = {"bos_token_id": vocabulary.end_id, "eos_token_id": vocabulary.end_id, "pad_token_id": None}
    settings |= {name: value for name, value in fields.items() if name != "model_type"}
    settings["vocab_size"] = vocabulary.size
    _set_positions(settings, kind, vocabulary.sequence_length)
    try:
        configuration = kind(**settings)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(configuration)
    except _CANNOT_BUILD as error:
        reason = f"no such name {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise ConfigError(f"task.model gives no {model_type} model: {reason}",
                          hint="fix the field named above; transformers documents what each model takes") from error
    configuration.architectures = [type(model).__name__]
    configuration.dtype = "float32"
    return configuration


def _configuration_class(model_type: str) -> Any:
    kinds = transformers.CONFIG_MAPPING
    if model_type not in kinds:
        close = difflib.get_close_matches(model_type, list(kinds.keys()), n=3)
        meant = f"; did you mean {' or '.join(close)}?" if close else ""
        raise ConfigError(f"task.model.model_type {model_type!r} is not known to transformers "
                          f"{transformers.__version__}{meant}", hint="use for example gpt2 or llama")
    kind = kinds[model_type]
    if kind not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ConfigError(f"task.model.model_type {model_type!r} has no causal language model in transformers",
                          hint="use for example gpt2 or llama")
    return kind


def _known_fields(kind: Any) -> set[str]:
    # Configurations swallow unknown fields, so what they know is read from their signatures.
    named = {name for base in (kind, transformers.PreTrainedConfig)
             for name, parameter in inspect.signature(base.__init__).parameters.items()
             if parameter.kind is not inspect.Parameter.VAR_KEYWORD}
    return (named | set(kind.attribute_map) | {"model_type"}) - {"self"} - _OURS


def _check_fields(fields: Mapping[str, Any], kind: Any, model_type: str) -> None:
    known = _known_fields(kind)
    unknown = sorted(str(name) for name in fields if name not in known)
    if not unknown:
        return
    problems = []
    for name in unknown:
        close = difflib.get_close_matches(name, known, n=1)
        meant = " (is set by collab)" if name in _OURS else f" (did you mean {close[0]}?)" if close else ""
        problems.append(f"{name}{meant}")
    raise ConfigError(f"task.model has fields that {model_type} does not know: {', '.join(problems)}",
                      hint=f"it knows {', '.join(sorted(known))}")


def _set_positions(settings: dict[str, Any], kind: Any, sequence_length: int) -> None:
    names = {"max_position_embeddings", kind.attribute_map.get("max_position_embeddings", "max_position_embeddings")}
    if not names & _known_fields(kind):
        return
    given = [name for name in sorted(names) if name in settings]
    if not given:
        settings[kind.attribute_map.get("max_position_embeddings", "max_position_embeddings")] = sequence_length
    for name in given:
        if isinstance(settings[name], int) and settings[name] < sequence_length:
            raise ConfigError(f"task.model.{name} is {settings[name]}, but task.sequence_length is {sequence_length}",
                              hint="raise it, or leave it out: it is then set to the sequence length")
