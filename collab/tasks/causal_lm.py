"""Next-token prediction on text, with any causal language model of ``transformers``."""

import json
import tempfile
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers
from numpy.typing import NDArray
from torch.nn import functional

from collab.config import CausalLMTask, HubData
from collab.data.made_once import Waits, not_now, patiently
from collab.data.shards import TokenShards
from collab.data.sources import Overseen, Reader, Split, unseen
from collab.data.tokens import (
    BlockRequest,
    Progress,
    end_token,
    no_progress,
    open_blocks,
    parse_tokenizer,
    run_tokenizer,
    vocabulary_size,
)
from collab.errors import DataError
from collab.tasks.base import Batch, Evaluation
from collab.tasks.evaluation import evaluating
from collab.tasks.language_model import Vocabulary, model_configuration

_EVAL_BATCH = 8
"""Samples at once: logits of a large vocabulary take much more memory than the model."""

_TEMPERATURE = 0.8
_TOP_K = 50
"""Sampling a little below the model's own odds, and never from the long tail: what small models need to make sense."""


class CausalLM:
    """Blocks of text of one length; every token is predicted from those before it.

    Text is read and encoded when it is first needed (``num_samples``, ``batch``, ``evaluate``): that can take minutes,
    so ask in a worker, never in the event loop. A peer that only evaluates encodes no train text.
    """

    def __init__(self, section: CausalLMTask, tokenizer_json: bytes, *, cache_dir: Path, reader: Reader,
                 progress: Progress = no_progress, overseen: Overseen = unseen) -> None:
        """Check that the model of ``section`` can be built with this tokenizer.

        Raises:
            ConfigError: ``task.model`` is no model that can be built.
            DataError: the tokenizer cannot be used.
        """
        self._section = section
        self._tokenizer_json = _decoded(tokenizer_json, "tokenizer.json")
        self._cache_dir = cache_dir
        self._reader = reader
        self.progress, self.overseen = progress, overseen
        """Hears how much text is encoded, and what all text passes; may be set until that begins."""
        self.waits: Waits = patiently
        """Of train text that another process encodes just now; may be set until it is needed."""
        self._configuration = _configuration(section, self._tokenizer_json)

    def build_model(self) -> torch.nn.Module:
        """The model with transformers' own initialisation, float32 on the CPU."""
        model: torch.nn.Module = transformers.AutoModelForCausalLM.from_config(self._configuration)
        return model

    @property
    def num_samples(self) -> int:
        """Train samples on this machine; with a streamed dataset each machine has others.

        Raises:
            DataError: the text cannot be read or encoded.
        """
        return len(self._train_blocks)

    def batch(self, sample_ids: tuple[int, ...]) -> Batch:
        """Returns ``input_ids`` [samples, sequence_length] int64."""
        if self.shards is not None and self.shards.is_open:
            return Batch(sample_ids=sample_ids, tensors=_tensors(self.shards.rows(sample_ids)))
        return Batch(sample_ids=sample_ids, tensors=_tensors(self._train_blocks[list(sample_ids)]))

    @cached_property
    def shards(self) -> TokenShards | None:
        """The shards of a streamed dataset, each of which can be trained apart from the others; None: it is none."""
        section = self._section.data
        if not isinstance(section, HubData):
            return None
        request = BlockRequest(section=section, split=Split.TRAIN, sequence_length=self._section.sequence_length,
                               max_blocks=None, reader=self._reader)
        return TokenShards(request, self._tokenizer_json, self._cache_dir, self.progress, self.overseen)

    def loss(self, model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Cross entropy of the next token; samples are of one length: the mean over tokens is that over samples."""
        ids = tensors["input_ids"]
        # Not the model's own loss: which one that is depends on the name of its class.
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
        return functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    def read_held_out(self) -> None:
        """Read and encode what ``evaluate`` needs, which needs no device; it does so itself if nobody has.

        Raises:
            DataError: as ``evaluate``.
            BeingMade: another process does so just now; ``evaluate`` would wait for it.
        """
        if "_eval_blocks" not in vars(self):
            self._eval_blocks = self._blocks(Split.EVAL, self._section.eval_samples, not_now)

    def evaluate(self, model: torch.nn.Module) -> Evaluation:
        """Mean loss on at most ``eval_samples`` blocks, the first of the held-out text.

        Raises:
            DataError: there is no held-out text, or it cannot be read.
        """
        blocks = self._eval_blocks
        total = 0.0
        with evaluating(model) as device:
            for start in range(0, len(blocks), _EVAL_BATCH):
                tensors = _tensors(blocks[start:start + _EVAL_BATCH])
                samples = len(tensors["input_ids"])
                total += samples * self.loss(model, {"input_ids": tensors["input_ids"].to(device)}).item()
        return Evaluation(total / len(blocks))

    def checkpoint_files(self) -> Mapping[str, bytes]:
        """All that ``from_pretrained`` wants beside ``model.safetensors``: configuration, generation and tokenizer."""
        tokenizer = parse_tokenizer(self._tokenizer_json, origin="tokenizer.json")
        end, _ = end_token(tokenizer)
        generation = transformers.GenerationConfig.from_model_config(self._configuration)
        if generation.pad_token_id is None:
            generation.pad_token_id = generation.eos_token_id
        fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=end, eos_token=end,
                                                    pad_token=end, clean_up_tokenization_spaces=False,
                                                    model_max_length=self._section.sequence_length)
        with tempfile.TemporaryDirectory() as folder:
            self._configuration.save_pretrained(folder)
            generation.save_pretrained(folder)
            fast.save_pretrained(folder)
            files = {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}
        # The tokenizer as it travelled, and the class by the name that older releases of transformers know, too.
        settings = json.loads(files["tokenizer_config.json"]) | {"tokenizer_class": "PreTrainedTokenizerFast"}
        return files | {"tokenizer.json": self._tokenizer_json.encode(),
                        "tokenizer_config.json": (json.dumps(settings, indent=2) + "\n").encode()}

    @cached_property
    def _train_blocks(self) -> NDArray[Any]:
        return self._blocks(Split.TRAIN, None, self.waits)

    @cached_property
    def _eval_blocks(self) -> NDArray[Any]:
        return self._blocks(Split.EVAL, self._section.eval_samples, patiently)

    def _blocks(self, split: Split, max_blocks: int | None, waits: Waits) -> NDArray[Any]:
        request = BlockRequest(section=self._section.data, split=split, sequence_length=self._section.sequence_length,
                               max_blocks=max_blocks, reader=self._reader)
        return open_blocks(request, self._tokenizer_json, self._cache_dir, self.progress, self.overseen, waits)


def make_tokenizer(section: CausalLMTask, *, seed: int, base_dir: Path, cache_dir: Path, peer_id: str) -> bytes:
    """The run's ``tokenizer.json``: loaded from ``section.tokenizer``, or trained on the start of the train text.

    Raises:
        ConfigError: ``task.model`` is no model that can be built with it.
        DataError: the tokenizer or the text cannot be used.
    """
    # Before a tokenizer is trained for half a minute: most mistakes in task.model do not depend on it.
    model_configuration(section.model | {"vocab_size": section.vocab_size},
                        Vocabulary(size=section.vocab_size, end_id=0, sequence_length=section.sequence_length))
    if section.tokenizer is None:
        text = run_tokenizer(section.data, section.vocab_size,
                             Reader(seed=seed, peer_id=peer_id, base_dir=base_dir), cache_dir)
    else:
        path = base_dir / Path(section.tokenizer).expanduser()
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DataError(f"cannot read task.tokenizer {path}: {error.strerror}",
                            hint="check the path, or leave it out: a tokenizer is then trained") from error
        text = _decoded(content, str(path))
    _configuration(section, text)
    return text.encode()


def sample_text(model_dir: Path, prompt: str, max_new_tokens: int, seed: int) -> str:
    """Let a saved model go on from ``prompt``, on the CPU; what does not fit the model's positions is left out.

    Returns:
        The prompt, as far as the model saw it, and its continuation.
    """
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(model_dir, local_files_only=True)
    ids = tokenizer.encode(prompt) or [tokenizer.eos_token_id]
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is not None:
        max_new_tokens = min(max_new_tokens, positions - 1)
        ids = ids[-(positions - max_new_tokens):]
    start = torch.tensor([ids])
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        output = model.generate(input_ids=start, attention_mask=torch.ones_like(start), do_sample=True,
                                temperature=_TEMPERATURE, top_k=_TOP_K, max_new_tokens=max_new_tokens)
    text: str = tokenizer.decode(output[0], skip_special_tokens=True)
    return text


def _configuration(section: CausalLMTask, tokenizer_json: str) -> Any:
    tokenizer = parse_tokenizer(tokenizer_json, origin="tokenizer.json")
    _, end_id = end_token(tokenizer)
    vocabulary = Vocabulary(size=vocabulary_size(tokenizer), end_id=end_id, sequence_length=section.sequence_length)
    return model_configuration(section.model, vocabulary)


def _decoded(content: bytes, origin: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{origin} is no tokenizer.json: not UTF-8",
                        hint="task.tokenizer needs a file that the tokenizers library wrote") from error


def _tensors(blocks: NDArray[Any]) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.from_numpy(blocks.astype("int64"))}
