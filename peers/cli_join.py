"""The command of a volunteer."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from peers.cli_options import (
    Allow,
    AsJson,
    DashboardAt,
    GpuMemory,
    HubEvery,
    HubRepo,
    InviteText,
    Keep,
    Listening,
    LogLevel,
    MaxDownload,
    MaxUpload,
    MonthlyGb,
    OnBattery,
    Plain,
    PrintConfig,
    Priority,
    Quiet,
    ReachText,
    Store,
    Track,
    When,
    Without,
    Yes,
    check_style,
    check_track,
    duties_off,
)
from peers.hub_pace import HUB_EVERY_MIN

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from collab.types import Reachability
    from peers.anew import HandedOn
    from peers.joining import JoinOptions


def join(
    context: typer.Context,
    invite: InviteText,
    role: Annotated[str, typer.Option(help="trainer, auxiliary (lends bandwidth only) or backbone.")] = "trainer",
    name: Annotated[str, typer.Option(help="What others see; default: the machine's name, without an address.")] = "",
    data_dir: Annotated[Path | None, typer.Option(help="Where this peer keeps its key and metrics.")] = None,
    keep: Keep = None,
    epochs: Annotated[int | None, typer.Option(help="Leave after contributing to so many steps.", min=1)] = None,
    microbatch_size: Annotated[int | None, typer.Option(help="Samples of one forward and backward.", min=1)] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; default: the first GPU.")] = None,
    gpu_memory: GpuMemory = None,
    when: When = "always",
    on_battery: OnBattery = False,
    priority: Priority = "low",
    monthly_gb: MonthlyGb = None,
    max_upload: MaxUpload = None,
    max_download: MaxDownload = None,
    allow: Allow = None,
    host: Annotated[str | None, Listening] = None,
    port: Annotated[int, typer.Option(help="TCP port to listen on; 0: any free one.")] = 0,
    credit: Annotated[bool, typer.Option("--credit", help="Your --name may be published with the model.")] = False,
    hub_repo: HubRepo = "",
    hub_every: HubEvery = HUB_EVERY_MIN,
    reach: ReachText = "auto",
    store: Store = "",
    dashboard: DashboardAt = "",
    track: Track = "none",
    without: Without = "",
    yes: Yes = False,
    plain: Plain = False,
    quiet: Quiet = False,
    clock_error_s: Annotated[float, typer.Option(hidden=True, help="Pretend that the clock is off; for tests.")] = 0.0,
    as_json: AsJson = False,
    print_config: PrintConfig = False,
    log_level: LogLevel = "warning",
) -> None:
    """Join a run and train until Ctrl+C or until it is finished."""
    check_style(is_plain=plain, is_quiet=quiet, as_json=as_json)
    _check(role, priority, keep, track)
    asked_for, off = _asked_for(reach), duties_off(without)
    if print_config:
        _show(context)
        return
    life_before = _begin(invite, log_level, is_quiet=quiet)
    from collab.net.address_text import machine_name
    from peers.joining import JoinOptions
    from peers.occasions import HouseRules
    from peers.screen import style_of
    from peers.wiring import Reach, limits_from

    limits = limits_from(max_upload, max_download)
    options = partial(
        JoinOptions, name=(name or machine_name())[:40],
        reach=Reach(host=host, port=port, asked_for=asked_for, limits=limits, clock_error_s=clock_error_s),
        rules=HouseRules(when=when, works_on_battery=on_battery, monthly_gb=monthly_gb, is_modest=priority == "low"),
        epochs=epochs, microbatch_size=microbatch_size, device=device, gpu_memory_gb=gpu_memory, as_json=as_json,
        hub_repo=hub_repo, hub_every_min=hub_every, allowed_modules=tuple(allow or ()), wants_credit=credit, off=off,
        store=store, dashboard=dashboard, track=track, style=style_of(is_plain=plain, is_quiet=quiet), has_agreed=yes,
    )  # fmt: skip
    raise typer.Exit(_run(invite, role, Places(data_dir, keep, life_before), options))


class Places(NamedTuple):
    """Where a peer's things are, as its owner says."""

    data_dir: Path | None
    keep: Path | None
    """What it needs to be the same peer on the next machine, by run."""
    life_before: "HandedOn | None" = None
    """Of this process, with its invite and its directory; None: it is new."""


def _show(context: typer.Context) -> None:
    from peers.printed_config import print_config

    print_config(context)


def _run(invite: str, role: str, places: Places, options: "Callable[..., JoinOptions]") -> int:
    from peers.anew import begin_anew, ignored_signals
    from peers.process import run_peer

    ignored = ignored_signals()

    async def live(stop: "asyncio.Event") -> None:
        next_life = await _take_part(invite, role, places, options, stop)
        if next_life is not None:
            begin_anew(next_life, ignored, is_to_leave=stop.is_set())

    return run_peer(live)


async def _take_part(
    invite: str, role: str, places: Places, options: "Callable[..., JoinOptions]", stop: "asyncio.Event"
) -> "HandedOn | None":
    from collab.types import Role
    from peers.hub_lookup import apart, word_of
    from peers.invites import pasted
    from peers.lasting import kept_in
    from peers.places import claim_data_dir
    from peers.wiring import invite_from

    take_part: Callable[[JoinOptions, asyncio.Event], Awaitable[HandedOn | None]]
    if role == Role.BACKBONE:
        from peers.joined_backbone import join_as_backbone as take_part
    else:
        from peers.joining import join as take_part

    life_before, data_dir = places.life_before, places.data_dir
    word = life_before.invite if life_before else pasted(await apart(lambda: word_of(invite)))
    run_id = invite_from(word).run_id
    if life_before is not None:
        data_dir = life_before.let_go()
    with claim_data_dir(data_dir, run_id, pauses=role != Role.BACKBONE) as claimed:
        async with kept_in(places.keep and places.keep / run_id, claimed):
            chosen = options(invite=word, role=Role(role), data_dir=claimed, life_before=life_before)
            return await take_part(chosen, stop)


def _check(role: str, priority: str, keep: Path | None, track: str) -> None:
    """Refuse what cannot be meant."""
    check_track(track)
    if role not in ("trainer", "auxiliary", "backbone"):
        raise typer.BadParameter(f"expected trainer, auxiliary or backbone, got {role!r}", param_hint="--role")
    if priority not in ("low", "normal"):
        raise typer.BadParameter(f"expected low or normal, got {priority!r}", param_hint="--priority")
    if keep is not None and role == "backbone":
        raise typer.BadParameter("a backbone needs all of its --data-dir: back that up", param_hint="--keep")


def _begin(invite: str, log_level: str, *, is_quiet: bool) -> "HandedOn | None":
    """Say at once what this is about, or what is wrong with it: what is imported next takes seconds.

    Returns:
        What this process has handed on to itself, of which all was said before; None: it is new.
    """
    from peers.anew import handed_on
    from peers.invites import first_words
    from peers.process import announce, configure_logging, run_plain
    from peers.terminal import outlive_hearers

    outlive_hearers()
    configure_logging(log_level)
    if (life_before := handed_on()) is not None:
        return life_before
    words: list[str] = []
    run_plain(lambda: words.append(first_words(invite)))
    if not is_quiet:
        announce(words[0])
    return None


def _asked_for(reach: str) -> "Reachability | None":
    """How others can reach this machine, as its owner says; None: they are to try."""
    from collab.types import Reachability

    if reach not in ("auto", Reachability.DIRECT, Reachability.CLIENT):
        raise typer.BadParameter(f"expected auto, direct or client, got {reach!r}", param_hint="--reach")
    return None if reach == "auto" else Reachability(reach)


def register(app: typer.Typer) -> None:
    """Add the command to ``collab-peer``."""
    app.command()(join)
