"""The files that travel with a run, as the organiser's machine keeps them."""

import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path

from collab.config import Run
from collab.errors import ConfigError
from peers.places import cache_dir


def load_assets(run: Run, directory: Path) -> dict[str, bytes]:
    """The files that travel with the run: made once for a task, then kept beside the run file.

    Raises:
        ConfigError: the task cannot be built, or the directory cannot be written.
        DataError: the data or the tokenizer cannot be read.
    """
    from collab.tasks.registry import make_assets

    folder = _folder_of(run, directory)
    if not folder.is_dir():
        keep_assets(run, directory, make_assets(run, base_dir=directory, cache_dir=cache_dir()))
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def keep_assets(run: Run, directory: Path, assets: Mapping[str, bytes]) -> None:
    """Have these files travel with the run, unless others do already.

    Raises:
        ConfigError: the directory cannot be written.
    """
    folder = _folder_of(run, directory)
    if folder.is_dir():
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
            made = Path(unfinished) / "made"
            made.mkdir()
            for name, data in assets.items():
                (made / name).write_bytes(data)
            made.rename(folder)
    except OSError as error:
        raise ConfigError(f"cannot write {folder}: {error.strerror}", hint="make the run directory writable") from error


def _folder_of(run: Run, directory: Path) -> Path:
    """Files that were made for another task, or with another seed, are not taken for this one's."""
    task = f"{run.seed}:{run.task.model_dump_json()}"
    return directory / "assets" / hashlib.sha256(task.encode()).hexdigest()[:16]
