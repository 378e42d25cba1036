"""What the notebooks under ``notebooks/`` call: commands of ``collab-peer`` whose lines a cell shows as they come.

A command that fails fails its cell. Interrupting a cell (its stop button) ends its command, as Ctrl+C does elsewhere.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from collab.errors import ConfigError
from peers.cell_command import CellCommand
from peers.cell_window import ALL
from peers.hosted import SECRETS, secrets

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
"""For peers that share a machine: more threads than cores are several times slower."""


def run(*words: str) -> str:
    """Run a command to its end; returns what it writes to standard output.

    Raises:
        CommandFailed: it ended with an error.
    """
    return _started(words).follow(ALL)


def start(*words: str) -> CellCommand:
    """Start one of several peers of this machine; the cell does not wait for it."""
    return _started(words, ONE_THREAD)


def join(
    invite: str, *, name: str = "", keep: str | Path = "", reach: str = "client", options: Sequence[str] = ()
) -> None:
    """Train with a run's swarm until the run ends or the cell is interrupted.

    Args:
        name: what others see; empty: this machine's.
        keep: a folder that outlives this machine: the next one's peer is the same one; empty: none.
        reach: ``client`` only dials, as hosted machines must; ``auto`` lets others try.
        options: more of ``collab-peer join``.

    Raises:
        ConfigError: there is no invite.
        CommandFailed: the run cannot be joined, or goes on without this peer.
    """
    if not invite.strip():
        raise ConfigError("there is no invite", hint="put the word that you were sent into the form")
    chosen = ["--name", name.strip()] if name.strip() else []
    kept = ["--keep", str(keep).strip()] if str(keep).strip() else []
    _started(["join", invite.strip(), "--reach", reach, *chosen, *kept, *options]).follow()


def _started(words: Sequence[str], environment: Mapping[str, str] | None = None) -> CellCommand:
    """A command with those secrets of the host that it has a use for."""
    known = secrets(*SECRETS.get(words[0], ()))
    return CellCommand(words, {**(environment or {}), **known}, hidden=known.values())


def show_pictures(directory: str | Path) -> None:
    """The SVG files of a directory, in the cell."""
    from IPython.display import display

    for path in sorted(Path(directory).glob("*.svg")):
        picture: dict[str, Any] = {"image/svg+xml": path.read_text(encoding="utf-8"), "text/plain": path.name}
        display(picture, raw=True)
