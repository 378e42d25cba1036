"""A backbone's process, once it is in the network: the organiser's, or one that has joined."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from collab.concurrency import Background
from collab.metrics.backbone_events import DashboardServed
from collab.metrics.records import Notice
from collab.metrics.sinks import Fanout, Sink
from collab.metrics.tracking import Service
from collab.net.startup import Started
from collab.ports import Ports
from collab.swarm.bundle import Bundle
from collab.swarm.duties import NOTHING_OFF, Duty
from collab.swarm.identity import Identity
from collab.types import Role
from peers.backbone import Backbone
from peers.backbone_settings import BackboneSettings
from peers.dashboard.address import NOWHERE, listen, url_of
from peers.exhibiting import TRACKING_LIMIT_S, Kept, all_is_well, keep_record, show, start_tracking
from peers.hub_service import HubService, serve_hub
from peers.joining import Relay
from peers.panel import LivePanel, Watched
from peers.places import DataDir, cache_dir
from peers.process import keep_heap_small, settle_heap
from peers.progress import ProgressTeller, StepTeller, ahead_of_swarm
from peers.screen import Style, choose_screen
from peers.stores import open_stores
from peers.tally import Tally
from peers.telling import say
from peers.workshop import Workshop

if TYPE_CHECKING:
    from collab.swarm.forms import Forms
    from collab.swarm.snapshots import Snapshot
    from collab.tasks.base import Evaluation, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a backbone runs, and under which name."""

    data_dir: DataDir
    name: str
    as_json: bool
    store: str = ""
    """Where the parameters of a run with parameter servers are: a file, or an address of Redis; empty: nowhere."""
    owner: Identity | None = None
    """Of the run, where its key is."""
    hub: HubService | None = None
    """Where checkpoints are published on the Hub; None: nowhere."""
    dashboard: str = NOWHERE
    """Where the run is shown to browsers: see ``listen``."""
    tracking: Service | None = None
    """Where the run's figures go, too; None: nowhere."""
    off: frozenset[Duty] = NOTHING_OFF
    """What the backbone does not do."""
    style: Style = Style.AUTO


@dataclass(frozen=True, slots=True)
class Serving:
    """How it goes on until it ends."""

    relay: Relay
    stop: asyncio.Event
    welcome: Callable[[Backbone], Awaitable[None]]
    """Called when it serves: tells a person what to do now."""


async def _note_credits(kept: Kept, ports: Ports, backbone: Backbone) -> None:
    members = backbone.membership
    await kept.book.keep(ports, lambda: members.view, members.voice_of, backbone.contributors)


async def serve_backbone(
    started: Started, bundle: Bundle, workshop: Workshop, place: Place, serving: Serving
) -> None:
    """Serve until ``serving.stop`` is set."""
    ports = started.ports
    with ExitStack() as stack:
        has_record = Duty.METRICS not in place.off
        listening = listen(place.dashboard if has_record else NOWHERE)
        if listening is not None:
            stack.callback(listening.close)
        stores = await ports.compute.beside(lambda: open_stores(bundle, place.store, place.data_dir.parameters))
        if stores is not None:
            stack.callback(stores.close)
        of_this = ports, bundle.run, place.data_dir, stack
        kept = await keep_record(*of_this, lambda: backbone.membership.view) if has_record else None
        teller = ProgressTeller(serving.relay.observe, ports.clock)
        settings = BackboneSettings(
            name=place.name,
            data_dir=place.data_dir,
            stores=stores,
            owner=place.owner,
            off=place.off,
            noted_era=await ports.compute.beside(kept.history.era) if kept is not None else None,
            tell_writing=partial(teller.tell, "writing a checkpoint"),
        )
        backbone = Backbone(ports, started.identity, bundle, workshop, settings)
        url = url_of(listening) if listening is not None else ""
        not_published = kept.publishing.problem if kept is not None else all_is_well
        watched = watch(backbone, started, bundle, url, not_published)
        screen = choose_screen(watched, as_json=place.as_json, style=place.style)
        steps = StepTeller(serving.relay.observe, ports.clock, watched.awaited)
        sinks: list[Sink] = [watched.tally, screen, steps, *(kept.sinks if kept is not None else ())]
        if (tracker := start_tracking(place.tracking, ports, bundle, place.data_dir)) is not None:
            stack.callback(tracker.close, TRACKING_LIMIT_S)
            sinks.append(tracker)
        serving.relay.sink = Fanout(*sinks)
        await backbone.begin()
        await serving.welcome(backbone)
        if url:
            say(f"dashboard: {url}", place.style)
        if isinstance(screen, LivePanel):
            stack.enter_context(screen)
        serving.relay.observe(Notice(at_s=ports.clock.now(), text=f"serving run {bundle.run.run_id}"))
        settle_heap()
        async with Background() as tasks:
            tasks.create_task(keep_heap_small())
            tasks.create_task(steps.run())
            if kept is not None:
                tasks.create_task(kept.recorder.run())
                tasks.create_task(_note_credits(kept, ports, backbone))
                if listening is not None:
                    tasks.create_task(show(listening, ports, backbone, place.data_dir, kept))
                    serving.relay.observe(DashboardServed(at_s=ports.clock.now(), url=url))
                if place.hub is not None:
                    tasks.create_task(serve_hub(ports, backbone, place.data_dir, place.hub, kept, teller))
            await backbone.run(serving.stop)
        if place.as_json:
            record = backbone.record()
            summary = {"id": record.peer, "role": record.role, "epoch": record.epoch, "lineage": record.lineage}
            print(json.dumps({"event": "Summary", **summary}), flush=True)  # noqa: T201


def watch(
    backbone: Backbone, started: Started, bundle: Bundle, url: str, not_published: Callable[[], tuple[str, str]]
) -> Watched:
    """As its screen asks for it.

    Args:
        not_published: what keeps the newest checkpoint from the Hub, and what to do; both empty: nothing does.
    """
    clock, mandate, tally = started.ports.clock, backbone.statutes.mandate, Tally()
    members, credible = backbone.membership, backbone.reporter.credible
    return Watched(
        title=f"collab backbone: {bundle.run.run_id}" + (f", {url}" if url else ""),
        role=Role.BACKBONE,
        view=lambda: credible.of(members.view),
        ahead=lambda: ahead_of_swarm(credible, mandate, members.view, clock.now(), tally.rhythm),
        tally=tally,
        refusals=started.refusals.rows,
        problem=lambda: _standing_problem(backbone, not_published()),
    )


def _standing_problem(backbone: Backbone, not_published: tuple[str, str]) -> str:
    """Why it cannot do its work, what comes of it is not kept, or it is too old, and what to do; empty: all is well."""
    standing = (backbone.not_saved(), (backbone.problem(), ""), not_published, backbone.outdated.problem())
    return next(("\n  -> ".join(filter(None, told)) for told in standing if told[0]), "")


def task_of(
    bundle: Bundle, peer_id: str, base_dir: Path | None = None, allowed_modules: tuple[str, ...] = ()
) -> "Task":
    """The run's task. Imports torch, or what else the task needs."""
    from collab.tasks.registry import build_task

    return build_task(
        bundle.run,
        assets=bundle.assets,
        cache_dir=cache_dir(),
        peer_id=peer_id,
        base_dir=base_dir,
        allowed=allowed_modules,
    )


def workshop_with(task: Callable[[], "Task"], make_first_state: Callable[[], "Snapshot"] | None = None) -> Workshop:
    """What torch does for a backbone; the task is built when something of it is asked for."""
    return Workshop(
        make_first_state=make_first_state,
        checkpoint_files=lambda: task().checkpoint_files(),
        evaluate=lambda state: worth_of(task(), state),
        copied_names=lambda: names_of(task()),
        model_forms=lambda: forms_of_model(task),
    )


def names_of(task: "Task") -> tuple[str, ...]:
    """Of what a client's copy of the model is made of, in the order of the vector. Imports torch."""
    from collab.training.copy_layout import CopyLayout

    return CopyLayout(task.build_model()).names


def forms_of_model(task: Callable[[], "Task"]) -> "Forms":
    """What each state of the run has of the model. Imports torch.

    Raises:
        ConfigError, DataError: the task cannot be had on this machine.
        TaskFailed: its code has failed.
    """
    from collab.tasks.evaluation import blaming_task
    from collab.training.shared_state import model_forms

    with blaming_task("build its model"):
        return model_forms(task().build_model)


def worth_of(task: "Task", state: "Snapshot") -> "Evaluation":
    """What a state is worth on the held-out split. Imports torch."""
    from collab.training.judging import evaluate_state

    return evaluate_state(task, state)
