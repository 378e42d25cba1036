"""One member's work in one exchange: fetches, reduces, hands on, and starts anew what the leader divides anew."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from collab.averaging.complaints import Complaint
from collab.averaging.division import Division, Job
from collab.averaging.exchange import Exchange, Holding
from collab.averaging.fetching import Fetch
from collab.averaging.flow import Links
from collab.averaging.gate import Gate
from collab.averaging.hosting import Hosted, Kept
from collab.averaging.idle_streams import IdleStreams
from collab.averaging.laggards import Progress
from collab.averaging.messages import PARTS_PROTOCOL
from collab.averaging.reducer import Reducer
from collab.averaging.reduction import Reduction, SenderFailed
from collab.averaging.transcript import Place, Transcript
from collab.compression.base import Buffer
from collab.errors import BadMessage, BadPart, NetworkError, StreamClosed
from collab.net.base import Stream, Transport
from collab.types import AnyVector, PeerId

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What all exchanges of a peer have in common."""

    transport: Transport
    links: Links
    reducer: Reducer
    idle: IdleStreams
    refuse: Callable[[Complaint, int], None]
    """Counts what a peer should not have sent, in a round of an epoch."""


class Session:
    """One member's work in one exchange, until it holds all that stands.

    An async context: what is under way ends with it.
    """

    def __init__(self, tools: Tools, exchange: Exchange) -> None:
        self._tools, self._timeouts, self._exchange = tools, tools.links.timeouts, exchange
        self._holdings: list[Holding] = []
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._reductions: dict[int, Reduction] = {}
        self._opening: asyncio.Task[None] | None = None
        """Lets our vector out row by row, if it has several."""
        self.gone: set[PeerId] = set()
        """Members that are not in the round any more."""
        self._silenced: set[PeerId] = set()
        """Members that are there, and of whom nothing more goes into the mean."""
        self.division = Division.of(exchange.group.spans, exchange.group.part_elements)
        self.complaints: list[Complaint] = []
        """Of other members, for the leader to judge; whoever takes them clears them."""
        self.changed = asyncio.Event()
        """Set with every complaint, and when a span is whole."""

    async def __aenter__(self) -> Self:
        for job in self.division.jobs:
            self._take_up(job)
        if (gate := self._exchange.gate) is not None:
            gate.listeners.append(self._look_again)
            self._opening = asyncio.create_task(self._open(gate))
        self.changed.set()  # there may be nothing for us to do
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ending = [*self._tasks.values(), *([self._opening] if self._opening is not None else [])]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        self._tasks.clear()  # each holds the error that it was cancelled with, whose traceback holds us
        for index in range(len(self._holdings)):
            self._tools.reducer.forget(self._key(index))

    @property
    def mean(self) -> AnyVector | None:
        """[num_elements] of the type of the vector; None on a member that only reduces."""
        return self._exchange.mean

    @property
    def is_whole(self) -> bool:
        """Whether we have everything that stands and concerns us."""
        is_idle = all(task.done() for task in self._tasks.values())  # all that we sent was acknowledged
        return is_idle and all(self._holdings[index].is_whole for index in self._ours())

    def digests(self) -> list[str | None]:
        """Of what stands of each job; None for what does not concern us."""
        ours = set(self._ours())
        return [holding.digest() if index in ours else None for index, holding in enumerate(self._holdings)]

    def gaps(self) -> list[tuple[PeerId, int, int]]:
        """Contributors of whom something is missing in the result, with the elements (start, stop)."""
        return sorted(gap for index in self._ours() for gap in self._holdings[index].gaps())

    def transcript(self) -> Transcript:
        """How what stands has travelled, with the jobs that stand in the order of the record."""
        holdings = [self._holdings[index] for index, job in enumerate(self.division.jobs) if job.valid]
        missing, kept = dict[Place, tuple[int, ...]](), dict[Place, Buffer]()
        for piece, holding in enumerate(holdings):
            missing |= {(piece, part): who for part, who in holding.missing.items()}
            kept |= {(piece, part): data for part, data in holding.kept.items()}
        group = self._exchange.group
        return Transcript(codec=group.result_codec, part_elements=group.part_elements, missing=missing, kept=kept)

    def progress(self) -> Progress:
        """How far we are."""
        came = sum((self._reductions[index].num_of for index in self._reductions), Counter[PeerId]())
        return Progress(came, [holding.num_held for holding in self._holdings])

    def halt(self, gone: Collection[PeerId], silenced: Collection[PeerId], broken: Sequence[int]) -> list[int]:
        """Wait no longer for parts of these, and take nothing more of ``broken`` jobs; what we have of them.

        If we are silenced ourselves, nothing more of ours leaves: it stays with us for the next round.
        """
        self.gone.update(gone)
        self._silenced.update(silenced)
        self._exchange.is_silenced |= self._exchange.me in silenced
        self._tools.reducer.dismiss(self._exchange.group.round_id, self.gone)
        known = [index for index in broken if index < len(self._holdings)]
        for index in known:
            self._holdings[index].is_frozen = True
            self._stop(index)
        for reduction in self._reductions.values():
            reduction.leave_out(self.gone | self._silenced)
        able = self._exchange.vector is not None
        return [self._holdings[index].num_held if able and index in known else 0 for index in broken]

    def mend(self, division: Division) -> None:
        """Go on as the leader has divided the work anew."""
        self.division = division
        for index, job in enumerate(division.jobs):
            if index == len(self._holdings):
                self._take_up(job)
            elif job != self._holdings[index].job or self._holdings[index].is_frozen:
                if not self._holdings[index].is_frozen:  # else it was stopped then, and others may wait for us already
                    self._stop(index)
                self._holdings[index].follow(job)
                self._start(index)
        self.changed.set()

    # -- rows --------------------------------------------------------------------------------------------------------

    async def _open(self, gate: Gate) -> None:
        """Nobody awaits this before the round is over; without it the others go on without us, in the end."""
        try:
            await gate.run()
        except Exception:
            logger.exception("a window cannot be ended, please report this")

    def _look_again(self) -> None:
        for reduction in list(self._reductions.values()):
            reduction.look_again()

    # -- one job -----------------------------------------------------------------------------------------------------

    def _ours(self) -> list[int]:
        me, receives = self._exchange.me, self._exchange.vector is not None
        return [i for i, job in enumerate(self.division.jobs) if receives or (job.span.reducer == me and job.valid)]

    def _key(self, index: int) -> tuple[str, int]:
        return self._exchange.group.round_id, index

    def _take_up(self, job: Job) -> None:
        self._holdings.append(Holding(self._exchange, job))
        self._start(len(self._holdings) - 1)

    def _stop(self, index: int) -> None:
        if index in self._tasks:
            self._tasks.pop(index).cancel()
        self._reductions.pop(index, None)
        self._tools.reducer.forget(self._key(index))

    def _start(self, index: int) -> None:
        holding = self._holdings[index]
        job, me = holding.job, self._exchange.me
        if not job.valid:
            return  # nothing of it stands: nobody sends its reducer anything any more, which may be us
        if job.source == me:
            self._host(index, holding)
        elif self._exchange.vector is not None and not holding.is_whole:
            self._run(index, self._fetch(index, holding))

    def _run(self, index: int, work: Coroutine[Any, Any, None]) -> None:
        self._tasks[index] = task = asyncio.create_task(self._guard(self._holdings[index], work))
        task.add_done_callback(lambda _: self.changed.set())

    async def _guard(self, holding: Holding, work: Coroutine[Any, Any, None]) -> None:
        """Nobody awaits the work on a job before the round is over: an error that nobody expected is told at once."""
        source = holding.job.source
        try:
            await work
        except Exception as error:
            logger.exception("work on a part of a round failed, please report this source=%s", source)
            if not holding.is_frozen:
                self._complain(Complaint(source, "unexpected_error", f"{source}: {error!r}", is_reducer=True))

    def _host(self, index: int, holding: Holding) -> None:
        """Serve the others: reduce, or hand on what we hold."""
        exchange, source = self._exchange, Kept(holding)
        hosted = Hosted(source, holding, exchange.receivers, self._complain)
        if holding.job.holder is None:
            self._reductions[index] = reduction = exchange.reduction(holding)
            reduction.leave_out(self.gone | self._silenced)
            hosted = Hosted(reduction, holding, exchange.receivers, self._complain)
            self._run(index, self._reduce(reduction))
        self._tools.reducer.begin(self._key(index), hosted)

    async def _reduce(self, reduction: Reduction) -> None:
        expected_s = self._exchange.group.expected_s
        watching = asyncio.create_task(self._tools.reducer.watch(reduction, self._complain, expected_s))
        try:
            await reduction.finished()
        except BadPart as error:
            culprit = error.culprit if isinstance(error, SenderFailed) else self._exchange.me
            self._complain(Complaint(culprit, error.reason, str(error), is_hostile=True))
        finally:
            watching.cancel()
            (watched,) = await asyncio.gather(watching, return_exceptions=True)
            if isinstance(watched, Exception):
                logger.error("watching contributors failed, please report this", exc_info=watched)

    async def _fetch(self, index: int, holding: Holding) -> None:
        """Bring our part of a job to its reducer and the results back; or results alone, from who holds them."""
        source = holding.job.source
        fetch = Fetch(self._exchange, holding, index, self._tools.links)
        try:
            try:
                if (idle := self._tools.idle.take(source)) is not None:
                    await self._fetch_over(idle, fetch)
                    return
            except StreamClosed:
                if fetch.is_answered:  # its reducer may have parts of ours, which must not come twice
                    raise
                # closed since the last round; whether its reducer is gone shows now
            with self._timeouts.asking(source) as limit_s:
                stream = await self._tools.transport.open(source, PARTS_PROTOCOL, timeout_s=limit_s)
            await self._fetch_over(stream, fetch)
        except BadPart as error:
            if not holding.is_frozen:
                self._complain(Complaint(source, error.reason, f"reducer {source}: {error}", is_hostile=True))
        except NetworkError as error:
            if holding.is_frozen:
                return
            is_hostile = isinstance(error, BadMessage)
            text, reason = f"reducer {source}: {error}", getattr(error, "reason", type(error).__name__)
            self._complain(Complaint(source, reason, text, is_hostile=is_hostile, is_reducer=True))

    async def _fetch_over(self, stream: Stream, fetch: Fetch) -> None:
        """Over a stream that is kept for the next round if all goes well."""
        if await fetch.run(stream):
            self._tools.idle.keep(stream)

    def _complain(self, complaint: Complaint) -> None:
        if complaint.is_hostile:
            self._tools.refuse(complaint, self._exchange.group.epoch)
        self.complaints.append(complaint)
        self.changed.set()
