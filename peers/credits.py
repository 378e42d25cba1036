"""Who has given how much to a run, as they say themselves: for model card and dashboard. Kept on a backbone's disk."""

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from collab.config import Run, Solo, VcAsgd
from collab.errors import CheckpointFailed
from collab.ports import Ports
from collab.swarm.progress import SwarmView
from collab.swarm.records import PeerRecord
from collab.types import PeerId, Role
from peers.credit import Credit
from peers.credit_file import MOST_PEERS, MOST_RANKED, CreditFile, Others

logger = logging.getLogger(__name__)

NOTE_S, SAVE_S = 1.0, 10.0
"""How often it is noted who has given how much, and how often that is written down."""
MOST_TRIES = 3
"""At one time, with files that turn out to be damaged."""


@dataclass(frozen=True, slots=True)
class Standings:
    """Of all who count, over all time."""

    first: tuple[tuple[PeerId, Credit], ...]
    """Most first, ``MOST_RANKED`` of them."""
    number: int
    total: int
    """Samples of all of them."""


@dataclass(frozen=True, slots=True)
class Known:
    """Replaced as a whole: the event loop reads it while a thread writes to the disk."""

    here: dict[PeerId, Credit] = field(default_factory=dict)
    """Trainers that are here, also those that have given nothing yet, and whoever is not on the disk as it is here."""
    others: Others = field(default_factory=Others)
    """Those on the disk that are not among them."""


class CreditBook:
    """Of one run, as one backbone has seen it. In memory are those who are here."""

    def __init__(self, path: Path, *, only_seen: bool = False) -> None:
        """Blocks. What lies at ``path`` and cannot be read is put aside.

        Args:
            only_seen: whoever this backbone has not seen in a round does not count in the standings.
        """
        self._path, self._only_seen = path, only_seen
        self._file = CreditFile.open_or_in_memory(path)
        self._beginnings = self._file.beginnings
        """Of the file that holds what was written so far."""
        self._present: set[PeerId] = set()
        """Trainers whose word was fresh when it was last noted what they say."""
        self._changed: set[PeerId] = set()
        """Who is not on the disk as it is here."""
        self._lock = threading.Lock()
        self._failing: set[str] = set()
        """What the disk does not do just now, which has been said."""
        self._is_closed = False
        self._known = Known()
        self._take(self._look_up([]))

    def close(self) -> None:
        """Nothing is read or written any more."""
        self._is_closed = True
        self._file.close()

    # -- what trainers say -------------------------------------------------------------------------------------------

    def meet(self, records: Iterable[PeerRecord]) -> None:
        """Have at hand what is known of those who were not here. Blocks, if there are any."""
        if strangers := self._strangers(records):
            self._take(self._look_up(strangers))

    def note(
        self,
        records: Iterable[PeerRecord],
        voice_of: Callable[[PeerId], PeerId] = PeerId,
        contributors: Container[PeerId] = (),
    ) -> None:
        """What trainers say now, of those that were met.

        Args:
            voice_of: the id of a peer's invite; its own, if it has shown none.
            contributors: to the last rounds.
        """
        trainers = [record for record in records if record.role is Role.TRAINER]
        self._present = {record.peer for record in trainers}
        for record in trainers:
            credit, has_given = self._known.here.get(record.peer), record.total_samples > 0
            if credit is None or not (has_given or credit.total):
                continue
            known = replace(credit)
            if has_given:
                credit.hear(record.life, record.total_samples)
            if record.said_at >= credit.said_at_s:
                credit.name = record.name if record.wants_credit else ""
            voice = voice_of(record.peer)
            if voice != record.peer:
                credit.invite = voice  # whose ban it is under, whatever it shows later
            credit.is_seen |= record.peer in contributors
            if (credit.life, credit.samples) != (known.life, known.samples):
                credit.grew_at_s = record.said_at
            if credit != known:
                self._changed.add(record.peer)

    def date(self, records: Iterable[PeerRecord]) -> None:
        """Remember when each of them last said whether it wants to be named: where backbones have heard both, the later
        word counts. For records that ``note`` has had; it is written down with what that finds changed, or when the
        peer has gone.
        """
        for record in records:
            credit = self._known.here.get(record.peer)
            if credit is not None and credit.name == (record.name if record.wants_credit else ""):
                credit.said_at_s = max(credit.said_at_s, record.said_at)

    def _strangers(self, records: Iterable[PeerRecord]) -> list[PeerId]:
        here = self._known.here
        return [record.peer for record in records if record.role is Role.TRAINER and record.peer not in here]

    def _look_up(self, strangers: list[PeerId]) -> Known | None:
        """What is known with them; None: the disk does not say. Blocks."""
        known = self._known
        first = dict(known.others.first)
        try:
            found = first | self._file.read(strangers)
            here = known.here | {peer: found.get(peer) or Credit() for peer in strangers}
            others = self._file.but(here, only_seen=self._only_seen)
        except sqlite3.Error as error:
            self._complain("read", error)
            return None
        if self._file.beginnings != self._beginnings:  # nothing is in the new file before it is written down
            left = {peer: one for peer, one in first.items() if peer not in here}
            others = Others(tuple(left.items()), len(left), sum(one.total for one in left.values()))
        self._failing.discard("read")
        return Known(here, others)

    def _take(self, known: Known | None) -> None:
        if known is not None:
            self._known = known

    # -- what is asked -----------------------------------------------------------------------------------------------

    def standings(self) -> Standings:
        """Who gave most, and how much all gave."""
        known = self._known
        here = [(peer, one) for peer, one in known.here.items() if one.total and one.is_seen >= self._only_seen]
        ranked = sorted([*here, *known.others.first], key=_rank)
        total = sum(one.total for _, one in here)
        return Standings(tuple(ranked[:MOST_RANKED]), len(here) + known.others.number, total + known.others.total)

    def grew_at_s(self, peer: PeerId) -> float | None:
        """When a trainer that is here said for the first time that it had given more, swarm time."""
        credit = self._known.here.get(peer)
        return credit.grew_at_s or None if credit is not None else None

    def by_peer(self) -> list[tuple[PeerId, Credit]]:
        """All, most first. Blocks.

        Raises:
            CheckpointFailed: the disk gives nothing.
        """
        known = self._known
        here = {peer: one for peer, one in known.here.items() if one.total}
        try:
            return sorted((dict(known.others.first) | self._file.all() | here).items(), key=_rank)
        except sqlite3.Error as error:
            hint = "mend the disk: nothing is published while nobody knows who wants to be named"
            raise CheckpointFailed(f"who gave how much cannot be read: {error}", hint=hint) from error

    # -- the disk ----------------------------------------------------------------------------------------------------

    async def keep(
        self,
        ports: Ports,
        view: Callable[[], SwarmView],
        voice_of: Callable[[PeerId], PeerId],
        contributors: Callable[[], Container[PeerId]],
    ) -> None:
        """Note what trainers say, and write it down now and then, until cancelled.

        Args:
            voice_of, contributors: as for ``note``.
        """
        clock, beside = ports.clock, ports.compute.beside  # a busy disk takes its time
        saved_s = clock.monotonic()
        try:
            while True:
                records = view().records
                if (strangers := self._strangers(records)) or "read" in self._failing:
                    self._take(await beside(partial(self._look_up, strangers)))
                self.note(records, voice_of, contributors())
                self.date(records)
                if clock.monotonic() >= saved_s + SAVE_S:
                    saved_s = clock.monotonic()
                    await beside(self.save)
                await asyncio.sleep(NOTE_S)
        finally:
            self.save()

    def save(self) -> None:
        """Write down what has changed, and forget here who has gone; what cannot be written stays. Blocks."""
        with self._lock:  # one that is under way when the backbone leaves is waited for
            try:
                self._try_the_disk_again()
                any(self._is_written_down() for _ in range(MOST_TRIES))
            except sqlite3.Error as error:
                self._complain("written", error)
                self._forget_least()

    def _is_written_down(self) -> bool:
        """Write it down; not so: a damaged file was found meanwhile, and a new one is to hold all that is known here.

        Raises:
            sqlite3.Error: the disk does not take it.
        """
        here, beginnings = self._known.here, self._file.beginnings
        gone, is_new = here.keys() - self._present, beginnings != self._beginnings
        due = {peer: here[peer] for peer in (here if is_new else gone | self._changed) if here[peer].total}
        if is_new:
            due = dict(self._known.others.first) | due
        if not due and not gone:
            return True
        if due:
            self._file.write(due)
        staying = {peer: one for peer, one in here.items() if peer not in gone}
        others = self._file.but(staying, only_seen=self._only_seen)
        if self._file.beginnings != beginnings:
            return False
        self._known, self._beginnings = Known(staying, others), beginnings
        self._changed.clear()
        self._failing.discard("written")
        return True

    def _try_the_disk_again(self) -> None:
        """Where the file could not be opened, or could not be put aside.

        Raises:
            sqlite3.Error: it can, and does not take what is in memory.
        """
        if not self._file.is_in_memory:
            return
        try:
            file = CreditFile.open(self._path)
        except OSError:
            return
        try:
            file.add(self._file.all())
        except BaseException:
            file.close()
            raise
        self._file.close()
        self._file, self._beginnings = file, file.beginnings

    def _complain(self, what: str, error: sqlite3.Error) -> None:
        if what not in self._failing and not self._is_closed:  # said once, not every time
            hint = "free some space, or mend the disk: training goes on"
            logger.warning("who gave how much cannot be %s: %s; %s", what, error, hint)
        self._failing.add(what)

    def _forget_least(self) -> None:
        """While the disk takes nothing, no more than it would."""
        known = self._known
        if len(known.here) > MOST_PEERS:
            ranked = sorted(known.here.items(), key=lambda item: (not item[1].is_seen, *_rank(item)))
            self._known = replace(known, here=dict(ranked[:MOST_PEERS]))
            self._changed &= self._known.here.keys()


def has_rounds(run: Run) -> bool:
    """Whether training goes in rounds, in which a backbone sees who brings something."""
    return not isinstance(run.strategy, VcAsgd | Solo)


def who_counts(given: Iterable[tuple[PeerId, Credit]], run: Run) -> list[tuple[PeerId, Credit]]:
    """Of those who say to have given something: where training goes in rounds, who was seen in one."""
    return [(peer, one) for peer, one in given if one.is_seen or not has_rounds(run)]


def _rank(item: tuple[PeerId, Credit]) -> tuple[int, PeerId]:
    peer, credit = item
    return -credit.total, peer
