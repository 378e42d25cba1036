"""``collab-peer join``: a volunteer's process."""

import asyncio
import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from collab.errors import ConfigError, NetworkError
from collab.metrics.records import Event, Notice
from collab.metrics.sinks import Fanout, JsonLines
from collab.net.startup import Started
from collab.swarm.bundle import Bundle
from collab.swarm.progress import SwarmView
from collab.swarm.reachability import Verdict
from collab.types import Reachability, Role
from peers.auxiliary import Auxiliary, AuxiliarySettings
from peers.places import DataDir, cache_dir
from peers.process import announce, settle_heap
from peers.screen import LivePanel, choose_screen
from peers.summary import told
from peers.wiring import Reach, invite_from, start_from_invite


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOptions:
    """What a volunteer can say."""

    invite: str
    role: Role
    name: str
    data_dir: DataDir
    reach: Reach
    epochs: int | None = None
    microbatch_size: int | None = None
    device: str | None = None
    allowed_modules: tuple[str, ...] = ()
    store: str = ""
    hub_repo: str = ""
    """Where a backbone publishes checkpoints on the Hub, too; empty: nowhere."""
    dashboard: str = ""
    """Where a backbone shows the run to browsers: see ``listen``."""
    wants_credit: bool = False
    """Whether the name may be published with the model."""
    as_json: bool = False


class Relay:
    """An observer that can be pointed somewhere after it was handed out."""

    def __init__(self) -> None:
        self.sink: Fanout | None = None

    def observe(self, event: Event) -> None:
        if self.sink is not None:
            self.sink.observe(event)


async def join(options: JoinOptions, stop: asyncio.Event) -> None:
    """Join and work until stopped or finished; prints a summary at the end."""
    of_backbones = (
        (options.store, "--store", "keeps parameters"),
        (options.hub_repo, "--hub-repo", "publishes checkpoints"),
        (options.dashboard, "--dashboard", "shows the whole run"),
    )
    for _, flag, does in [one for one in of_backbones if one[0]]:
        raise ConfigError(f"only a backbone {does}", hint=f"leave {flag} out, or join with --role backbone")
    relay = Relay()
    invite = invite_from(options.invite)
    announce(f"joining {invite.run_id} ...")
    async with start_from_invite(invite, options.data_dir, options.reach, relay) as (started, bundle):
        announce(f"connected as {started.ports.transport.peer_id} (clock offset {started.clock_offset_s:+.2f} s)")
        _announce_reach(started.verdict)
        started.reaching.follow(_announce_reach)
        started.reaching.follow(lambda verdict: relay.observe(verdict.event(started.ports.clock.now())))
        if options.role is Role.AUXILIARY:
            await _assist(started, bundle, options, relay, stop)
        else:
            await _train(started, bundle, options, relay, stop)


def _announce_reach(verdict: Verdict) -> None:
    announce(f"reach: {verdict.reach}: {verdict.text}" + (f"\n  -> {verdict.hint}" if verdict.hint else ""))


async def _train(started: Started, bundle: Bundle, options: JoinOptions, relay: Relay, stop: asyncio.Event) -> None:
    from peers.machine import build_trainer

    building = asyncio.ensure_future(build_trainer(started, bundle, options, cache_dir()))
    await asyncio.wait((building, asyncio.ensure_future(stop.wait())), return_when=asyncio.FIRST_COMPLETED)
    if not building.done():
        building.cancel()
        return
    trainer = building.result()
    with ExitStack() as stack:
        relay.sink = _sinks(options, started, bundle, lambda: trainer.participant.membership.view, stack)
        relay.observe(started.verdict.event(started.ports.clock.now(), started.verdict_s))
        settle_heap()
        await trainer.run(stop)
    record, vitals = trainer.participant.teller.record(), trainer.participant.vitals
    _summarise(
        options,
        {
            "id": record.peer,
            "role": record.role,
            "epoch": record.epoch,
            "lineage": record.lineage,
            "epochs_contributed": vitals.epochs_contributed,
            "samples": vitals.total_samples,
            "loss": told(vitals.loss),
            "eval_epoch": vitals.eval_epoch,
            "eval_loss": vitals.evaluation.loss if vitals.eval_epoch >= 0 else None,
            "eval_accuracy": told(vitals.evaluation.accuracy),
        },
    )


async def _assist(started: Started, bundle: Bundle, options: JoinOptions, relay: Relay, stop: asyncio.Event) -> None:
    """
    Raises:
        NetworkError: nobody can dial this machine, so it is of no use to others.
    """
    if started.verdict.reach is not Reachability.DIRECT:
        raise NetworkError(
            "an auxiliary peer averages for others, who must be able to dial it",
            hint="forward a TCP port of the router to this machine and join with --port and its number; "
            "if others can dial it and none of them could try, add --reach direct",
        )
    auxiliary = Auxiliary(started.ports, started.identity, bundle, AuxiliarySettings(options.name))
    with ExitStack() as stack:
        relay.sink = _sinks(options, started, bundle, lambda: auxiliary.membership.view, stack)
        relay.observe(started.verdict.event(started.ports.clock.now(), started.verdict_s))
        relay.observe(
            Notice(at_s=started.ports.clock.now(), text="helping to average; this machine trains nothing itself")
        )
        await auxiliary.run(stop)
    record = auxiliary.record()
    summary = {"id": record.peer, "role": record.role, "rounds": auxiliary.assistant.rounds_committed}
    _summarise(options, summary)


def _sinks(
    options: JoinOptions, started: Started, bundle: Bundle, view: Callable[[], SwarmView], stack: ExitStack
) -> Fanout:
    title, refusals = f"collab: {bundle.run.run_id}", started.refusals.rows
    screen = choose_screen(as_json=options.as_json, title=title, view=view, refusals=refusals)
    if isinstance(screen, LivePanel):
        stack.enter_context(screen)
    return Fanout(screen, JsonLines(options.data_dir.metrics))


def _summarise(options: JoinOptions, summary: dict[str, Any]) -> None:
    if options.as_json:
        print(json.dumps({"event": "Summary", **summary}), flush=True)  # noqa: T201
    elif summary["role"] == Role.TRAINER:
        announce(
            f"left at epoch {summary['epoch']}: you contributed {summary['samples']} samples "
            f"to {summary['epochs_contributed']} steps. Thank you!"
        )
    else:
        announce(f"left after helping in {summary['rounds']} rounds. Thank you!")
