"""The serving side of an exchange: takes contributors' parts in, gives every receiver the same results."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress

from collab.averaging.complaints import Complaint
from collab.averaging.flow import Inflow, Links, Outflow, Part, kept_alive
from collab.averaging.hosting import Hosted, Source
from collab.averaging.messages import PARTS_PROTOCOL
from collab.averaging.reduction import Reduction
from collab.errors import BadMessage, BadPart, NetworkError, StreamClosed
from collab.net.base import Stream, Transport
from collab.net.wire import Message
from collab.types import PeerId

logger = logging.getLogger(__name__)

IDLE_S = 3600.0
"""A contributor's stream outlives its round, so that the next one need not open it again."""

JobKey = tuple[str, int]
"""Round id and place of the job in its division."""


REFUSALS = (
    "unknown_round",
    "not_a_contributor",
    "over",
    "nobody_left",
    "not_finite",
    "results_differ",
    "unexpected_error",
)
"""Reasons for which a reducer gives no results."""


class NoResults(StreamClosed):
    """A reducer says that it has nothing for us; ``reason`` is one word."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason if reason in REFUSALS else "refused"


class Reducer:
    """Serves this peer's jobs, of any number of rounds."""

    def __init__(self, transport: Transport, links: Links, refused: Callable[[Complaint, int], None]) -> None:
        """
        Args:
            refused: told of who wants what we do not serve, and in which epoch; -1: that is not known.
        """
        self._transport, self._links, self._timeouts, self._refused = transport, links, links.timeouts, refused
        self._hosted: dict[JobKey, asyncio.Future[Hosted]] = {}
        self._heard_s: dict[PeerId, float] = {}
        """When a contributor last said anything, by our clock."""
        self._visitors: Counter[JobKey] = Counter()
        """Streams that wait for a job to begin here."""
        self._serving: list[tuple[str, Stream]] = []
        """Round id and stream of the jobs that are being served."""

    async def serve(self) -> None:
        """Begin to answer members."""
        await self._transport.serve(PARTS_PROTOCOL, self._serve_member)

    def begin(self, key: JobKey, hosted: Hosted) -> None:
        """This peer's part in a round is fixed: members may come.

        Raises:
            BadMessage: another round has begun under the same id.
        """
        announced = self._announced(key)
        if announced.done():
            raise BadMessage(f"job {key[1]} of round {key[0]} has begun already")
        announced.set_result(hosted)

    def forget(self, key: JobKey) -> None:
        """Drop what is left of a job: its round is over, or it was given to others."""
        hosted = self._hosted.pop(key, None)
        if not self._hosted:
            self._heard_s.clear()  # nobody is watched any more
        if hosted is None:
            return
        if not hosted.done():
            hosted.cancel()
        elif not hosted.cancelled() and isinstance(source := hosted.result().source, Reduction):
            source.fail(BadPart("over", "the round is over here"))

    def dismiss(self, round_id: str, peers: Collection[PeerId]) -> None:
        """Serve these no more in a round: what was sent to one that takes nothing would hold up all other sending."""
        for stream in [stream for served, stream in self._serving if served == round_id and stream.remote in peers]:
            stream.close()

    async def watch(self, reduction: Reduction, complain: Callable[[Complaint], None], expected_s: float) -> None:
        """Complain of a contributor that says nothing, also of one that never came.

        One that says it is there may have much to send to others first; but when nothing comes from anybody for long,
        those whose parts are missing hold everybody up.

        Args:
            expected_s: by the plan, for the round.
        """
        began_s = moved_s = self._links.clock()
        num_added, accused = reduction.num_of.total(), set[PeerId]()
        while not reduction.is_finished:
            missing = [peer for peer in reduction.missing() if peer not in accused] or reduction.missing()
            now_s = self._links.clock()
            if not missing:  # our own part is not final yet
                moved_s = now_s
                await asyncio.sleep(self._timeouts.sender_s / 4)
                continue
            if reduction.num_of.total() != num_added:
                num_added, moved_s = reduction.num_of.total(), now_s
            quiet_s = {peer: now_s - max(self._heard_s.get(peer, began_s), began_s) for peer in missing}
            culprit = max(missing, key=lambda peer: quiet_s[peer])
            if culprit not in accused and quiet_s[culprit] >= self._timeouts.sender_s:
                accused.add(culprit)
                complain(Complaint(culprit, "silent", f"nothing from {culprit} within {quiet_s[culprit]:.1f} s"))
            elif culprit not in accused and now_s - moved_s >= self._timeouts.stalled_s(expected_s):
                accused.add(culprit)
                text = f"{culprit} is there, but no part came within {now_s - moved_s:.0f} s"
                complain(Complaint(culprit, "stalled", text))
            await asyncio.sleep(self._timeouts.sender_s / 4)

    def _announced(self, key: JobKey) -> asyncio.Future[Hosted]:
        """Resolved when this peer has begun the job; members may be faster than the leader's word to us."""
        if key not in self._hosted:
            self._hosted[key] = asyncio.get_running_loop().create_future()
        return self._hosted[key]

    async def _serve_member(self, stream: Stream) -> None:
        outflow = Outflow(stream, self._links)
        try:
            async with Inflow(stream, self._links, timeout_s=self._timeouts.part_s) as inflow:
                while True:
                    message = await stream.receive(timeout_s=IDLE_S)
                    if message.kind in ("wait", "part"):
                        continue  # set out when the last round was over, or went on without its sender
                    hosted = await self._find(stream, (message.get("round_id", str), message.get("job", int)))
                    if hosted is None:
                        return
                    serving = message.get("round_id", str), stream
                    self._serving.append(serving)
                    try:
                        async with kept_alive(stream, self._timeouts):
                            await self._serve_job(stream, hosted, outflow, inflow, message)
                    finally:
                        self._serving.remove(serving)
                    del hosted  # with the round's vectors, which the wait for the next one must not keep
        finally:
            outflow.settle()

    async def _find(self, stream: Stream, key: JobKey) -> Hosted | None:
        """What this peer hosts of a round; a stranger is told why not."""
        announced = self._announced(key)
        self._visitors[key] += 1
        hosted: Hosted | None = None
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeouts.answer_s()):
                    hosted = await asyncio.shield(announced)
            if hosted is None:
                await self._turn_away(stream, BadPart("unknown_round", f"no round {key[0]} here"))
                return None
        finally:
            self._visitors[key] -= 1
            if not self._visitors[key]:
                del self._visitors[key]
                if not announced.done():  # nobody waits for this job any more, and it may never come
                    self._hosted.pop(key, None)
        if stream.remote not in hosted.receivers:
            error = BadPart("not_a_contributor", f"{stream.remote} is no member of round {key[0]}")
            await self._turn_away(stream, error)
            return None
        return hosted

    async def _turn_away(self, stream: Stream, error: BadPart) -> None:
        """A stranger, or a member that names another round: others may see our results missing, and this is why."""
        logger.info("peer is turned away peer=%s reason=%s text=%s", stream.remote, error.reason, error)
        self._refused(Complaint(stream.remote, error.reason, str(error)), -1)
        await self._refuse(stream, error)

    async def _serve_job(
        self, stream: Stream, hosted: Hosted, outflow: Outflow, inflow: Inflow, opening: Message
    ) -> None:
        """Until the member has acknowledged every result, or the stream ends."""
        source, first = hosted.source, opening.get("first", int)
        if not 0 <= first <= source.num_parts:
            raise BadMessage(f"{stream.remote} wants results from {first} on, of {source.num_parts}")
        parts_left = source.num_parts if source.expects(stream.remote) else 0
        self._links.downlink.begin()
        inflow.opened(opening)  # small and early: its delay is that of a path without a queue
        opened = {"sent_s": self._links.clock(), "queue_s": 0.0}
        await stream.send(Message("ready", opened), timeout_s=self._timeouts.part_s)
        returning = asyncio.create_task(self._return_results(stream, hosted, outflow, first))
        try:
            while (parts_left and source.expects(stream.remote)) or not returning.done() or outflow.is_busy:
                message = await stream.receive(timeout_s=self._timeouts.part_s if parts_left else IDLE_S)
                self._heard_s[stream.remote] = self._links.clock()
                if message.kind == "wait":
                    continue
                if message.kind == "ack":
                    outflow.acknowledged(message)
                elif message.kind == "part" and parts_left:
                    _add(source, stream.remote, message)
                    inflow.took(message)
                    parts_left -= 1
                else:
                    raise BadMessage(f"{stream.remote} sends {message.kind} instead of a part")
        except BadPart as error:
            self._blame(hosted, stream.remote, error)
            await self._refuse(stream, error)
            raise BadMessage(str(error)) from error
        except BadMessage as error:
            self._blame(hosted, stream.remote, BadPart("bad_message", error.message))
            raise
        except NetworkError as error:
            if parts_left:
                hosted.complain(Complaint(stream.remote, "sender_lost", f"{stream.remote}: {error}"))
            raise
        finally:
            self._links.downlink.end()
            returning.cancel()
            (returned,) = await asyncio.gather(returning, return_exceptions=True)
            if isinstance(returned, Exception):
                logger.info("results were not taken peer=%s reason=%s", stream.remote, returned)

    def _blame(self, hosted: Hosted, culprit: PeerId, error: BadPart) -> None:
        """Go on without one contributor, whose bytes are of no use, and say so."""
        logger.info("sender leaves the round peer=%s reason=%s text=%s", culprit, error.reason, error)
        if isinstance(hosted.source, Reduction):
            hosted.source.leave_out((culprit,))
        hosted.complain(Complaint(culprit, error.reason, str(error), is_hostile=True))

    async def _return_results(self, stream: Stream, hosted: Hosted, outflow: Outflow, first: int) -> None:
        holding, num_parts = hosted.holding, hosted.source.num_parts
        for index in range(first, num_parts):
            try:
                result = await hosted.source.result(index)
            except BadPart as error:
                await self._refuse(stream, error)
                return
            except Exception:
                logger.exception("a result cannot be given, please report this peer=%s", stream.remote)
                await self._refuse(stream, BadPart("unexpected_error", "an error that is logged here"))
                return
            part = Part(
                kind="result",
                index=index,
                num_bytes=holding.result_bytes(index),
                encode=lambda data=result.data: data,  # type: ignore[misc]
                order=index / num_parts,
                extra={"missing": list(result.missing)} if result.missing else {},
            )
            await outflow.send(part, timeout_s=self._timeouts.part_s)

    async def _refuse(self, stream: Stream, error: BadPart) -> None:
        fields = {"reason": error.reason, "text": str(error)}
        await stream.send(Message("failed", fields), timeout_s=self._timeouts.answer_s())


def _add(source: Source, sender: PeerId, message: Message) -> None:
    """Take one part in.

    Raises:
        BadPart, BadMessage: it makes no sense.
    """
    runs = None
    if "runs" in message.fields:
        runs = [(length, samples) for length, samples in message.rows("runs", int, float)]
    source.add(sender, message.get("index", int), message.payload, runs)
