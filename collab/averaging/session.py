"""One member's work in one exchange: fetches, reduces, hands on, and starts anew what the leader divides anew."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from collab.averaging.complaints import Complaint
from collab.averaging.division import Division, Job
from collab.averaging.exchange import Exchange, Holding
from collab.averaging.flow import Inflow, Links, Outflow, kept_alive
from collab.averaging.hosting import Hosted, Kept
from collab.averaging.laggards import Progress
from collab.averaging.messages import PARTS_PROTOCOL
from collab.averaging.reducer import NoResults, Reducer
from collab.averaging.reduction import Reduction, Result, SenderFailed
from collab.averaging.transcript import Place, Transcript
from collab.compression.base import Buffer
from collab.errors import BadMessage, BadPart, NetworkError, StreamClosed, TimedOut
from collab.net.base import Stream, Transport
from collab.net.wire import Message
from collab.types import AnyVector, PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What all exchanges of a peer have in common."""

    transport: Transport
    links: Links
    reducer: Reducer
    idle: dict[PeerId, list[Stream]]
    """Streams of earlier rounds, by the peer that serves them."""
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
        self.gone: set[PeerId] = set()
        """Members that are not in the round any more."""
        self.division = Division.of(exchange.group.spans, exchange.group.part_elements)
        self.complaints: list[Complaint] = []
        """Of other members, for the leader to judge; whoever takes them clears them."""
        self.changed = asyncio.Event()
        """Set with every complaint, and when a span is whole."""

    async def __aenter__(self) -> Self:
        for job in self.division.jobs:
            self._take_up(job)
        self.changed.set()  # there may be nothing for us to do
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
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

    def halt(self, gone: Collection[PeerId], broken: Sequence[int]) -> list[int]:
        """Wait no longer for members that are gone, and take nothing more of ``broken`` jobs; what we have of them."""
        self.gone.update(gone)
        self._tools.reducer.dismiss(self._exchange.group.round_id, self.gone)
        known = [index for index in broken if index < len(self._holdings)]
        for index in known:
            self._holdings[index].is_frozen = True
            self._stop(index)
        for reduction in self._reductions.values():
            reduction.leave_out(self.gone)
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
        self._tasks[index] = task = asyncio.create_task(work)
        task.add_done_callback(lambda _: self.changed.set())

    def _host(self, index: int, holding: Holding) -> None:
        """Serve the others: reduce, or hand on what we hold."""
        exchange, source = self._exchange, Kept(holding)
        hosted = Hosted(source, holding, exchange.receivers, self._complain)
        if holding.job.holder is None:
            self._reductions[index] = reduction = exchange.reduction(holding)
            reduction.leave_out(self.gone)
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
            await asyncio.gather(watching, return_exceptions=True)

    async def _fetch(self, index: int, holding: Holding) -> None:
        """Bring our part of a job to its reducer and the results back; or results alone, from who holds them."""
        source = holding.job.source
        streams = self._tools.idle.setdefault(source, [])
        try:
            try:
                if streams:
                    await self._fetch_over(streams.pop(), index, holding)
                    return
            except StreamClosed:
                pass  # closed since the last round; whether its reducer is gone shows now
            with self._timeouts.asking(source) as limit_s:
                stream = await self._tools.transport.open(source, PARTS_PROTOCOL, timeout_s=limit_s)
            await self._fetch_over(stream, index, holding)
        except BadPart as error:
            if not holding.is_frozen:
                self._complain(Complaint(source, error.reason, f"reducer {source}: {error}", is_hostile=True))
        except NetworkError as error:
            if holding.is_frozen:
                return
            is_hostile = isinstance(error, BadMessage)
            text, reason = f"reducer {source}: {error}", getattr(error, "reason", type(error).__name__)
            self._complain(Complaint(source, reason, text, is_hostile=is_hostile, is_reducer=True))

    async def _fetch_over(self, stream: Stream, index: int, holding: Holding) -> None:
        """The same over a stream, which is kept for the next round if all goes well."""
        links, outflow = self._tools.links, Outflow(stream, self._tools.links)
        sending: asyncio.Task[None] | None = None
        is_whole = False
        links.downlink.begin()
        try:
            async with kept_alive(stream, self._timeouts):
                opening: dict[str, Any] = {
                    "job": index,
                    "first": holding.num_held,
                    "sent_s": links.clock(),
                    "queue_s": 0.0,
                }
                opening["round_id"] = self._exchange.group.round_id
                await stream.send(Message("round", opening), timeout_s=self._timeouts.answer_s())
                if self._exchange.contributes and holding.job.holder is None:
                    sending = asyncio.create_task(self._send_parts(holding, outflow))
                await self._receive_results(stream, holding, outflow)
                if sending is not None:
                    await sending
            is_whole = True
        finally:
            links.downlink.end()
            if sending is not None and not sending.done():
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
            outflow.settle()
            if is_whole:
                self._tools.idle.setdefault(stream.remote, []).append(stream)
            else:
                stream.close()

    async def _send_parts(self, holding: Holding, outflow: Outflow) -> None:
        for index in range(len(holding.edges)):
            await holding.may_send(index)
            try:
                await outflow.send(holding.part(index), timeout_s=self._timeouts.part_s)
            except (StreamClosed, TimedOut):
                return  # the receiving side of this stream sees the same, and knows why

    async def _receive_results(self, stream: Stream, holding: Holding, outflow: Outflow) -> None:
        clock, stalled_s = self._tools.links.clock, self._timeouts.stalled_s(self._exchange.group.expected_s)
        moved_s = clock()
        async with Inflow(stream, self._tools.links, timeout_s=self._timeouts.part_s) as inflow:
            while not holding.is_whole or outflow.is_busy:
                message = await stream.receive(timeout_s=self._timeouts.part_s)
                if message.kind == "wait":
                    if clock() - moved_s > stalled_s:
                        raise TimedOut(f"{stream.remote} is there, but brought nothing for {stalled_s:.0f} s")
                    continue
                moved_s = clock()
                if message.kind == "ack":
                    outflow.acknowledged(message)
                elif message.kind == "ready":
                    inflow.opened(message)
                elif message.kind == "result":
                    missing = self._missing(message)
                    holding.take(message.get("index", int), Result(message.payload, missing))
                    inflow.took(message)
                elif message.kind == "failed":
                    raise NoResults(message.get("reason", str), f"no results: {message.get('text', str)}")
                else:
                    raise BadMessage(f"reducer {stream.remote} sends {message.kind} instead of a result")

    def _missing(self, message: Message) -> tuple[int, ...]:
        """Whom the reducer left out of a result."""
        missing = message.fields.get("missing", [])
        places = range(len(self._exchange.group.contributors))
        if not isinstance(missing, list) or sorted(set(missing)) != missing or not set(missing) <= set(places):
            raise BadMessage("a result leaves out contributors that are none")
        return tuple(missing)

    def _complain(self, complaint: Complaint) -> None:
        if complaint.is_hostile:
            self._tools.refuse(complaint, self._exchange.group.epoch)
        self.complaints.append(complaint)
        self.changed.set()
