"""``collab.join``: the swarm around a training loop that exists already.

    with collab.join(model, optimizer, invite) as swarm:
        for x, y in batches:
            loss = loss_function(model(x), y)
            loss.backward()
            swarm.step(samples=len(x), loss=loss.item())    # instead of optimizer.step() and zero_grad()

The peer's event loop lives in a background thread; ``step`` blocks while a round is under way, as a synchronous
strategy must.
"""

import asyncio
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
import uvloop

from collab.compute import workers_end
from collab.concurrency import end, first_of
from collab.errors import CollabError
from collab.metrics.sinks import Fanout, Sink
from collab.net.address_text import machine_name
from collab.net.hivemind_net import NetworkSettings
from collab.net.startup import StartupSettings, default_host, open_run
from collab.ports import NO_LIMITS, LinkLimits
from collab.swarm.address_book import AddressBook
from collab.swarm.invite import Invite, read_invite
from collab.swarm.records import MAX_NAME_CHARACTERS
from collab.training.own_loop import replica_around
from collab.training.participant import Participant
from collab.training.participant_settings import ParticipantSettings
from collab.training.replica import MicrobatchReport
from collab.types import Lineage, Reachability

T = TypeVar("T")

WORKER_LIMIT_S = 2.0
"""For an optimiser step that is under way when the user leaves."""


def join(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    invite: str,
    local: "Local | None" = None,
) -> "JoinedRun":
    """Join a run with a model and an optimiser of one's own; returns when the model holds the swarm's state.

    Args:
        model: of the run's architecture, float32, on its device; its parameters are overwritten.
        optimizer: as the run file says; None: made from the run file.
        invite: what the organiser sent.
        local: what is this machine's own business; None: the defaults.

    Raises:
        CollabError: the invite, the network, the model or the optimiser does not fit; the message says what to do.
    """
    joined = JoinedRun(model, optimizer, read_invite(invite), local or Local())
    joined._start()
    return joined


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """What is this machine's own business."""

    name: str = ""
    """What others see; empty: the machine's name, if no address is in it."""
    data_dir: Path | None = None
    """Keeps this peer's key, and the run's state for the next time; None: a new identity each time."""
    reach: Reachability | None = None
    """How others can reach this machine; None: they are asked to try."""
    limits: LinkLimits = NO_LIMITS
    """Of what this machine's link may carry for the swarm."""
    allowed_modules: tuple[str, ...] = ()
    """Modules that are not of this package and may run here, if the run names them; see ``collab.foreign``."""
    sinks: tuple[Sink, ...] = ()
    """Are told what happens."""


class JoinedRun:
    """A run that this process takes part in. Use it as a context manager, from one thread."""

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, invite: Invite, local: Local
    ) -> None:
        self._model, self._optimizer, self._invite, self._local = model, optimizer, invite, local
        self._loop = uvloop.new_event_loop()
        self._ready: Future[Participant] = Future()
        self._stop = asyncio.Event()
        self._thread: threading.Thread | None = None
        self._handing_over, self._takes_calls = threading.Lock(), True
        """Whether the event loop does what it is called to; else the user's thread would wait for ever."""
        self._failure: BaseException | None = None
        self._next_id = 0
        self._computing_since_s = time.monotonic()

    # -- the user's side ---------------------------------------------------------------------------------------------

    def step(self, samples: int, loss: float | None = None) -> bool:
        """Hand in the gradients that ``backward`` left (mean over ``samples``); take the global step when it is due.

        Args:
            samples: behind the gradients, at least 1.
            loss: mean over them; only shown to others.

        Returns:
            Whether the model took a step of the swarm.

        Raises:
            CollabError: the peer cannot go on.
        """
        participant = self._participant()
        ids = tuple(range(self._next_id, self._next_id + samples))
        self._next_id += samples
        report = participant.replica.take_gradients(ids, loss)
        participant.teller.note_microbatch(report, time.monotonic() - self._computing_since_s)
        stepped = not participant.is_undisturbed and self._call(self._follow(participant, report))
        self._computing_since_s = time.monotonic()
        participant.vitals.begin_microbatch(self._computing_since_s)
        return stepped

    @staticmethod
    async def _follow(participant: Participant, report: MicrobatchReport) -> bool:
        """What the strategy makes of a microbatch; at the end of the run, all that is still under way."""
        stepped = await participant.after_microbatch(report)
        if participant.is_finished:
            await participant.conclude()
        return stepped

    @property
    def epoch(self) -> int:
        """Global steps that the model has taken."""
        return self._participant().replica.epoch

    @property
    def lineage(self) -> Lineage:
        """Digest of the model's history."""
        return self._participant().replica.lineage

    @property
    def is_finished(self) -> bool:
        """Whether the run has reached its last epoch."""
        return self._participant().is_finished

    def leave(self) -> None:
        """Say goodbye and end the background thread. Leaving twice is fine."""
        if self._thread is None:
            return
        if self._thread.is_alive():
            with suppress(RuntimeError):  # the loop closed meanwhile: the thread is ending by itself
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        workers_end(WORKER_LIMIT_S)  # the user's program may end right after this
        self._thread = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    # -- the background thread ---------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="collab-peer", daemon=True)
        self._thread.start()
        try:
            self._ready.result()
        except BaseException:
            self.leave()
            raise

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            with TemporaryDirectory(prefix="collab-") as folder:
                self._loop.run_until_complete(self._live((self._local.data_dir or Path(folder)) / "identity.key"))
        except BaseException as error:  # noqa: BLE001 - handed to the user's thread, whatever it is
            self._failure = error
            if not self._ready.done():
                self._ready.set_exception(first_of(error))
        finally:
            with self._handing_over:
                self._takes_calls = False
            self._loop.run_until_complete(asyncio.sleep(0))  # what was handed over before has begun now
            unfinished = asyncio.all_tasks(self._loop)  # a step that the user's thread waits for ends with us
            for task in unfinished:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*unfinished, return_exceptions=True))
            self._loop.close()

    async def _live(self, identity_path: Path) -> None:
        network = NetworkSettings(identity_path=identity_path, host=default_host(self._invite))
        invite, folder = self._invite, self._local.data_dir
        book = AddressBook(invite.addresses, folder / "backbones.json" if folder is not None else None)
        settings = StartupSettings(
            network=network,
            bootstrap=book,
            limits=self._local.limits,
            reach=self._local.reach,
            papers=invite.papers,
        )
        told = Fanout(*self._local.sinks)
        async with open_run(invite, settings, told) as (started, bundle):
            told.observe(started.verdict.event(started.ports.clock.now(), started.verdict_s))
            replica = await started.ports.compute.run(  # torch's first optimiser is slow
                lambda: replica_around(self._model, self._optimizer, bundle)
            )
            name = (self._local.name or machine_name())[:MAX_NAME_CHARACTERS]
            participant_settings = ParticipantSettings(
                name=name,
                reach=started.verdict.reach,
                state_dir=self._local.data_dir / "state" if self._local.data_dir is not None else None,
                allowed_modules=self._local.allowed_modules,
            )
            participant = Participant(started.ports, started.identity, bundle, replica, participant_settings)
            participant.teller.follow(started.reaching)
            started.reaching.follow(lambda verdict: told.observe(verdict.event(started.ports.clock.now())))
            await participant.begin()
            await participant.measure_link()
            await participant.synchronise()
            heartbeat = asyncio.create_task(participant.keep_alive())
            self._ready.set_result(participant)
            stopping = asyncio.create_task(self._stop.wait())
            dismissing = asyncio.create_task(participant.dismissed())
            tasks = heartbeat, stopping, dismissing
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            is_over = self._stop.is_set() or participant.is_finished
            failure = heartbeat.exception() if heartbeat.done() else None
            reason = failure or (None if is_over else participant.unwanted())
            try:
                await participant.leave(is_urgent=not participant.is_finished)
            finally:
                await end(*tasks)
                if reason is not None:
                    raise reason  # the user's next step hears of it

    def _participant(self) -> Participant:
        if self._failure is not None:
            raise CollabError(f"this peer has stopped: {first_of(self._failure)}", hint="join again") from self._failure
        if self._thread is None:
            raise CollabError("this peer has left the run", hint="join again")
        return self._ready.result()

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            with self._handing_over:
                if not self._takes_calls:
                    raise CancelledError
                future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
            return future.result()
        except (CancelledError, RuntimeError):
            coroutine.close()
            self._participant()  # says why this peer has stopped, if it has
            raise
