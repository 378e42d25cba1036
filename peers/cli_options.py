"""Options that several commands have."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peers import cli_owner

if TYPE_CHECKING:
    from collab.swarm.duties import Duty


def _to_announce(texts: list[str] | None) -> list[str]:
    """As multiaddresses.

    Raises:
        BadParameter: one of them is no address.
    """
    from collab.net.listening import to_announce

    try:
        return [to_announce(text) for text in texts or ()]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _to_listen(text: str | None) -> str | None:
    """As an address of this machine.

    Raises:
        BadParameter: it is none.
    """
    from collab.net.listening import to_listen

    try:
        return to_listen(text) if text is not None else None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


LogLevel = cli_owner.LogLevel
MAX_MBIT_PER_S = 1e6
"""A terabit a second: whoever limits a link to more has slipped a unit."""
MAX_GB = 1e6
"""A petabyte: the same of memory and of a month's traffic."""
MAX_HUB_EVERY_MIN = 10080.0
"""A week: who wants less publishes nothing."""
Limit = partial(typer.Option, min=0.1, max=MAX_MBIT_PER_S)
Gigabytes = partial(typer.Option, min=0.001, max=MAX_GB)
MaxUpload = Annotated[float | None, Limit(help="Mbit/s that this peer may send; default: all it can.")]
MaxDownload = Annotated[float | None, Limit(help="Mbit/s that this peer may take in; default: all it can.")]
Listening = typer.Option(callback=_to_listen, metavar="ADDRESS", help="IPv4 address to listen on, or localhost.")
Announce = Annotated[
    list[str] | None,
    typer.Option(
        callback=_to_announce,
        metavar="ADDRESS",
        help="Public address to put into invites: /ip4/1.2.3.4/tcp/4000, 1.2.3.4:4000 or name:4000.",
    ),
]
Allow = Annotated[list[str] | None, typer.Option(help="Module of others that may run here, if the run names it.")]
Store = Annotated[
    str,
    typer.Option(metavar="WHERE", help="Where a vc_asgd run's parameters are: a file, or redis://host:6379/0."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of words for people.")]
InviteText = Annotated[
    str, typer.Argument(metavar="INVITE|ORG/NAME", help="The invite, a file that holds it, or the model on the Hub.")
]
Keep = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="A folder that outlives this machine, such as a mounted drive: the next one's peer with it is the same.",
    ),
]
ReachText = Annotated[
    str, typer.Option(help="How others reach this machine: auto (they try), direct, or client (it only dials).")
]
HubRepo = Annotated[
    str,
    typer.Option(metavar="ORG/NAME", help="Publish checkpoints there on the Hugging Face Hub, too; none: nowhere."),
]
HubEvery = Annotated[
    float,
    typer.Option(
        metavar="MINUTES",
        min=0.0,
        max=MAX_HUB_EVERY_MIN,
        help="From one commit there to the next, at least; 0: each checkpoint. The last one goes in any case.",
    ),
]
DashboardAt = Annotated[
    str,
    typer.Option(
        metavar="[HOST:]PORT",
        help="Where a backbone's dashboard is; default: port 8470, for this machine only; none: nowhere.",
    ),
]
Track = Annotated[
    str, typer.Option(help="Who gets the run's figures: wandb, trackio, none, or auto (wandb, where it has a key).")
]
Without = Annotated[
    str,
    typer.Option(
        metavar="DUTY,...",
        help="What a backbone is not to do: bootstrap, relay, reducer, state, checkpoints, metrics, parameters.",
    ),
]
When = Annotated[
    str, typer.Option(metavar="always|idle|HH:MM-HH:MM", help="When to work, by this machine's clock; else it pauses.")
]
OnBattery = Annotated[bool, typer.Option("--on-battery", help="Go on while the machine runs on battery.")]
MonthlyGb = Annotated[
    float | None, Gigabytes(help="GB to send and take in a month at most, a dataset's download too; then it pauses.")
]
GpuMemory = Annotated[float | None, Gigabytes(help="GB of the GPU's memory that it may take; default: what it needs.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask before this machine takes part for the first time.")]
Plain = Annotated[bool, typer.Option("--plain", help="Lines in place of the panel, also on a terminal.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Say nothing but problems.")]
PrintConfig = Annotated[
    bool,
    typer.Option("--print-config", help="Print what it would go by, and where each value comes from; start nothing."),
]
Priority = Annotated[str, typer.Option(help="low: other programs go first; normal: it takes its share.")]


def check_style(*, is_plain: bool, is_quiet: bool, as_json: bool) -> None:
    """
    Raises:
        BadParameter: more than one way to talk to a person, or to a program, was asked for.
    """
    if is_plain + is_quiet + as_json > 1:
        raise typer.BadParameter("give one of --plain, --quiet and --json")


def check_track(track: str) -> None:
    """
    Raises:
        BadParameter: ``Track`` names nothing.
    """
    if track not in ("auto", "wandb", "trackio", "none"):
        raise typer.BadParameter(f"expected auto, wandb, trackio or none, got {track!r}", param_hint="--track")


def duties_off(without: str) -> "frozenset[Duty]":
    """What ``Without`` names.

    Raises:
        BadParameter: there is no such duty.
    """
    from collab.swarm.duties import read_duties

    try:
        return read_duties(without)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--without") from None
