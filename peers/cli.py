"""The command ``collab-peer``. Everything heavy is imported inside the commands, so that ``--help`` is instant."""

import platform
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peers import cli_owner, cli_plan, cli_simulate

if TYPE_CHECKING:
    import asyncio

    from collab.types import Reachability

app = typer.Typer(
    name="collab-peer",
    help="Train one model together over the internet.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

LogLevel = cli_owner.LogLevel
MAX_MBIT_PER_S = 1e6
"""A terabit a second: whoever limits a link to more has slipped a unit."""
Limit = partial(typer.Option, min=0.1, max=MAX_MBIT_PER_S)
MaxUpload = Annotated[float | None, Limit(help="Mbit/s that this peer may send; default: all it can.")]
MaxDownload = Annotated[float | None, Limit(help="Mbit/s that this peer may take in; default: all it can.")]
Allow = Annotated[list[str] | None, typer.Option(help="Module of others that may run here, if the run names it.")]
Store = Annotated[
    str,
    typer.Option(metavar="WHERE", help="Where a vc_asgd run's parameters are: a file, or redis://host:6379/0."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of words for people.")]
InviteText = Annotated[
    str, typer.Argument(metavar="INVITE|ORG/NAME", help="The invite, a file that holds it, or the model on the Hub.")
]
ReachText = Annotated[
    str, typer.Option(help="How others reach this machine: auto (they try), direct, or client (it only dials).")
]
HubRepo = Annotated[
    str,
    typer.Option(metavar="ORG/NAME", help="Publish checkpoints there on the Hugging Face Hub, too; none: nowhere."),
]
DashboardAt = Annotated[
    str,
    typer.Option(
        metavar="[HOST:]PORT",
        help="Where a backbone's dashboard is; default: port 8470, for this machine only; none: nowhere.",
    ),
]


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
    directory: Annotated[Path, typer.Argument(help="Directory of the run, made with 'collab-peer init'.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",  # noqa: S104 - a backbone is dialled
    port: Annotated[int, typer.Option(help="TCP port to listen on; 0: any free one.")] = 0,
    announce: Annotated[
        list[str] | None, typer.Option(help="Public multiaddress to put into invites, such as /ip4/1.2.3.4/tcp/4000.")
    ] = None,
    invite_file: Annotated[Path | None, typer.Option(help="Write the invite here, too.")] = None,
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
    max_upload: MaxUpload = None,
    max_download: MaxDownload = None,
    store: Store = "",
    dashboard: DashboardAt = "",
    track: Annotated[
        str, typer.Option(help="Who gets the run's figures: wandb, trackio, none, or auto (wandb, where it has a key).")
    ] = "auto",
    as_json: AsJson = False,
    log_level: LogLevel = "warning",
) -> None:
    """Start the backbone of a run: bootstrap, state, checkpoints. Needs no GPU. Prints the invite."""
    if new_owner and not begin_with:
        raise typer.BadParameter("--new-owner goes with --from: name the checkpoint to begin with")
    if track not in ("auto", "wandb", "trackio", "none"):
        raise typer.BadParameter(f"expected auto, wandb, trackio or none, got {track!r}", param_hint="--track")
    if begin_with and not new_owner and Path(begin_with).exists():
        raise typer.BadParameter("--from CHECKPOINT and --new-owner go together: peers of the old run need new invites")
    from peers.process import configure_logging, run_peer

    configure_logging(log_level)
    from peers.hosting import HostOptions, host as serve
    from peers.wiring import limits_from

    options = HostOptions(
        directory=directory,
        host=host,
        port=port,
        announce=tuple(announce or ()),
        invite_file=invite_file,
        allowed_modules=tuple(allow or ()),
        begin_with=begin_with,
        is_new_owner=new_owner,
        hub_repo=hub_repo,
        limits=limits_from(max_upload, max_download),
        store=store,
        dashboard=dashboard,
        track=track,
        as_json=as_json,
    )
    raise typer.Exit(run_peer(lambda stop: serve(options, stop)))


@app.command()
def join(
    invite: InviteText,
    role: Annotated[str, typer.Option(help="trainer, auxiliary (lends bandwidth only) or backbone.")] = "trainer",
    name: Annotated[str, typer.Option(help="What others see; default: this machine's name.")] = "",
    data_dir: Annotated[Path | None, typer.Option(help="Where this peer keeps its key and metrics.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Leave after contributing to so many steps.", min=1)] = None,
    microbatch_size: Annotated[int | None, typer.Option(help="Samples of one forward and backward.", min=1)] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; default: the first GPU.")] = None,
    allow: Allow = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int, typer.Option(help="TCP port to listen on; 0: any free one.")] = 0,
    max_upload: MaxUpload = None,
    max_download: MaxDownload = None,
    credit: Annotated[bool, typer.Option("--credit", help="Your --name may be published with the model.")] = False,
    hub_repo: HubRepo = "",
    reach: ReachText = "auto",
    store: Store = "",
    dashboard: DashboardAt = "",
    clock_error_s: Annotated[float, typer.Option(hidden=True, help="Pretend that the clock is off; for tests.")] = 0.0,
    as_json: AsJson = False,
    log_level: LogLevel = "warning",
) -> None:
    """Join a run and train until Ctrl+C or until it is finished."""
    from peers.process import configure_logging, run_peer

    configure_logging(log_level)
    from collab.types import Role
    from peers.hub_lookup import apart, word_of
    from peers.joining import JoinOptions, join as take_part
    from peers.places import claim_data_dir
    from peers.wiring import Reach, invite_from, limits_from

    _check(role)
    limits = limits_from(max_upload, max_download)
    way = Reach(host=host, port=port, asked_for=_asked_for(reach), limits=limits, clock_error_s=clock_error_s)
    if role == Role.BACKBONE:
        from peers.joined_backbone import join_as_backbone as take_part

    async def main(stop: "asyncio.Event") -> None:
        word = await apart(lambda: word_of(invite))
        with claim_data_dir(data_dir, invite_from(word).run_id) as claimed:
            options = JoinOptions(
                invite=word,
                role=Role(role),
                name=(name or platform.node() or "peer")[:40],
                data_dir=claimed,
                reach=way,
                epochs=epochs,
                microbatch_size=microbatch_size,
                device=device,
                allowed_modules=tuple(allow or ()),
                store=store,
                hub_repo=hub_repo,
                dashboard=dashboard,
                wants_credit=credit,
                as_json=as_json,
            )
            await take_part(options, stop)

    raise typer.Exit(run_peer(main))


def _check(role: str) -> None:
    from collab.types import Role

    if role not in list(Role):
        raise typer.BadParameter(f"expected trainer, auxiliary or backbone, got {role!r}", param_hint="--role")


def _asked_for(reach: str) -> "Reachability | None":
    """How others can reach this machine, as its owner says; None: they are to try."""
    from collab.types import Reachability

    if reach not in ("auto", Reachability.DIRECT, Reachability.CLIENT):
        raise typer.BadParameter(f"expected auto, direct or client, got {reach!r}", param_hint="--reach")
    return None if reach == "auto" else Reachability(reach)


@app.command()
def status(invite: InviteText, as_json: AsJson = False, log_level: LogLevel = "error") -> None:
    """Show who is in the swarm and how far it is."""
    from peers.process import configure_logging, run_plain

    configure_logging(log_level)
    from peers.hub_lookup import word_of
    from peers.status import run_status

    run_plain(lambda: run_status(word_of(invite), as_json=as_json))


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


cli_owner.register(app)
cli_plan.register(app)
cli_simulate.register(app)


def main() -> None:
    """Entry point of the console script; every option can also come as COLLAB_<COMMAND>_<OPTION>."""
    app(auto_envvar_prefix="COLLAB")


if __name__ == "__main__":
    main()
