"""The commands of the owner of a machine: peers make room, and what would make it more useful."""

from pathlib import Path
from typing import Annotated

import typer

from peers.cli_options import AsJson, LogLevel

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


def doctor(
    invite: Annotated[
        str, typer.Argument(metavar="[INVITE|ORG/NAME]", help="Whose peers are asked, too; none: this machine.")
    ] = "",
    data_dir: Annotated[Path | None, typer.Option(help="Where a peer would keep its things.")] = None,
    port: Annotated[int, typer.Option(help="TCP port that a peer would listen on; 0: any free one.")] = 0,
    as_json: AsJson = False,
    log_level: LogLevel = "error",
) -> None:
    """Can this machine take part? A verdict and a remedy for each thing; exit code 1 if something must be mended."""
    from peers.process import configure_logging, run_plain

    configure_logging(log_level)
    from peers.doctor import Examination, run_doctor

    examination = Examination(invite=invite, data_dir=data_dir, port=port, as_json=as_json)
    able: list[bool] = []
    run_plain(lambda: able.append(run_doctor(examination)))
    raise typer.Exit(0 if all(able) else 1)


def register(app: typer.Typer) -> None:
    """Add the commands to ``collab-peer``."""
    for command in (pause, resume, doctor):
        app.command()(command)
