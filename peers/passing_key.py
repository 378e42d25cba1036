"""The key of a peer that is there for one command."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from collab.errors import ConfigError
from collab.swarm.identity import Identity, load_or_create_identity
from peers.places import DataDir, claim_data_dir


@contextmanager
def passing_key() -> Iterator[tuple[Path, Identity]]:
    """Of a peer that is there for one command, with the file that it lies in.

    Raises:
        ConfigError: no directory for temporary files takes it.
    """
    with ExitStack() as stack:
        try:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="collab-key-"))) / "identity.key"
            key = load_or_create_identity(path)
        except (OSError, ConfigError) as error:
            why = error.message if isinstance(error, ConfigError) else error
            text = f"there is no room for a temporary file: {why}"
            raise ConfigError(text, hint="free some space, or set TMPDIR to a directory on another disk") from error
        yield path, key


@contextmanager
def guest_dir(run_id: str) -> Iterator[DataDir]:
    """Where one who only looks has its key: the same for all looks, or a passing one where that cannot be kept.

    Raises:
        ConfigError: as ``passing_key``.
    """
    with ExitStack() as stack:
        try:
            place = stack.enter_context(claim_data_dir(None, run_id, "guest"))
            load_or_create_identity(place.identity)
        except ConfigError:
            path, _ = stack.enter_context(passing_key())
            place = DataDir(path.parent)
        yield place
