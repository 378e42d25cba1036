"""``collab-peer init``: a new run directory."""

import re
from pathlib import Path

from collab.config import parse_run
from collab.errors import ConfigError
from collab.swarm.identity import load_or_create_identity
from peers.places import OWNER_KEY, RUN_FILE
from peers.process import announce
from peers.run_file import template


def init_run(directory: Path, run_id: str) -> None:
    """Write the run file and the owner's key; never overwrites either.

    Raises:
        ConfigError: the name is not usable, the run exists, or the directory cannot be written.
    """
    name = run_id or re.sub(r"[^a-z0-9]+", "-", directory.resolve().name.lower()).strip("-")
    text = template(name)
    parse_run(text, origin="the new run file")
    path = directory / RUN_FILE
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise ConfigError(f"{path} exists already", hint="edit it, or name another directory") from error
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}", hint="name a writable directory") from error
    load_or_create_identity(directory / OWNER_KEY)
    announce(f"wrote {path} and {directory / OWNER_KEY} (keep the key: it owns the run)")
    announce(f"edit the run file, then start:\n\n  collab-peer backbone {directory}\n")
