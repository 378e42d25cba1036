"""Shards of a streamed dataset as blocks of samples: each is read, encoded and kept only while it is trained."""

import hashlib
import json
from contextlib import suppress
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
KEPT = 3
"""Shards that a life of this peer has left, as many as it has at once: one that is trained, one whose last samples wait
for their step, one that is read ahead. Mostly the next life is given the same ones, by ``collab.data.assignment``.
"""


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
            cache_dir: for encoded text; what this peer has of shards lies in a folder of its own there.
            progress: hears how far the shard is that is read.
            overseen: what its documents pass.
        """
        if not isinstance(request.section, HubData):
            raise ValueError("only a streamed dataset has shards")
        self._section, self._request = request.section, request
        self._tokenizer_json, self._folder = tokenizer_json, cache_dir / f"shards-{request.reader.peer_id}"
        self._progress, self._overseen = progress, overseen
        self._open: dict[int, NDArray[Any]] = {}
        self._has_tidied = False

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
        """Read and encode a shard, or find it encoded; ids of its samples. One without text has none. Of what earlier
        lives of this peer have left most is removed.

        Raises:
            DataError: it cannot be read, or not be written to the disk.
            BrokenOff: ``overseen`` has raised it.
        """
        wanted = self._of(shard)
        try:
            blocks = open_blocks(wanted, self._tokenizer_json, self._folder, self._progress, self._overseen)
        except NoText:
            return ()
        self._open[shard] = blocks
        self._remove_left(KEPT)
        return tuple((shard << _ROW_BITS) + row for row in range(len(blocks)))

    def close(self, shard: int) -> None:
        """A shard is trained: forget it, and make room on the disk."""
        if self._open.pop(shard, None) is not None:
            self._path_of(shard).unlink(missing_ok=True)

    def drop(self) -> None:
        """The run is over: make room on the disk."""
        self._open.clear()
        self._remove_left(0)

    def rows(self, sample_ids: tuple[int, ...]) -> NDArray[Any]:
        """[samples, sequence_length] samples of open shards.

        Raises:
            DataError: one of the shards is not open.
        """
        try:
            return np.stack([self._open[one >> _ROW_BITS][one & (1 << _ROW_BITS) - 1] for one in sample_ids])
        except (KeyError, IndexError) as error:
            raise DataError("a sample of a shard that is not open was asked for", hint="please report this") from error

    def _remove_left(self, kept: int) -> None:
        """Remove what is not open but the newest ones, whole or broken off."""
        if not self._has_tidied:
            self._has_tidied = True
            self._remove_shared()
        ours = {self._path_of(shard).stem for shard in tuple(self._open)}
        left: dict[str, float] = {}
        with suppress(OSError):  # what cannot be removed, or goes by itself meanwhile, is in nobody's way
            for path in self._folder.glob("*"):
                if path.stem not in ours:
                    is_lock = path.suffix == ".lock"
                    left[path.stem] = max(left.get(path.stem, 0.0), 0.0 if is_lock else path.stat().st_mtime)
            newest = sorted(left, key=lambda stem: left[stem], reverse=True)
            for stem in newest[kept:]:
                for path in self._folder.glob(f"{stem}.*"):
                    path.unlink(missing_ok=True)

    def _remove_shared(self) -> None:
        """Earlier versions had their shards among all else that is encoded, where nobody looks for them any more."""
        cache_dir = self._folder.parent
        with suppress(OSError, DataError):  # as below, or the dataset is out of reach
            lying = {path.stem for path in cache_dir.glob("tokens-*")}
            for shard in range(self.number if lying else 0):
                if (stem := self._path_of(shard, cache_dir).stem) in lying:
                    for path in cache_dir.glob(f"{stem}.*"):
                        path.unlink(missing_ok=True)

    def _path_of(self, shard: int, folder: Path | None = None) -> Path:
        return blocks_path(self._of(shard), self._tokenizer_json, folder or self._folder)

    def _of(self, shard: int) -> BlockRequest:
        return replace(self._request, reader=replace(self._request.reader, shard=shard))
