"""``collab-peer init``: a new run directory."""

import re
from pathlib import Path

from collab.config import parse_run
from collab.durable import replace_file
from collab.errors import ConfigError
from collab.swarm.identity import load_or_create_identity
from peers.disk_remedy import remedy
from peers.places import OWNER_KEY, RUN_FILE
from peers.process import announce
from peers.run_file import template


def init_run(directory: Path, run_id: str) -> None:
    """Write the owner's key and the run file, which comes last: where it is, the run is whole. Never overwrites either.

    Raises:
        ConfigError: the name is not usable, the run exists, or the directory cannot be written.
    """
    name = run_id or re.sub(r"[^a-z0-9]+", "-", directory.resolve().name.lower()).strip("-")
    text = template(name)
    parse_run(text, origin="the new run file")
    path = directory / RUN_FILE
    if path.exists():
        raise ConfigError(f"{path} exists already", hint="edit it, or name another directory")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        load_or_create_identity(directory / OWNER_KEY)
        replace_file(path, text.encode())
    except OSError as error:
        hint = f"{remedy(path, error)}, or name another directory"
        raise ConfigError(f"cannot write {path}: {error.strerror}", hint=hint) from error
    announce(f"wrote {path} and {directory / OWNER_KEY} (keep the key: it owns the run)")
    announce(f"edit the run file, then start:\n\n  collab-peer backbone {directory}\n")
