"""Where training text comes from: an endless variety of places, one iterator of documents.

Train and eval texts are parted by a digest of each document's content, so that a document is on the same side on every
machine. With the built-in source the documents themselves depend on the machine's Python version, and its eval loss is
comparable only between peers with the same version.
"""

import hashlib
import logging
import os
import sysconfig
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias

from collab.concurrency import chain_of
from collab.config import BuiltinData, Data, FilesData, HubData
from collab.data.text_files import files_documents, matching_files, text_of
from collab.errors import DataError, DataUnreachable
from collab.statuses import PATIENCE

logger = logging.getLogger(__name__)

_EVAL_ONE_IN = 20
"""One document of 20 is held out: enough to fill some dozens of eval samples from half a megabyte of text."""

_SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"})
"""Installed packages differ from machine to machine, and some distributions leave the test suites out."""

_FEW_SHARDS = 16
"""Below this a dataset's files are cut further (parquet row groups), so that peers start at different places."""


Overseen: TypeAlias = Callable[[Iterator[str]], Iterator[str]]
"""What all documents pass that are read, whichever side they are on. It may raise ``BrokenOff`` between two."""


def unseen(texts: Iterator[str]) -> Iterator[str]:
    """Nobody looks after them."""
    return texts


class Split(StrEnum):
    """Which side of the data."""

    TRAIN = "train"
    EVAL = "eval"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Who reads, and from where."""

    seed: int
    """The run's seed."""
    peer_id: str
    """Decides which part of a streamed dataset is read."""
    base_dir: Path
    """Where relative paths of the run file start."""
    shard: int | None = None
    """The one shard of a streamed dataset that train text comes from; None: all, in an order of the peer's own."""


class NoText(DataError):
    """There is no text, or none on the side that was asked for."""


def split_of(text: str) -> Split:
    """The side that a document belongs to, by its content alone."""
    digest = hashlib.sha256(text.encode()).digest()
    return Split.EVAL if int.from_bytes(digest[:8], "big") % _EVAL_ONE_IN == 0 else Split.TRAIN


def documents(section: Data, split: Split, reader: Reader, overseen: Overseen = unseen) -> Generator[str, None, None]:
    """Iterate the documents of one side, in an order that is the same each time.

    Train text ends after ``section.max_megabytes`` (of UTF-8, 10^6 bytes). Eval text does not: the caller takes what it
    needs from the start, which with a streamed dataset is its start in its own order, the same for all peers.

    Raises:
        DataError: a path matches nothing, a file or dataset cannot be read, the text field is missing, or there is no
            text on this side.
        BrokenOff: ``overseen`` has raised it.
    """
    limit_bytes = section.max_megabytes * 1e6 if split is Split.TRAIN else float("inf")
    num_seen = num_bytes = 0
    for text in overseen(_all_documents(section, split, reader)):
        if not text or text.isspace():
            continue
        num_seen += 1
        if split_of(text) is not split:
            continue
        num_bytes += len(text.encode())
        yield text
        if num_bytes >= limit_bytes:
            return
    if num_seen == 0:
        raise NoText(f"no text in {_describe(section)}: everything in it is empty",
                     hint="point task.data at files or a dataset with text in it")
    if num_bytes == 0:
        raise NoText(f"{_describe(section)} has {num_seen} documents and none of them is on the {split} side",
                     hint=f"give more text: about one document in {_EVAL_ONE_IN} is held out for evaluation")


def expected_bytes(section: Data, split: Split, reader: Reader) -> int:
    """About how much text ``documents(section, split, reader)`` has; 0: nobody knows before it is read.

    Raises:
        DataError: as :func:`source_state`.
    """
    if isinstance(section, HubData):
        return int(section.max_megabytes * 1e6) if reader.shard is None and split is Split.TRAIN else 0
    if isinstance(section, BuiltinData):
        root = _stdlib_folder()
        files = [root / name for name in _stdlib_names(root)]
    else:
        files = matching_files(section.path, reader.base_dir)
    if any(file.suffix.lower() == ".parquet" for file in files):
        return 0  # columns are packed, and others than the text are there
    sizes = [_file_state(file)[1] for file in files]
    if split is Split.EVAL:
        return sum(sizes) // _EVAL_ONE_IN
    return min(sum(sizes) - sum(sizes) // _EVAL_ONE_IN, int(section.max_megabytes * 1e6))


def source_state(section: Data, split: Split, reader: Reader) -> dict[str, Any]:
    """What decides the documents of ``documents(section, split, reader)``, as JSON values, to key caches with.

    Local files count with size and modification time. A hub dataset without ``revision`` counts by name only: what was
    streamed once is kept even if the dataset changes.

    Raises:
        DataError: as :func:`documents`, where it can be known before reading.
    """
    state: dict[str, Any] = {"section": section.model_dump(mode="json"), "split": split.value}
    match section:
        case BuiltinData():
            root = _stdlib_folder()
            files = [root / name for name in _stdlib_names(root)]
            state |= {"seed": reader.seed, "files": [_file_state(file) for file in files]}
        case FilesData():
            state |= {"files": [_file_state(file) for file in matching_files(section.path, reader.base_dir)]}
        case HubData() if split is Split.TRAIN:
            own_order = {"seed": reader.seed, "peer": reader.peer_id}
            state |= own_order if reader.shard is None else {"shard": reader.shard}
        case HubData():
            pass
    return state


def _all_documents(section: Data, split: Split, reader: Reader) -> Iterator[str]:
    match section:
        case BuiltinData():
            return _builtin(reader.seed)
        case FilesData():
            return files_documents(section, reader.base_dir)
        case HubData():
            return _hub(section, split, reader)


def _describe(section: Data) -> str:
    match section:
        case BuiltinData():
            return f"the Python standard library at {_stdlib_folder()}"
        case FilesData():
            return f"task.data.path {section.path!r}"
        case HubData():
            return f"dataset {section.dataset!r}"


def _file_state(file: Path) -> tuple[str, int, int]:
    try:
        status = file.stat()
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}", hint="check the file and its permissions") from error
    return str(file), status.st_size, status.st_mtime_ns


# -- the built-in corpus ---------------------------------------------------------------------------------------------


def _stdlib_folder() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _stdlib_names(root: Path) -> list[str]:
    names: list[str] = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _SKIPPED_FOLDERS]
        names += [os.path.relpath(os.path.join(folder, name), root) for name in files if name.endswith(".py")]
    return sorted(names)


def _builtin(seed: int) -> Iterator[str]:
    """Whole files, ordered by a digest of seed and name: a shuffle that a missing file does not disturb."""
    root = _stdlib_folder()
    names = _stdlib_names(root)
    if not names:
        raise DataError(f"this Python has no source files of its standard library under {root}",
                        hint="use a Python that was installed with its sources, or task.data.source: files")
    for name in sorted(names, key=lambda name: hashlib.sha256(f"{seed}:{name}".encode()).digest()):
        try:
            yield (root / name).read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError) as error:
            logger.debug("skipped a file of the standard library: file=%s reason=%s", name, error)


# -- the Hub ---------------------------------------------------------------------------------------------------------


def count_shards(section: HubData) -> int:
    """Parts of a streamed dataset that can be read apart from each other.

    Raises:
        DataError: the dataset cannot be read.
    """
    with _reading(section):
        return int(_train_stream(section).num_shards)


def _hub(section: HubData, split: Split, reader: Reader) -> Iterator[str]:
    with _reading(section):
        if split is not Split.TRAIN:
            rows: Any = _stream(section)
        elif reader.shard is None:
            rows = _in_own_order(_train_stream(section), reader)
        else:
            stream = _train_stream(section)
            rows = stream.shard(num_shards=stream.num_shards, index=reader.shard)
        for row in rows:
            yield text_of(row, section.text_field, _describe(section))


@contextmanager
def _reading(section: HubData) -> Iterator[None]:
    """Errors of libraries become ours."""
    import httpx

    try:
        yield
    except (OSError, ValueError, httpx.HTTPError) as error:
        place = f"{_describe(section)} (subset {section.subset}, split {section.split})"
        kind = DataUnreachable if _may_pass(error) else DataError
        raise kind(f"{place} cannot be read: {error}",
                   hint="check the network, the names, and for a private or gated dataset the token") from error


def _may_pass(error: Exception) -> bool:
    """Whether nobody has answered, or somebody that may answer later."""
    import httpx

    responses = [response for one in chain_of(error) if (response := getattr(one, "response", None)) is not None]
    if responses:
        return bool(responses[0].status_code in PATIENCE)
    return any(isinstance(one, ConnectionError | TimeoutError | httpx.TransportError) for one in chain_of(error))


def _stream(section: HubData) -> Any:
    import datasets

    return datasets.load_dataset(section.dataset, section.subset, split=section.split, revision=section.revision,
                                 streaming=True)


def _train_stream(section: HubData) -> Any:
    stream = _stream(section)
    # Older releases of datasets cannot cut files; there peers read a dataset of one file from the same place.
    return stream.reshard() if stream.num_shards < _FEW_SHARDS and hasattr(stream, "reshard") else stream


def _in_own_order(stream: Any, reader: Reader) -> Iterator[dict[str, Any]]:
    """Rows shard by shard, the shards in an order of the reader's own: peers that stop early have read different ones.

    No shuffle buffer: samples are shuffled when they are drawn.
    """
    num_shards = stream.num_shards
    who = f"{reader.seed}:{reader.peer_id}"
    for index in sorted(range(num_shards), key=lambda index: hashlib.sha256(f"{who}:{index}".encode()).digest()):
        yield from stream.shard(num_shards=num_shards, index=index)
