"""``collab-peer join``: a volunteer's process."""

import asyncio
import gc
import json
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from collab.concurrency import run_until_first
from collab.errors import BootstrapFailed, ConfigError, NetworkError
from collab.metrics.records import Event, Notice, Resumed
from collab.metrics.sinks import Fanout, JsonLines
from collab.net.startup import Started
from collab.swarm.bundle import Bundle
from collab.swarm.invite import Invite
from collab.swarm.progress import SwarmView
from collab.swarm.reachability import Verdict
from collab.training.pausing import release_gpu
from collab.types import Reachability, Role
from peers.auxiliary import Auxiliary, AuxiliarySettings
from peers.guest import Guest
from peers.occasions import NO_RULES, HouseRules, occasions
from peers.places import DataDir
from peers.priority import give_way
from peers.process import announce, leaves, settle_heap
from peers.screen import LivePanel, choose_screen
from peers.summary import told
from peers.traffic import MonthlyTraffic
from peers.wiring import Reach, invite_from, start_from_invite

AGAIN_S = 30.0
"""Between two tries to come back after a pause, while nobody answers."""


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
    wants_credit: bool = False
    """Whether the name may be published with the model."""
    rules: HouseRules = NO_RULES
    gpu_memory_gb: float | None = None
    """Of the GPU's memory, that this process may take; None: as much as it needs."""
    as_json: bool = False


class Relay:
    """An observer that can be pointed somewhere after it was handed out."""

    def __init__(self) -> None:
        self.sink: Fanout | None = None

    def observe(self, event: Event) -> None:
        if self.sink is not None:
            self.sink.observe(event)


@dataclass(slots=True)
class Given:
    """What a peer has given over all its sessions."""

    summary: dict[str, Any]
    """Of the newest session."""
    counts: Counter[str] = field(default_factory=Counter)
    """Added up."""
    is_over: bool = False
    """Whether there is nothing left to do."""

    def add(self, summary: dict[str, Any], counted: tuple[str, ...], *, is_over: bool) -> None:
        """One more session has ended."""
        self.counts.update({name: summary[name] for name in counted})
        self.summary, self.is_over = {**summary, **self.counts}, is_over


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One life of a peer in the swarm, from joining to its goodbye."""

    options: JoinOptions
    invite: Invite
    guest: Guest
    stop: asyncio.Event
    given: Given

    async def live(self) -> None:
        """Join and work until stopped, finished or paused.

        Raises:
            CollabError: it cannot take part, or not any more.
        """
        relay, options = Relay(), self.options
        async with start_from_invite(self.invite, options.data_dir, options.reach, relay) as (started, bundle):
            self.guest.count(started.traffic_bytes)
            announce(f"connected as {started.ports.transport.peer_id} (clock offset {started.clock_offset_s:+.2f} s)")
            _announce_reach(started.verdict)
            started.reaching.follow(_announce_reach)
            started.reaching.follow(lambda verdict: relay.observe(verdict.event(started.ports.clock.now())))
            if options.role is Role.AUXILIARY:
                await self._assist(started, bundle, relay)
            else:
                await self._train(started, bundle, relay)

    async def _ends(self) -> None:
        """Returns when the peer is to leave, for good or for a while."""
        await run_until_first(self.stop.wait(), self.guest.pause.wanted.wait())

    async def _train(self, started: Started, bundle: Bundle, relay: Relay) -> None:
        from peers.machine import build_trainer

        contributed = self.given.counts["epochs_contributed"]
        building = asyncio.ensure_future(build_trainer(started, bundle, self.options, contributed))
        ending = asyncio.ensure_future(self._ends())
        await asyncio.wait((building, ending), return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        if not building.done():
            building.cancel()
            return
        trainer = building.result()
        with ExitStack() as stack:
            relay.sink = _sinks(self.options, started, bundle, lambda: trainer.participant.membership.view, stack)
            self._begun(started, relay)
            await trainer.run(self.stop, self.guest.pause)
        record, vitals = trainer.participant.teller.record(), trainer.participant.vitals
        summary = {
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
        }
        self.given.add(summary, ("epochs_contributed", "samples"), is_over=trainer.participant.is_finished)

    async def _assist(self, started: Started, bundle: Bundle, relay: Relay) -> None:
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
        auxiliary = Auxiliary(started.ports, started.identity, bundle, AuxiliarySettings(self.options.name))
        leaves = asyncio.Event()
        with ExitStack() as stack:
            relay.sink = _sinks(self.options, started, bundle, lambda: auxiliary.membership.view, stack)
            self._begun(started, relay)
            text = "helping to average; this machine trains nothing itself"
            relay.observe(Notice(at_s=started.ports.clock.now(), text=text))
            ending = asyncio.ensure_future(self._ends())
            ending.add_done_callback(lambda _: leaves.set())
            try:
                await auxiliary.run(leaves)
            finally:
                ending.cancel()
        record = auxiliary.record()
        summary = {"id": record.peer, "role": record.role, "rounds": auxiliary.assistant.rounds_committed}
        self.given.add(summary, ("rounds",), is_over=not leaves.is_set())

    def _begun(self, started: Started, relay: Relay) -> None:
        """Whoever watches is told how this peer is reached, and that it was away."""
        relay.observe(started.verdict.event(started.ports.clock.now(), started.verdict_s))
        if self.guest.paused_s:
            relay.observe(Resumed(at_s=started.ports.clock.now(), paused_s=self.guest.paused_s))
        settle_heap()


async def join(options: JoinOptions, stop: asyncio.Event) -> None:
    """Join and work until stopped or finished, whenever the machine's owner lets it; prints a summary at the end."""
    if options.store or options.hub_repo:
        flag, does = ("--store", "keeps parameters") if options.store else ("--hub-repo", "publishes checkpoints")
        raise ConfigError(f"only a backbone {does}", hint=f"leave {flag} out, or join with --role backbone")
    options.rules.check()
    if options.rules.is_modest:
        give_way()
    invite = invite_from(options.invite)
    traffic = MonthlyTraffic(options.data_dir.traffic)
    guest = Guest(options.data_dir, occasions(options.rules, options.data_dir, traffic), traffic, announce)
    given = Given({"role": options.role})
    async with guest.stay():
        while not given.is_over and await guest.may_begin(stop):
            announce(f"joining {invite.run_id} ...")
            session = Session(options=options, invite=invite, guest=guest, stop=stop, given=given)
            try:
                is_reached = await _lived(session, is_first=not guest.paused_s)
            finally:
                guest.end_session()
            if not is_reached:
                await run_until_first(stop.wait(), asyncio.sleep(AGAIN_S))
            elif not guest.pause.wanted.is_set():
                break
            free_memory()
    _summarise(options, given.summary)


async def _lived(session: Session, *, is_first: bool) -> bool:
    """Whether the swarm was there. Who comes back from a pause of hours may find its own line, or the run, down.

    Raises:
        CollabError: see ``Session.live``; of the first session also that nobody has answered.
    """
    is_reached = True
    try:
        await session.live()
    except* BootstrapFailed as errors:
        if is_first:
            raise
        is_reached = False
        announce(f"nobody of the run answers ({leaves(errors)[0].message}); trying again in {AGAIN_S:.0f} s")
    return is_reached


def free_memory() -> None:
    """Of the session that has ended, whose objects ``settle_heap`` has put out of the garbage collector's sight."""
    gc.unfreeze()
    gc.collect()
    release_gpu()


def _announce_reach(verdict: Verdict) -> None:
    announce(f"reach: {verdict.reach}: {verdict.text}" + (f"\n  -> {verdict.hint}" if verdict.hint else ""))


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
    elif "samples" in summary:
        announce(
            f"left at epoch {summary['epoch']}: you contributed {summary['samples']} samples "
            f"to {summary['epochs_contributed']} steps. Thank you!"
        )
    elif "rounds" in summary:
        announce(f"left after helping in {summary['rounds']} rounds. Thank you!")
    else:
        announce("left before there was anything to do")
