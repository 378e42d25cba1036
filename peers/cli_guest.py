"""The commands by which the owner of a machine tells the peers on it to make room."""

from pathlib import Path
from typing import Annotated

import typer

DataDirText = Annotated[
    Path | None, typer.Option("--data-dir", help="Of one peer; default: all of yours on this machine.")
]


def pause(data_dir: DataDirText = None) -> None:
    """Let the peers on this machine free their devices, hand in what they have computed, and leave until 'resume'."""
    import asyncio

    from peers.pausing import pause as ask
    from peers.process import run_plain

    run_plain(lambda: asyncio.run(ask(data_dir)))


def resume(data_dir: DataDirText = None) -> None:
    """Let peers that were paused work again."""
    import asyncio

    from peers.pausing import resume as ask
    from peers.process import run_plain

    run_plain(lambda: asyncio.run(ask(data_dir)))


def register(app: typer.Typer) -> None:
    """Add the commands to ``collab-peer``."""
    for command in (pause, resume):
        app.command()(command)
