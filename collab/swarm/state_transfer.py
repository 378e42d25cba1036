"""Taking over the swarm's state: from many donors at once, each chunk verified.

Donors are asked what they have; what most of them have is fetched, and each brings as many chunks as its link allows.
"""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from collab.averaging.flow import Inflow, Links, kept_alive
from collab.errors import BadMessage, CorruptState, NetworkError, NoDonor, TimedOut
from collab.net.base import Stream, Transport
from collab.net.wire import Message
from collab.swarm.donation import STATE_PROTOCOL
from collab.swarm.download import Download
from collab.swarm.partial import Partial
from collab.swarm.snapshots import MAX_SNAPSHOT_BYTES, Manifest, PackedSnapshot
from collab.types import Lineage, PeerId

logger = logging.getLogger(__name__)

MAX_ASKED = 8
"""Donors at a time; when one fails the next one is asked."""
MOST_FLOATS, MOST_MORE = 16, 64 << 20
"""Of a snapshot: float32 a parameter, for all that an optimiser may keep, and bytes beyond, for buffers and names."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which state: a given one, or what most trainers have newest."""

    epoch: int | None = None
    lineage: Lineage | None = None
    digest: str | None = None
    """Of its bytes; None: whoever's."""
    refused: frozenset[str] = frozenset()
    """Digests of states that do not fit."""
    least_epoch: int = 0
    """What we hold ourselves is worth more than anything older."""
    held: Lineage | None = None
    """Of the state that we hold: nobody need bring us that once more."""
    voices: frozenset[PeerId] = frozenset()
    """Whose word decides which state is taken, if any of them gives one: a backbone's checkpoint is older than what
    trainers hold, and serves when they hold nothing. Empty: everybody's."""
    voice_of: Callable[[PeerId], PeerId] = lambda peer: peer
    """Under which a peer counts: those of one invite are one voice."""
    most_bytes: int = MAX_SNAPSHOT_BYTES
    """More than our model can need."""
    patience_s: float = math.inf
    """For how long a donor may say that it has something to do first."""
    tell: Callable[[int, int], None] = lambda _brought, _whole: None
    """Hears how many bytes are here of how many."""

    def accepts(self, manifest: Manifest) -> bool:
        """Whether ``manifest`` is what was asked for."""
        is_history = (self.epoch is None or manifest.epoch == self.epoch) and self.lineage in (None, manifest.lineage)
        is_new = manifest.epoch >= self.least_epoch and manifest.lineage != self.held
        is_given = self.digest in (None, manifest.digest) and manifest.num_bytes <= self.most_bytes
        return is_history and is_new and is_given and manifest.digest not in self.refused


async def fetch_state(
    transport: Transport,
    links: Links,
    donors: list[PeerId],
    *,
    fingerprint: str,
    wanted: Wanted,
    partial: Partial | None = None,
) -> tuple[PackedSnapshot, Mapping[PeerId, int]]:
    """Take the wanted snapshot from as many donors as have it.

    Args:
        partial: keeps what comes until all of it is here, and may have some of it.

    Returns:
        The snapshot, and how many of its bytes came from whom.

    Raises:
        NoDonor: they could not give it whole; the message says why for each.
    """
    return await _Fetch(transport, links, donors, fingerprint, wanted, partial).run()


class _Fetch:
    """One attempt."""

    def __init__(
        self,
        transport: Transport,
        links: Links,
        donors: list[PeerId],
        fingerprint: str,
        wanted: Wanted,
        partial: Partial | None,
    ) -> None:
        self._partial = partial
        self._transport, self._links, self._timeouts = transport, links, links.timeouts
        self._waiting, self._fingerprint, self._wanted = list(donors), fingerprint, wanted
        self._asked: dict[asyncio.Task[None], PeerId] = {}
        self._offers: dict[PeerId, Manifest] = {}
        self._failures: dict[PeerId, str] = {}
        self._beginning: asyncio.Task[None] | None = None
        """Since it was chosen what is taken."""
        self._download: Download | None = None
        self._chosen: asyncio.Future[Download] = asyncio.get_running_loop().create_future()
        self._deadline: asyncio.TimerHandle | None = None
        """When those that have not answered yet are not waited for any more."""
        self._patient_until_s = links.clock() + self._timeouts.stalled_s(0.0)

    async def run(self) -> tuple[PackedSnapshot, Mapping[PeerId, int]]:
        """To its end."""
        self._links.downlink.begin()
        try:
            while not self._is_complete and (self._waiting or self._asked):
                while self._waiting and len(self._asked) < MAX_ASKED:
                    donor = self._waiting.pop(0)
                    self._asked[asyncio.create_task(self._take_from(donor))] = donor
                done, _ = await asyncio.wait(self._asked, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    del self._asked[task]
                    task.result()
                self._choose_if_clear()
        finally:
            self._links.downlink.end()
            if self._deadline is not None:
                self._deadline.cancel()
            tasks = [*self._asked, *([self._beginning] if self._beginning is not None else [])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._download is not None and self._download.is_complete:
            return self._download.packed(), self._download.brought_bytes
        listing = "\n".join(f"  {peer}: {text}" for peer, text in self._failures.items())
        raise NoDonor(
            f"the run's state could not be fetched:\n{listing or '  nobody is known who could have it'}",
            hint="is the backbone running? it keeps the state",
        )

    @property
    def _is_complete(self) -> bool:
        return self._download is not None and self._download.is_complete

    # -- which state -------------------------------------------------------------------------------------------------

    def _choose_if_clear(self) -> None:
        """Choose what most of those who were asked have; of those who answered in time, if nobody else did."""
        if self._beginning is not None or not self._offers:
            return
        asked = set(self._asked.values())
        deciding = asked & self._wanted.voices or asked
        counts = self._voices_for(deciding & self._offers.keys())
        voices = {self._wanted.voice_of(donor) for donor in deciding}
        if 2 * max(counts.values(), default=0) > len(voices) or deciding <= self._offers.keys():
            self._choose()
        elif self._deadline is None:
            self._deadline = asyncio.get_running_loop().call_later(self._timeouts.answer_s(), self._choose_late)

    def _choose_late(self) -> None:
        """Choose of what is here, but no old checkpoint while somebody whose word counts serves others first: who says
        nothing meanwhile has failed after a while.
        """
        queued = set(self._asked.values()) & self._wanted.voices
        is_patient = self._links.clock() < self._patient_until_s
        if is_patient and queued and not queued & self._offers.keys():
            self._deadline = asyncio.get_running_loop().call_later(self._timeouts.answer_s(), self._choose_late)
        else:
            self._choose()

    def _choose(self) -> None:
        if self._beginning is not None or not self._offers:
            return
        deciding = self._offers.keys() & self._wanted.voices or self._offers.keys()
        counts = self._voices_for(deciding)
        best = max(counts, key=lambda manifest: (counts[manifest], manifest.epoch, manifest.digest))
        logger.info("taking the state of epoch=%d lineage=%s donors=%d", best.epoch, best.lineage, counts[best])
        self._beginning = asyncio.create_task(self._begin(best))

    def _voices_for(self, donors: Iterable[PeerId]) -> Counter[Manifest]:
        """How many voices each offer has."""
        return Counter(offer for offer, _ in {(self._offers[peer], self._wanted.voice_of(peer)) for peer in donors})

    async def _begin(self, manifest: Manifest) -> None:
        try:
            download = Download(manifest)
            if self._partial is not None:
                for index, chunk in (await self._partial.begin(manifest)).items():
                    download.restore(index, chunk)
        except BaseException as error:
            self._chosen.set_exception(error)  # for those who wait for it
            raise
        self._download = download
        self._chosen.set_result(download)

    # -- one donor ---------------------------------------------------------------------------------------------------

    async def _take_from(self, donor: PeerId) -> None:
        try:
            if not await self._take_epoch(donor, self._wanted.epoch) and self._download is not None:
                await self._take_epoch(donor, self._download.manifest.epoch)  # it may still have what the others have
        except (NetworkError, CorruptState) as error:
            logger.info("state not taken donor=%s reason=%s", donor, error)
            self._failures[donor] = error.message
        finally:
            self._offers.pop(donor, None)
            if self._download is not None:
                self._download.give_up(donor)

    async def _take_epoch(self, donor: PeerId, epoch: int | None) -> bool:
        """Take the donor's chunks of an epoch's state (None: of its newest); whether it has the one that was chosen.

        Raises:
            NetworkError, CorruptState: it does not have what is wanted, or is gone, or sends something else.
        """
        with self._timeouts.asking(donor) as limit_s:
            stream = await self._transport.open(donor, STATE_PROTOCOL, timeout_s=limit_s)
            fields = {"fingerprint": self._fingerprint, "epoch": -1 if epoch is None else epoch}
            await stream.send(Message("get", fields), timeout_s=limit_s)
        try:
            manifest = await self._offered(stream)
            self._offers[donor] = manifest
            self._choose_if_clear()
            async with kept_alive(stream, self._timeouts):
                download = await asyncio.shield(self._chosen)
                if manifest != download.manifest:
                    return False
                await self._take_chunks(stream, download)
            return True
        finally:
            stream.close()

    async def _offered(self, stream: Stream) -> Manifest:
        """What the donor has; it may have to finish a microbatch, or other newcomers, before it can say so."""
        until_s = self._links.clock() + self._wanted.patience_s
        while (answer := await stream.receive(timeout_s=self._timeouts.part_s)).kind == "wait":
            if self._links.clock() > until_s:
                raise TimedOut(f"{stream.remote} is there, and says only that we have to wait")
        if answer.kind == "refused":
            raise BadMessage(answer.get("text", str))
        manifest = Manifest.from_message(answer)
        if manifest.fingerprint != self._fingerprint or not self._wanted.accepts(manifest):
            what = f"{manifest.num_bytes} bytes of epoch {manifest.epoch}, lineage {manifest.lineage[:8]}"
            why = "what we hold already" if manifest.lineage == self._wanted.held else "not what was asked for"
            raise BadMessage(f"offers {what}, which is {why}")
        return manifest

    async def _take_chunks(self, stream: Stream, download: Download) -> None:
        moved_s, clock = self._links.clock(), self._links.clock
        async with Inflow(stream, self._links, timeout_s=self._timeouts.part_s) as inflow:
            while not download.is_complete:
                while (index := download.next_for(stream.remote)) is not None:
                    await stream.send(Message("want", {"index": index}), timeout_s=self._timeouts.part_s)
                message = await stream.receive(timeout_s=self._timeouts.part_s)
                if message.kind == "wait":
                    stalled_s = self._timeouts.stalled_s(0.0)
                    if download.waits_for(stream.remote) and clock() - moved_s > stalled_s:
                        raise TimedOut(f"{stream.remote} is there, but brought nothing for {stalled_s:.0f} s")
                    continue
                if message.kind != "piece":
                    raise BadMessage(f"donor {stream.remote} sends {message.kind} instead of its state")
                moved_s = clock()
                piece = memoryview(message.payload)
                index = message.get("index", int)
                is_whole = download.take(stream.remote, index, message.get("start", int), piece)
                inflow.took(message)
                self._wanted.tell(download.here_bytes, download.manifest.num_bytes)
                if is_whole and self._partial is not None:
                    await self._partial.keep(index, download.chunk(index))
