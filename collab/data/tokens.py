"""Text to token ids: a byte-level BPE, and documents encoded once into a file that is mapped into memory."""

import logging
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from collab.config import Data
from collab.data.cache_keys import digest_of, key_of
from collab.data.made_once import Waits, left_at, make_once, patiently
from collab.data.sources import (
    NoText,
    Overseen,
    Reader,
    Split,
    documents,
    expected_bytes,
    source_state,
    unseen,
)
from collab.errors import BrokenOff, DataError, DataUnreachable

logger = logging.getLogger(__name__)

END_OF_TEXT = "<|endoftext|>"
_KNOWN_ENDS = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[SEP]")
"""What tokenizers of common models call the token between documents, in order of preference."""

_TOKENIZER_TEXT_BYTES = 8_000_000
"""Merges of a small vocabulary no longer change with more text, and a core trains 4,096 of them on this in seconds."""

_TOKENIZER_BYTES_PER_TOKEN = 70
"""A merge and its token, as the JSON of a byte-level BPE writes them."""

_BATCH_BYTES = 1_000_000
"""Text that is encoded at once; ids as Python integers take about ten times as much memory."""

Progress: TypeAlias = Callable[[int, int], None]
"""Called now and then with the bytes of text encoded so far, and about how many there will be; 0: nobody knows. At the
end both are equal."""


def no_progress(_text_bytes: int, _whole_bytes: int) -> None:
    """Tell nobody."""


# -- tokenizer -------------------------------------------------------------------------------------------------------


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> str:
    """Train a byte-level BPE; the same texts give the same tokenizer.

    Args:
        texts: as many as should count; nothing is skipped.
        vocab_size: upper limit, >= 257: 256 bytes, ``<|endoftext|>`` with id 0, and merges. Little text gives fewer.

    Returns:
        The text of a ``tokenizer.json``.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, min_frequency=2, special_tokens=[END_OF_TEXT],
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    text: str = tokenizer.to_str(pretty=True)
    return text


def run_tokenizer(section: Data, vocab_size: int, reader: Reader, cache_dir: Path) -> str:
    """Train the tokenizer of a run on the start of its train text, or take it from the cache.

    Raises:
        DataError: the text cannot be read, or the cache cannot be written.
    """
    key = key_of({"kind": "tokenizer", "source": source_state(section, Split.TRAIN, reader), "vocab_size": vocab_size,
                  "text_bytes": _TOKENIZER_TEXT_BYTES})
    path = cache_dir / f"tokenizer-{key}.json"

    def write(handle: BinaryIO) -> None:
        texts = _up_to(documents(section, Split.TRAIN, reader), _TOKENIZER_TEXT_BYTES)
        handle.write(train_tokenizer(texts, vocab_size).encode())

    make_once(path, write, lambda: vocab_size * _TOKENIZER_BYTES_PER_TOKEN)
    return path.read_text(encoding="utf-8")


def parse_tokenizer(text: str, *, origin: str) -> Tokenizer:
    """Read a ``tokenizer.json`` for encoding whole documents: without truncation and padding, special tokens as text.

    Raises:
        DataError: it is none, or it has no token to put between documents.
    """
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # tokenizers raises nothing narrower
        raise DataError(f"{origin} is no tokenizer.json: {error}",
                        hint="task.tokenizer needs a file that the tokenizers library wrote") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # A document that mentions <|endoftext|> must not end there.
    tokenizer.encode_special_tokens = True
    end_token(tokenizer, origin=origin)
    return tokenizer


def end_token(tokenizer: Tokenizer, *, origin: str = "tokenizer.json") -> tuple[str, int]:
    """The token between documents, and its id.

    Raises:
        DataError: the tokenizer has none of the usual ones.
    """
    for token in _KNOWN_ENDS:
        token_id = tokenizer.token_to_id(token)
        if token_id is not None:
            return token, token_id
    raise DataError(f"{origin} has no end-of-text token; looked for {' '.join(_KNOWN_ENDS)}",
                    hint=f"add {END_OF_TEXT} to it as a special token")


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """One more than the largest id: with gaps among the ids this is more than the number of tokens."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


# -- blocks ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRequest:
    """Which text, cut how."""

    section: Data
    split: Split
    sequence_length: int
    """Tokens per block."""
    max_blocks: int | None
    """Stop there; None: all text of the split."""
    reader: Reader


def open_blocks(request: BlockRequest, tokenizer_json: str, cache_dir: Path,
                progress: Progress = no_progress, overseen: Overseen = unseen,
                waits: Waits = patiently) -> NDArray[Any]:
    """Encode the text of ``request``, or find it encoded, and map it into memory.

    Documents follow each other with one end-of-text token after each; blocks are cut from that without regard to
    documents, and tokens that do not fill the last block are dropped. Processes that ask for the same at the same time
    wait for the first of them. Whoever is broken off leaves what is encoded, and the next one goes on from there.

    Returns:
        [num_blocks, sequence_length] read-only, uint16 when the vocabulary fits and uint32 otherwise.

    Raises:
        DataError: text or tokenizer cannot be used, there is not one block of text, or the disk is full.
        BrokenOff: ``overseen`` has raised it.
        BeingMade: ``waits`` has raised it.
    """
    tokenizer = parse_tokenizer(tokenizer_json, origin="tokenizer.json")
    dtype = np.dtype(np.uint16 if vocabulary_size(tokenizer) <= 2**16 else np.uint32)
    path = blocks_path(request, tokenizer_json, cache_dir)
    writer = _BlockWriter(request, tokenizer, dtype, progress, overseen)
    make_once(path, lambda handle: writer.write(handle, left_at(path)), writer.needed_bytes, waits)
    return np.memmap(path, dtype=dtype, mode="r").reshape(-1, request.sequence_length)


def blocks_path(request: BlockRequest, tokenizer_json: str, cache_dir: Path) -> Path:
    """Where :func:`open_blocks` keeps what it has encoded."""
    key = key_of({"kind": "blocks", "source": source_state(request.section, request.split, request.reader),
                  "tokenizer": digest_of(tokenizer_json),
                  "sequence_length": request.sequence_length, "max_blocks": request.max_blocks})
    return cache_dir / f"tokens-{request.split}-{key}.bin"


_Count = Annotated[int, Field(ge=0)]


@dataclass(slots=True)
class _Written:
    """How far a file is."""

    documents: _Count = 0
    text_bytes: _Count = 0
    blocks: _Count = 0
    pending: list[_Count] = field(default_factory=list)
    """Tokens that are encoded, and fill no block yet."""

    @classmethod
    def read(cls, note: Any) -> "_Written":
        """The beginning, where the note is of another form than ours."""
        try:
            written = TypeAdapter(cls).validate_python(note)
        except ValidationError:
            return cls()
        return written if asdict(written) == note else cls()


class _BlockWriter:
    def __init__(self, request: BlockRequest, tokenizer: Tokenizer, dtype: np.dtype[Any], progress: Progress,
                 overseen: Overseen) -> None:
        self._request = request
        self._tokenizer = tokenizer
        self._dtype = dtype
        self._progress, self._overseen = progress, overseen
        self._written = _Written()

    def write(self, handle: BinaryIO, at: Any) -> None:
        self._written = self._found(handle, _Written.read(at))
        handle.seek(self._num_bytes(self._written))
        handle.truncate()
        try:
            self._write_blocks(handle)
        except (BrokenOff, DataUnreachable) as error:
            error.at = asdict(self._written)
            raise
        num_blocks, text_bytes = self._written.blocks, self._written.text_bytes
        self._progress(text_bytes, text_bytes)
        if num_blocks == 0:
            raise NoText(f"the {self._request.split} text has {text_bytes} bytes: not one sample of "
                         f"{self._request.sequence_length} tokens",
                         hint="give more text, or lower task.sequence_length")
        if self._request.max_blocks is not None and num_blocks < self._request.max_blocks:
            logger.info("less text than asked for: split=%s samples=%d wanted=%d", self._request.split, num_blocks,
                        self._request.max_blocks)

    def _found(self, handle: BinaryIO, noted: _Written) -> _Written:
        """What is noted, if the file and its tokens can be so; else the beginning."""
        is_there = handle.seek(0, os.SEEK_END) >= self._num_bytes(noted)
        return noted if is_there and max(noted.pending, default=0) <= np.iinfo(self._dtype).max else _Written()

    def _num_bytes(self, written: _Written) -> int:
        return written.blocks * self._request.sequence_length * self._dtype.itemsize

    def _write_blocks(self, handle: BinaryIO) -> None:
        request = self._request
        length, limit = request.sequence_length, request.max_blocks
        whole_bytes = expected_bytes(request.section, request.split, request.reader) if limit is None else 0
        with closing(self._batches()) as batches:  # whoever oversees them knows at once that nobody reads any more
            for batch, tokens in batches:
                pending = np.concatenate([np.array(self._written.pending, self._dtype), tokens])
                ready = len(pending) // length
                if limit is not None:
                    ready = min(ready, limit - self._written.blocks)
                handle.write(pending[:ready * length].tobytes())
                self._written = _Written(
                    documents=self._written.documents + len(batch),
                    text_bytes=self._written.text_bytes + sum(len(text.encode()) for text in batch),
                    blocks=self._written.blocks + ready,
                    pending=pending[ready * length:].tolist(),
                )
                if self._written.blocks == limit:
                    break
                text_bytes = self._written.text_bytes
                self._progress(text_bytes, whole_bytes if whole_bytes > text_bytes else 0)

    def _batches(self) -> Generator[tuple[list[str], NDArray[Any]], None, None]:
        """Texts, and their tokens."""
        _, end_id = end_token(self._tokenizer)
        request = self._request
        with closing(documents(request.section, request.split, request.reader, self._overseen)) as texts:
            rest = islice(texts, self._written.documents, None)
            while batch := list(_up_to(rest, _BATCH_BYTES)):
                encodings = self._tokenizer.encode_batch_fast(batch, add_special_tokens=False)
                yield batch, np.concatenate([np.array([*one.ids, end_id], self._dtype) for one in encodings])

    def needed_bytes(self) -> int:
        """From what was written so far; before anything was, a token is taken to stand for three bytes of text."""
        request = self._request
        if request.max_blocks is not None:
            return request.max_blocks * request.sequence_length * self._dtype.itemsize
        token_bytes = self._num_bytes(self._written)
        per_text_byte = token_bytes / self._written.text_bytes if token_bytes else self._dtype.itemsize / 3
        return int(request.section.max_megabytes * 1e6 * per_text_byte)


def _up_to(texts: Iterator[str], num_bytes: int) -> Iterator[str]:
    """The next texts, until they have ``num_bytes`` together; the iterator goes on from there."""
    total = 0
    while total < num_bytes and (text := next(texts, None)) is not None:
        total += len(text.encode())
        yield text
