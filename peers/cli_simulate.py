"""``collab-peer simulate``: strategies tried out on a described swarm, in virtual time."""

from pathlib import Path
from typing import Annotated

import typer


def simulate(
    file: Annotated[Path, typer.Argument(metavar="SWARM.yaml", help="The swarm: see docs/simulator.md.")],
    strategies: Annotated[
        str, typer.Option(metavar="A,B", help="Only these of the file's strategies; default: all of them.")
    ] = "",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write report.json and the curves as SVG files here.")
    ] = None,
    calculated: Annotated[
        bool,
        typer.Option(
            "--calculated",
            help="Play only the trainers, and calculate rounds, ways and joining: a thousand machines in minutes.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning, error or critical.")] = "critical",
) -> None:
    """Train on a described swarm in virtual time, with each strategy of the file: loss, time, bytes, money."""
    from peers.process import configure_logging, run_plain

    configure_logging(log_level)
    from peers.trying import Trial, try_out

    chosen = tuple(name.strip() for name in strategies.split(",") if name.strip())
    run_plain(lambda: try_out(Trial(file=file, strategies=chosen, out=out, as_json=as_json, is_calculated=calculated)))


def register(app: typer.Typer) -> None:
    """Add the commands of this page."""
    app.command()(simulate)
