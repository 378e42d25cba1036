"""Documents in local files: text, JSON lines, parquet."""

import glob
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from collab.config import FilesData
from collab.errors import DataError

_PIECE_CHARS = 8192
"""Text files are cut into documents of about this size, so that one long file still has an eval part, and so that
memory stays flat whatever the file's size."""

_TEXT_SUFFIXES = frozenset({".txt", ".md", ".py"})
_ROW_SUFFIXES = frozenset({".jsonl", ".parquet"})


def matching_files(path: str, base_dir: Path) -> list[Path]:
    """Files that ``task.data.path`` means, sorted; in a directory the hidden and the unknown ones are passed over.

    Raises:
        DataError: nothing matches, or a file that was named has no known suffix.
    """
    full = base_dir / Path(path).expanduser()
    known = _TEXT_SUFFIXES | _ROW_SUFFIXES
    kinds = ", ".join(sorted(known))
    if full.is_file():
        if full.suffix.lower() not in known:
            raise DataError(f"task.data.path {full} is no {kinds} file", hint="convert it to one of these")
        return [full]
    if full.is_dir():
        candidates = (file for file in full.rglob("*")
                      if not any(part.startswith(".") for part in file.relative_to(full).parts))
    else:
        candidates = (Path(name) for name in glob.glob(str(full), recursive=True))
    files = sorted(file for file in candidates if file.suffix.lower() in known and file.is_file())
    if not files:
        raise DataError(f"task.data.path {full} matches no {kinds} file",
                        hint="check the path; every volunteer needs the files under the same path, and a relative one "
                             f"starts at {base_dir.absolute()}")
    return files


def files_documents(section: FilesData, base_dir: Path) -> Iterator[str]:
    """Documents of all files of a run file's section, in their order."""
    readers: dict[str, Callable[[Path, str], Iterator[str]]] = {".jsonl": _json_lines, ".parquet": _parquet}
    for file in matching_files(section.path, base_dir):
        try:
            yield from readers.get(file.suffix.lower(), _text_pieces)(file, section.text_field)
        except UnicodeDecodeError as error:
            raise DataError(f"{file} is not UTF-8: {error.reason}",
                            hint="convert it, for example with iconv") from error
        except OSError as error:
            raise DataError(f"cannot read {file}: {error}", hint="check the file and its permissions") from error


def _text_pieces(file: Path, _text_field: str) -> Iterator[str]:
    with file.open(encoding="utf-8") as handle:
        # Up to the end of the line where the size is reached; a line without end is cut.
        while piece := handle.read(_PIECE_CHARS) + handle.readline(_PIECE_CHARS):
            yield piece


def _json_lines(file: Path, text_field: str) -> Iterator[str]:
    with file.open(encoding="utf-8") as handle:
        for number, line in enumerate(handle, start=1):
            if line.isspace():
                continue
            place = f"{file}, line {number}"
            try:
                row = json.loads(line)
            except ValueError as error:
                raise DataError(f"{place} is not JSON: {error}",
                                hint="a .jsonl file has one JSON object per line") from error
            if not isinstance(row, dict):
                raise DataError(f"{place} should be an object, got {type(row).__name__}",
                                hint="a .jsonl file has one JSON object per line")
            yield text_of(row, text_field, place)


def _parquet(file: Path, text_field: str) -> Iterator[str]:
    import pyarrow.lib
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(file) as table:
            if text_field not in table.schema_arrow.names:
                raise _missing_field(text_field, table.schema_arrow.names, str(file))
            for rows in table.iter_batches(batch_size=256, columns=[text_field]):
                for row in rows.to_pylist():
                    yield text_of(row, text_field, str(file))
    except pyarrow.lib.ArrowException as error:
        raise DataError(f"{file} cannot be read as parquet: {error}", hint="write the file again") from error


def text_of(row: dict[str, Any], text_field: str, place: str) -> str:
    """The text in one row; empty where it is null. Raises ``DataError`` when the field is missing or no text."""
    if text_field not in row:
        raise _missing_field(text_field, list(row), place)
    text = row[text_field]
    if text is None:
        return ""
    if not isinstance(text, str):
        raise DataError(f"field {text_field!r} of {place} should be text, got {type(text).__name__}",
                        hint="set task.data.text_field to the field that holds the text")
    # JSON can carry lone surrogates, which are no text and which no tokenizer takes.
    return text.encode("utf-8", errors="replace").decode()


def _missing_field(text_field: str, existing: list[str], place: str) -> DataError:
    return DataError(f"{place} has no field {text_field!r}; it has: {', '.join(sorted(existing)) or 'none'}",
                     hint="set task.data.text_field to the one that holds the text")
