"""The commands of an organiser, for who holds the owner's key of a run."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

Directory = Annotated[Path, typer.Argument(help="Directory of the run, with the owner's key.")]
LogLevel = Annotated[str, typer.Option("--log-level", help="debug, info, warning or error; to standard error.")]
Who = Annotated[str, typer.Argument(help="A peer (its id or name, see 'collab-peer status') or an invited person.")]


def invite(
    context: typer.Context,
    directory: Directory,
    name: Annotated[str, typer.Option(help="Of the person; others see it.")] = "",
    devices: Annotated[int, typer.Option(help="Machines at the same time.", min=1, max=100)] = 5,
    days: Annotated[float, typer.Option(help="Until the invite ends.", min=0.001)] = 30.0,
    role: Annotated[str, typer.Option(help="trainer, or backbone: who may host the run, too.")] = "trainer",
    list_all: Annotated[bool, typer.Option("--list", help="Show who was invited.")] = False,
    revoke: Annotated[str, typer.Option(help="Make the invites of this person worthless, now.")] = "",
    reason: Annotated[str, typer.Option(help="Of revoking; the person is told.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    log_level: LogLevel = "error",
) -> None:
    """Invite a person by name: prints one word to send. Or list invites, or revoke one."""
    if sum((bool(name), list_all, bool(revoke))) != 1:
        raise typer.BadParameter("give one of --name NAME, --list and --revoke NAME")
    if not name:
        _refuse_without("--name", context, "devices", "days", "role")
    if not revoke:
        _refuse_without("--revoke", context, "reason")
    if role not in ("trainer", "backbone"):
        raise typer.BadParameter(f"expected trainer or backbone, got {role!r}", param_hint="--role")
    from peers.process import configure_logging, run_plain

    configure_logging(log_level)
    from collab.types import Role
    from peers.inviting import list_invites, print_invite, revoke as make_worthless

    if name:
        made = partial(print_invite, devices=devices, days=days, role=Role(role), as_json=as_json)
        run_plain(lambda: made(directory, name))
    elif list_all:
        _command(list_invites(directory, as_json=as_json), log_level)
    else:
        _command(make_worthless(directory, revoke, reason, as_json=as_json), log_level)


def _refuse_without(needed: str, context: typer.Context, *names: str) -> None:
    """Refuse options, if they were typed, that mean something beside ``needed`` only."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"it goes with {needed}: leave it out", param_hint=f"--{name}")


def ban(
    directory: Directory,
    who: Who,
    reason: Annotated[str, typer.Option(help="The banned are told.")],
    days: Annotated[float | None, typer.Option(help="Until the ban ends; default: never.", min=0.001)] = None,
    log_level: LogLevel = "error",
) -> None:
    """Nobody of the swarm deals with a peer, or a person, any more."""
    from peers.commanding import ban as give

    _command(give(directory, who, reason=reason, days=days), log_level)


def pardon(directory: Directory, who: Who, log_level: LogLevel = "error") -> None:
    """End a ban."""
    from peers.commanding import pardon as give

    _command(give(directory, who), log_level)


def amend(
    directory: Directory,
    learning_rate: Annotated[float | None, typer.Option(help="Of the optimiser, before the schedule.")] = None,
    target_batch: Annotated[int | None, typer.Option(help="Samples of one global step.", min=1)] = None,
    minimum_version: Annotated[str | None, typer.Option(help="Of collab; older peers stop and say so.")] = None,
    at: Annotated[int | None, typer.Option(help="First epoch of the change; default: in ten epochs.", min=1)] = None,
    log_level: LogLevel = "error",
) -> None:
    """Change a run while it goes on, for everybody at the same epoch."""
    from peers.commanding import Change, amend as give

    change = Change(learning_rate=learning_rate, target_batch_size=target_batch, minimum_version=minimum_version)
    _command(give(directory, change, at), log_level)


def rollback(
    directory: Directory,
    epoch: Annotated[int, typer.Argument(help="Of a checkpoint that the backbone has.", min=0)],
    log_level: LogLevel = "error",
) -> None:
    """Everybody goes back to a checkpoint, and on from there; what came after it never counted."""
    from peers.commanding import rollback as give

    _command(give(directory, epoch), log_level)


def end(
    directory: Directory,
    at: Annotated[int | None, typer.Option(help="Last epoch; default: one some seconds off.", min=1)] = None,
    log_level: LogLevel = "error",
) -> None:
    """Finish the run: everybody saves, and leaves."""
    from peers.commanding import end as give

    _command(give(directory, at), log_level)


def _command(coroutine: "Coroutine[Any, Any, None]", log_level: str) -> None:
    import asyncio

    from peers.process import configure_logging, run_plain

    configure_logging(log_level)
    run_plain(lambda: asyncio.run(coroutine))


def register(app: typer.Typer) -> None:
    """Add the commands of this page."""
    for command in (invite, ban, pardon, amend, rollback, end):
        app.command()(command)
