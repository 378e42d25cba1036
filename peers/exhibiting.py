"""From a backbone to its dashboard: what the page is made of."""

import asyncio
import hashlib
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from collab.config import Run
from collab.metrics.recorder import Recorder
from collab.metrics.records import Notice
from collab.metrics.sinks import JsonLines, Sink
from collab.metrics.store import MetricsStore
from collab.metrics.tracking import Service, Tracked, Tracker
from collab.ports import Ports
from collab.swarm.bundle import Bundle
from collab.swarm.progress import SwarmView
from peers.backbone import Backbone
from peers.credits import CreditBook, has_rounds
from peers.dashboard.recent import Recent
from peers.places import DataDir

TRACKING_LIMIT_S = 1.5
"""For a tracking service to take what is left when the backbone leaves."""


def all_is_well() -> tuple[str, str]:
    """Nothing keeps anything from the Hub, or it is not used."""
    return "", ""


@dataclass(slots=True)
class Publishing:
    """Where publishing stands, for the dashboard and the panel."""

    standing: Callable[[], tuple[str, str]] = all_is_well
    """Set by whoever publishes."""

    def problem(self) -> tuple[str, str]:
        """What keeps the newest checkpoint from the Hub, and what to do; both empty: nothing does."""
        return self.standing()


@dataclass(frozen=True, slots=True)
class Kept:
    """What a backbone writes down for people."""

    book: CreditBook
    history: MetricsStore
    recorder: Recorder
    """Writes to ``history``."""
    recent: Recent
    log: JsonLines
    """All events."""
    publishing: Publishing = field(default_factory=Publishing)

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """Which events go to."""
        return self.log, self.recorder, self.recent


async def keep_record(
    ports: Ports, run: Run, data_dir: DataDir, stack: ExitStack, view: Callable[[], SwarmView]
) -> Kept:
    """Begin to write down what happens, until ``stack`` ends.

    Args:
        view: the swarm as last seen; asked for when something happens.
    """
    history = await ports.compute.beside(lambda: MetricsStore.open_or_in_memory(data_dir.history))
    stack.callback(history.close)
    recorder = Recorder(ports.compute, history)
    stack.callback(recorder.write)
    recent = Recent(history, lambda: [record.peer for record in view().records])
    book = await ports.compute.beside(lambda: CreditBook(data_dir.credits, only_seen=has_rounds(run)))
    stack.callback(book.close)
    return Kept(book, history, recorder, recent, JsonLines(data_dir.metrics))


def start_tracking(service: Service | None, ports: Ports, bundle: Bundle, data_dir: DataDir) -> Tracker | None:
    """Hand the run's figures to a service from now on; None: to none."""
    if service is None:
        return None
    loop, me = asyncio.get_running_loop(), ports.transport.peer_id

    def say(text: str, hint: str = "", settles: str = "") -> None:
        notice = Notice(at_s=ports.clock.now(), text=text, hint=hint, is_problem=bool(hint), settles=settles)
        if not loop.is_closed():
            loop.call_soon_threadsafe(ports.observer.observe, notice)

    tracked = Tracked(
        identity=hashlib.sha256(f"{bundle.fingerprint}:{me}".encode()).hexdigest()[:16],
        name=bundle.run.run_id,
        config=bundle.run.model_dump(mode="json"),
        directory=data_dir.path.absolute(),
    )
    tracker = Tracker(service, tracked, say)
    tracker.start()
    return tracker


async def show(listening: socket.socket, ports: Ports, backbone: Backbone, data_dir: DataDir, kept: Kept) -> None:
    """Serve the page until cancelled. Imports the server, in a thread: that takes a while."""
    hub_url = await ports.compute.beside(_load)
    from peers.dashboard.serving import serve_dashboard
    from peers.dashboard.sources import Sources

    sources = Sources(
        run=backbone.statutes.bundle.run,
        mandate=backbone.statutes.mandate,
        clock=ports.clock,
        me=ports.transport.peer_id,
        view=lambda: backbone.membership.view,
        credible=backbone.reporter.credible,
        credits=kept.book,
        store=kept.history,
        recent=kept.recent,
        problem=backbone.problem,
        concern=lambda: concern_of(backbone, kept.publishing),
        on_disk=lambda: backbone.keeper.shelf.epochs,
        home=str(data_dir.path.absolute()),
        hub_url=hub_url,
    )
    await serve_dashboard(listening, sources, ports)


def concern_of(backbone: Backbone, publishing: Publishing) -> tuple[str, str]:
    """What is wrong although training goes on, and what to do; both empty: nothing."""
    told = (backbone.not_saved(), publishing.problem(), backbone.outdated.problem())
    return next((one for one in told if one[0]), all_is_well())


def _load() -> str:
    """Everything that is imported for the page; where repositories of the Hub are looked at."""
    from huggingface_hub.constants import ENDPOINT

    import peers.dashboard.serving  # noqa: F401

    return str(ENDPOINT)
