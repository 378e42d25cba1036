"""The key of a peer that is there for one command."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from collab.errors import ConfigError
from collab.swarm.identity import Identity, load_or_create_identity


@contextmanager
def passing_key() -> Iterator[tuple[Path, Identity]]:
    """Of a peer that is there for one command, with the file that it lies in.

    Raises:
        ConfigError: no directory for temporary files takes it.
    """
    with ExitStack() as stack:
        try:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="collab-owner-"))) / "identity.key"
            key = load_or_create_identity(path)
        except (OSError, ConfigError) as error:
            why = error.message if isinstance(error, ConfigError) else error
            text = f"there is no room for a temporary file: {why}"
            raise ConfigError(text, hint="free some space, or set TMPDIR to a directory on another disk") from error
        yield path, key
