"""What the notebooks under ``notebooks/`` call: commands of ``collab-peer`` whose lines a cell shows as they come.

A command that fails fails its cell. Interrupting a cell (its stop button) ends its command, as Ctrl+C does elsewhere.
"""

from collections.abc import Sequence
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
    return CellCommand(words).follow(ALL)


def start(*words: str) -> CellCommand:
    """Start one of several peers of this machine; the cell does not wait for it."""
    return CellCommand(words, ONE_THREAD)


def join(
    invite: str, *, name: str = "", keep: str | Path = "", reach: str = "client", options: Sequence[str] = ()
) -> None:
    """Train with a run's swarm until the run ends or the cell is interrupted. Secrets of the host go along.

    Args:
        name: what others see; empty: this machine's.
        keep: a folder that outlives this machine: the next one's peer carries on with its key and state; empty: none.
        reach: ``client`` only dials, as hosted machines must; ``auto`` lets others try.
        options: more of ``collab-peer join``.

    Raises:
        ConfigError: there is no invite.
        CommandFailed: the run cannot be joined, or goes on without this peer.
    """
    if not invite.strip():
        raise ConfigError("there is no invite", hint="put the word that you were sent into the form")
    chosen = ["--name", name.strip()] if name.strip() else []
    known = secrets(*SECRETS)
    places = {"XDG_DATA_HOME": str(keep)} if keep else {}
    words = ["join", invite.strip(), "--reach", reach, *chosen, *options]
    CellCommand(words, {**known, **places}, hidden=known.values()).follow()


def show_pictures(directory: str | Path) -> None:
    """The SVG files of a directory, in the cell."""
    from IPython.display import display

    for path in sorted(Path(directory).glob("*.svg")):
        picture: dict[str, Any] = {"image/svg+xml": path.read_text(encoding="utf-8"), "text/plain": path.name}
        display(picture, raw=True)
