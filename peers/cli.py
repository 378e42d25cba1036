"""The command ``collab-peer``. Everything heavy is imported inside the commands, so that ``--help`` is instant."""

from pathlib import Path
from typing import Annotated

import typer

from peers import cli_guest, cli_join, cli_owner, cli_plan, cli_simulate
from peers.cli_options import (
    Allow,
    Announce,
    AsJson,
    DashboardAt,
    HubEvery,
    HubRepo,
    Listening,
    LogLevel,
    MaxDownload,
    MaxUpload,
    Plain,
    PrintConfig,
    Quiet,
    Store,
    Track,
    Without,
    check_style,
    check_track,
    duties_off,
)
from peers.hub_pace import HUB_EVERY_MIN
from peers.variables import CommandsWithVariables

app = typer.Typer(
    name="collab-peer",
    cls=CommandsWithVariables,
    help="Train one model together over the internet.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.command()
def init(
    directory: Annotated[Path, typer.Argument(help="Directory of the new run.")],
    run_id: Annotated[str, typer.Option(help="Name of the run; default: the directory's name.")] = "",
) -> None:
    """Write DIRECTORY/run.yaml, with every field explained, and the owner's key."""
    from peers.organising import init_run
    from peers.process import run_plain

    run_plain(lambda: init_run(directory, run_id))


@app.command()
def backbone(
    context: typer.Context,
    directory: Annotated[Path, typer.Argument(help="Directory of the run, made with 'collab-peer init'.")],
    host: Annotated[str, Listening] = "0.0.0.0",  # noqa: S104 - a backbone is dialled
    port: Annotated[int, typer.Option(help="TCP port to listen on; 0: any free one.")] = 0,
    announce: Announce = None,
    invite_file: Annotated[Path | None, typer.Option(help="Write an open run's invite here, too.")] = None,
    allow: Allow = None,
    begin_with: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="CHECKPOINT|ORG/NAME[@REVISION]",
            help="Begin with this checkpoint: of this run, on the Hub; with --new-owner of a run whose owner is gone.",
        ),
    ] = "",
    new_owner: Annotated[bool, typer.Option("--new-owner", help="With --from: you own the run from now on.")] = False,
    hub_repo: HubRepo = "",
    hub_every: HubEvery = HUB_EVERY_MIN,
    max_upload: MaxUpload = None,
    max_download: MaxDownload = None,
    store: Store = "",
    dashboard: DashboardAt = "",
    track: Track = "auto",
    without: Without = "",
    plain: Plain = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    print_config: PrintConfig = False,
    log_level: LogLevel = "warning",
) -> None:
    """Start the backbone of a run: bootstrap, state, checkpoints. Needs no GPU. Prints the invite."""
    _check_beginning(begin_with, has_new_owner=new_owner)
    check_track(track)
    check_style(is_plain=plain, is_quiet=quiet, as_json=as_json)
    off = duties_off(without)
    if print_config:
        _print_config(context, directory)
        return
    from peers.process import configure_logging, run_peer

    configure_logging(log_level)
    from peers.hosting import HostOptions, host as serve
    from peers.screen import style_of
    from peers.wiring import limits_from

    options = HostOptions(
        directory=directory, host=host, port=port,
        announce=tuple(announce or ()), invite_file=invite_file, allowed_modules=tuple(allow or ()),
        begin_with=begin_with, is_new_owner=new_owner,
        hub_repo=hub_repo, hub_every_min=hub_every,
        limits=limits_from(max_upload, max_download),
        store=store, dashboard=dashboard, track=track, off=off,
        style=style_of(is_plain=plain, is_quiet=quiet),
        as_json=as_json,
    )  # fmt: skip
    raise typer.Exit(run_peer(lambda stop: serve(options, stop)))


def _print_config(context: typer.Context, directory: Path) -> None:
    from peers.places import RUN_FILE
    from peers.printed_config import print_config
    from peers.process import run_plain

    run_plain(lambda: print_config(context, directory / RUN_FILE))


def _check_beginning(begin_with: str, *, has_new_owner: bool) -> None:
    """Refuse what cannot be meant."""
    if has_new_owner and not begin_with:
        raise typer.BadParameter("--new-owner goes with --from: name the checkpoint to begin with")
    if begin_with and not has_new_owner and Path(begin_with).exists():
        raise typer.BadParameter("--from CHECKPOINT and --new-owner go together: peers of the old run need new invites")


@app.command()
def status(
    run: Annotated[
        str,
        typer.Argument(
            metavar="INVITE|DIRECTORY|ORG/NAME", help="An invite, a run that you own, or the model on the Hub."
        ),
    ],
    as_json: AsJson = False,
    log_level: LogLevel = "error",
) -> None:
    """Show who is in the swarm and how far it is."""
    from peers.process import configure_logging, run_plain

    configure_logging(log_level)
    from peers.hub_lookup import word_of
    from peers.status import run_status

    run_plain(lambda: run_status(word_of(run), as_json=as_json))


@app.command()
def export(
    source: Annotated[
        str, typer.Argument(metavar="CHECKPOINT|ORG/NAME", help="A checkpoint, a run's directory, or a model there.")
    ],
    directory: Annotated[Path, typer.Argument(help="To be made.")],
    log_level: LogLevel = "error",
) -> None:
    """Make a directory that transformers loads, of a checkpoint whose every byte was checked."""
    from peers.process import configure_logging, run_plain

    configure_logging(log_level)
    from peers.hub_lookup import export_to

    run_plain(lambda: export_to(source, directory))


@app.command()
def demo(
    peers: Annotated[int, typer.Option(help="Trainers on this machine.", min=1, max=16)] = 3,
    epochs: Annotated[int, typer.Option(help="Global steps.", min=1)] = 200,
    directory: Annotated[Path | None, typer.Option(help="Where the run lives; default: a new one under runs/.")] = None,
    as_json: AsJson = False,
) -> None:
    """Train a small language model with a backbone and several trainers, all on this machine."""
    from peers.demo import DemoOptions, run_demo

    options = DemoOptions(peers=peers, epochs=epochs, directory=directory, as_json=as_json)
    raise typer.Exit(run_demo(options))


cli_join.register(app)
cli_guest.register(app)
cli_owner.register(app)
cli_plan.register(app)
cli_simulate.register(app)


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
