"""One life of a volunteer's peer in the swarm: connected, agreed to, built, at work, and gone again."""

import asyncio
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from collab.concurrency import Background, run_until_first
from collab.errors import NetworkError
from collab.metrics.guest_records import Resumed
from collab.metrics.records import Notice
from collab.metrics.sinks import Fanout, JsonLines
from collab.net.startup import Started
from collab.swarm.bundle import Bundle
from collab.swarm.invite import Invite
from collab.swarm.reachability import Verdict
from collab.types import Reachability, Role
from peers.anew import HandedOn
from peers.asking import is_welcome
from peers.auxiliary import Auxiliary, AuxiliarySettings
from peers.guest import Guest
from peers.join_options import JoinOptions, Relay
from peers.panel import LivePanel, Watched
from peers.process import settle_heap
from peers.progress import ProgressTeller, StepTeller, ahead_of_swarm, ahead_of_trainer, seen_by_trainer
from peers.reading import dataset_of
from peers.screen import choose_screen
from peers.summary import told
from peers.tally import Tally
from peers.wiring import start_from_invite

if TYPE_CHECKING:
    from collab.training.participant import Participant


@dataclass(slots=True)
class Given:
    """What a peer has given over all its sessions."""

    summary: dict[str, Any]
    """Of the newest session."""
    counts: Counter[str] = field(default_factory=Counter)
    """Added up."""
    is_over: bool = False
    """Whether there is nothing left to do."""
    tally: Tally = field(default_factory=Tally)
    """What a screen shows of it."""
    had_gpu: bool = False
    """Whether the newest session that computed did so on a GPU."""
    has_declined: bool = False
    """Whether this machine's owner does not want it to take part."""

    @classmethod
    def of(cls, role: Role, life_before: HandedOn | None) -> "Given":
        """What the same process gave before its program began anew; without one, nothing."""
        if life_before is None:
            return cls({"role": role})
        return cls(life_before.summary, Counter(life_before.counts), tally=Tally.of(life_before.tally), had_gpu=True)

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
        async with start_from_invite(
            self.invite, options.data_dir, options.reach, relay, metered=self.guest.metered
        ) as (started, bundle):
            me, offset_s = started.ports.transport.peer_id, started.clock_offset_s
            options.say(f"connected as {me} (clock offset {offset_s:+.2f} s)")
            self._say_reach(started.verdict)
            started.reaching.follow(self._say_reach)
            started.reaching.follow(lambda verdict: relay.observe(verdict.event(started.ports.clock.now())))
            if not await is_welcome(started, bundle, options, self.stop):
                self.given.is_over = self.given.has_declined = True
                return
            if self._is_to_leave:
                return
            with ExitStack() as stack:
                watched = Watched(
                    title=f"collab: {self.invite.run_id}",
                    role=options.role,
                    refusals=started.refusals.rows,
                    tally=self.given.tally,
                )
                steps = StepTeller(relay.observe, started.ports.clock, watched.awaited)
                relay.sink = self._sinks(watched, steps, stack)
                async with Background() as tasks:
                    tasks.create_task(steps.run())
                    if options.role is Role.AUXILIARY:
                        await self._assist(started, bundle, relay, watched)
                    else:
                        await self._train(started, bundle, relay, watched)

    @property
    def _is_to_leave(self) -> bool:
        """For good or for a while."""
        return self.stop.is_set() or self.guest.pause.wanted.is_set()

    def _say_reach(self, verdict: Verdict) -> None:
        hint = f"\n  -> {verdict.hint}" if verdict.hint else ""
        self.options.say(f"reach: {verdict.reach}: {verdict.text}{hint}")

    def _sinks(self, watched: Watched, steps: StepTeller, stack: ExitStack) -> Fanout:
        screen = choose_screen(watched, as_json=self.options.as_json, style=self.options.style)
        if isinstance(screen, LivePanel):
            stack.enter_context(screen)
        return Fanout(watched.tally, screen, JsonLines(self.options.data_dir.metrics), steps)

    async def _ends(self) -> None:
        """Returns when the peer is to leave, for good or for a while."""
        await run_until_first(self.stop.wait(), self.guest.pause.wanted.wait())

    async def _train(self, started: Started, bundle: Bundle, relay: Relay, watched: Watched) -> None:
        await started.ports.compute.run(lambda: import_module("peers.machine"))  # PyTorch, beside the loop
        if self._is_to_leave:
            return
        from peers.machine import Beginning, build_trainer

        self.guest.take_device()
        teller = ProgressTeller(relay.observe, started.ports.clock)
        pause = self.guest.pause

        def is_over() -> bool:
            return self.stop.is_set() or pause.wanted.is_set()

        beginning = Beginning(
            contributed=self.given.counts["epochs_contributed"],
            tell=teller.tell,
            had_gpu=self.given.had_gpu,
            is_over=is_over,
            overseen=self.guest.reading.until(is_over, is_downloaded=dataset_of(bundle.run) is not None),
            waits=teller.tell_wait,
        )
        building = asyncio.ensure_future(build_trainer(started, bundle, self.options, beginning))
        ending = asyncio.ensure_future(self._ends())
        await asyncio.wait((building, ending), return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        if not (building.done() or beginning.takes_device.is_set()):
            building.cancel()
            return
        if (trainer := await building) is None:
            return
        participant = trainer.participant
        self.given.had_gpu = participant.replica.device.type != "cpu"
        watched.view = lambda: seen_by_trainer(participant)
        watched.ahead = lambda: ahead_of_trainer(participant, watched.tally.rhythm)
        self._begun(started, relay)
        try:
            await trainer.run(self.stop, pause)
        finally:
            self._add(participant)

    def _add(self, participant: "Participant") -> None:
        """What a trainer has given, also if it has failed."""
        record, vitals = participant.teller.record(), participant.vitals
        summary = {
            "id": record.peer,
            "role": record.role,
            "epoch": participant.replica.epoch,  # the record has from which one on it owes no vote, once it has left
            "lineage": record.lineage,
            "epochs_contributed": vitals.epochs_contributed,
            "samples": vitals.total_samples,
            "loss": told(vitals.loss),
            "eval_epoch": record.eval_epoch,
            "eval_loss": told(record.eval_loss),
            "eval_accuracy": told(record.eval_accuracy),
        }
        self.given.add(summary, ("epochs_contributed", "samples"), is_over=participant.is_finished)

    async def _assist(self, started: Started, bundle: Bundle, relay: Relay, watched: Watched) -> None:
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
        clock, members, tally = started.ports.clock, auxiliary.membership, watched.tally
        watched.view = lambda: auxiliary.reporter.credible.of(members.view)
        watched.ahead = lambda: ahead_of_swarm(
            auxiliary.reporter.credible, auxiliary.statutes.mandate, members.view, clock.now(), tally.rhythm
        )
        self._begun(started, relay)
        text = "helping to average; this machine trains nothing itself"
        relay.observe(Notice(at_s=started.ports.clock.now(), text=text))
        ending = asyncio.ensure_future(self._ends())
        ending.add_done_callback(lambda _: leaves.set())
        is_over = False
        try:
            await auxiliary.run(leaves)
            is_over = not leaves.is_set()
        finally:
            ending.cancel()
            record = auxiliary.record()
            summary = {"id": record.peer, "role": record.role, "rounds": auxiliary.assistant.rounds_committed}
            self.given.add(summary, ("rounds",), is_over=is_over)

    def _begun(self, started: Started, relay: Relay) -> None:
        """Whoever watches is told how this peer is reached, and that it was away."""
        relay.observe(started.verdict.event(started.ports.clock.now(), started.verdict_s))
        if self.guest.paused_s:
            relay.observe(Resumed(at_s=started.ports.clock.now(), paused_s=self.guest.paused_s))
        settle_heap()
