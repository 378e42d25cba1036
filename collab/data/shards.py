"""Shards of a streamed dataset as blocks of samples: each is read, encoded and kept only while it is trained."""

import hashlib
import json
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collab.config import HubData
from collab.data.sources import NoText, Overseen, count_shards, unseen
from collab.data.tokens import BlockRequest, Progress, blocks_path, no_progress, open_blocks
from collab.errors import DataError

_ROW_BITS = 32
"""Of a sample id, for its place in the shard; the others name the shard."""


class TokenShards:
    """One streamed dataset, shard by shard. What reads is slow: call it off the event loop."""

    def __init__(
        self,
        request: BlockRequest,
        tokenizer_json: str,
        cache_dir: Path,
        progress: Progress = no_progress,
        overseen: Overseen = unseen,
    ) -> None:
        """
        Args:
            request: how text becomes samples; its reader names no shard.
            progress: hears how far the shard is that is read.
            overseen: what its documents pass.
        """
        if not isinstance(request.section, HubData):
            raise ValueError("only a streamed dataset has shards")
        self._section, self._request = request.section, request
        self._tokenizer_json, self._cache_dir = tokenizer_json, cache_dir
        self._progress, self._overseen = progress, overseen
        self._open: dict[int, NDArray[Any]] = {}

    @cached_property
    def number(self) -> int:
        """Of all shards.

        Raises:
            DataError: the dataset cannot be read.
        """
        return count_shards(self._section)

    @cached_property
    def digest(self) -> str:
        """Digest of which samples the shards have, 32 hex digits: equal where the dataset, its cut, the tokenizer and
        the length of samples are.
        """
        told = [self._section.model_dump(mode="json"), self.number, self._request.sequence_length]
        text = json.dumps([*told, hashlib.sha256(self._tokenizer_json.encode()).hexdigest()], sort_keys=True)
        return hashlib.sha256(f"collab/stream/1:{text}".encode()).hexdigest()[:32]

    @property
    def is_open(self) -> bool:
        """Whether any shard is."""
        return bool(self._open)

    def open(self, shard: int) -> tuple[int, ...]:
        """Read and encode a shard, or find it encoded; ids of its samples. One without text has none.

        Raises:
            DataError: it cannot be read, or not be written to the disk.
            BrokenOff: ``overseen`` has raised it.
        """
        wanted = self._of(shard)
        try:
            blocks = open_blocks(wanted, self._tokenizer_json, self._cache_dir, self._progress, self._overseen)
        except NoText:
            return ()
        self._open[shard] = blocks
        return tuple((shard << _ROW_BITS) + row for row in range(len(blocks)))

    def close(self, shard: int) -> None:
        """A shard is trained: forget it, and make room on the disk."""
        if self._open.pop(shard, None) is not None:
            blocks_path(self._of(shard), self._tokenizer_json, self._cache_dir).unlink(missing_ok=True)

    def rows(self, sample_ids: tuple[int, ...]) -> NDArray[Any]:
        """[samples, sequence_length] samples of open shards.

        Raises:
            DataError: one of the shards is not open.
        """
        try:
            return np.stack([self._open[one >> _ROW_BITS][one & (1 << _ROW_BITS) - 1] for one in sample_ids])
        except (KeyError, IndexError) as error:
            raise DataError("a sample of a shard that is not open was asked for", hint="please report this") from error

    def _of(self, shard: int) -> BlockRequest:
        return replace(self._request, reader=replace(self._request.reader, shard=shard))
