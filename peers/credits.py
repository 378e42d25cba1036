"""Who has given how much to a run, as they say themselves: for model card and dashboard. Kept on a backbone's disk."""

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from collab.config import Run, Solo, VcAsgd
from collab.durable import replace_file
from collab.ports import Ports
from collab.swarm.progress import SwarmView
from collab.swarm.records import PeerRecord
from collab.types import PeerId, Role

logger = logging.getLogger(__name__)

NOTE_S, SAVE_S = 1.0, 10.0
"""How often it is noted who has given how much, and how often that is written down."""
MOST_PEERS = 5000
"""Identities are free to make; of more, those that were in no round are forgotten first, then those who gave least."""
LIVES = 4
"""Of a peer, whose words may still come: records that are read late, or another machine that has the same key."""
NO_OTHERS: dict[int, int] = {}
"""What all share who have had one life: most of those who have ever come are strangers that came once."""


@dataclass(slots=True)
class Credit:
    """One peer."""

    name: str = ""
    """Empty: it does not want to be named."""
    earlier: int = 0
    """Samples of its lives before those that follow."""
    samples: int = 0
    """Of the life that spoke last."""
    invite: str = ""
    """Id of the one that it has shown last; empty: none, as far as we have seen."""
    is_seen: bool = False
    """Whether this backbone has seen it in a round that committed."""
    life: int = 0
    """Which one spoke last, see ``PeerRecord``."""
    others: Mapping[int, int] = field(default_factory=lambda: NO_OTHERS)
    """Samples of the lives that spoke before, by their marks, the latest last. Never changed in place."""
    said_at_s: float = 0.0
    """When it has last said whether it wants to be named, swarm time."""

    @property
    def total(self) -> int:
        """Samples of all its lives."""
        return self.earlier + sum(self.others.values()) + self.samples

    def hear(self, life: int, samples: int) -> None:
        """So many samples of this life. One that bears no mark, of an earlier version, has ended when it says less."""
        if self.life == 0 and samples >= self.samples:
            self.life = life
        if life == self.life:
            if life == 0 and samples < self.samples:
                self.earlier, self.samples = self.earlier + self.samples, 0
            self.samples = max(self.samples, samples)
            return
        others = {**self.others, self.life: self.samples}
        self.life, self.samples = life, max(samples, others.pop(life, 0))
        if len(others) >= LIVES:
            self.earlier += others.pop(next(iter(others)))
        self.others = others


class CreditBook:
    """Of one run, as one backbone has seen it."""

    def __init__(self, path: Path) -> None:
        """Blocks. What lies at ``path`` and cannot be read is put aside, and is never written over."""
        self._path, self._lock = path, threading.Lock()
        self._credits: dict[PeerId, Credit] = {}
        self.grew_at_s: dict[PeerId, float] = {}
        """When each of them said for the first time that it had given more, swarm time; since this process began."""
        self._is_changed, self._is_kept = False, True
        try:
            self._credits = _read(path)
        except OSError as error:
            logger.warning(
                "who gave how much, in %s, can neither be read nor put aside (%s); it stays as it is, and nothing is "
                "kept beside it: make it and its directory readable and writable, and start again", path, error
            )  # fmt: skip
            self._is_kept = False

    def note(
        self,
        records: Iterable[PeerRecord],
        voice_of: Callable[[PeerId], PeerId] = PeerId,
        contributors: Container[PeerId] = (),
    ) -> None:
        """What trainers say now.

        Args:
            voice_of: the id of a peer's invite; its own, if it has shown none.
            contributors: to the last rounds.
        """
        for record in records:
            has_given = record.total_samples > 0
            if record.role is not Role.TRAINER or not (has_given or record.peer in self._credits):
                continue
            credit = self._credits.setdefault(record.peer, Credit())
            known = replace(credit)
            if has_given:
                credit.hear(record.life, record.total_samples)
            if record.said_at >= credit.said_at_s:
                credit.name = record.name if record.wants_credit else ""
            voice = voice_of(record.peer)
            if voice != record.peer:
                credit.invite = voice  # whose ban it is under, whatever it shows later
            credit.is_seen |= record.peer in contributors
            self._is_changed |= credit != known
            if (credit.life, credit.samples) != (known.life, known.samples):
                self.grew_at_s[record.peer] = record.said_at
        if len(self._credits) > MOST_PEERS:
            ranked = sorted(self._credits.items(), key=lambda item: (not item[1].is_seen, -item[1].total))
            self._credits = dict(ranked[:MOST_PEERS])
            self.grew_at_s = {peer: at_s for peer, at_s in self.grew_at_s.items() if peer in self._credits}

    def date(self, records: Iterable[PeerRecord]) -> None:
        """Remember when each of them last said whether it wants to be named: where backbones have heard both, the later
        word counts. For records that ``note`` has had; with what that finds changed it is written down.
        """
        for record in records:
            credit = self._credits.get(record.peer)
            if credit is not None and credit.name == (record.name if record.wants_credit else ""):
                credit.said_at_s = max(credit.said_at_s, record.said_at)

    def all(self) -> tuple[Credit, ...]:
        """Most first."""
        return tuple(sorted(self._credits.values(), key=lambda credit: (-credit.total, credit.name)))

    def by_peer(self) -> list[tuple[PeerId, Credit]]:
        """Most first."""
        return sorted(self._credits.items(), key=lambda item: (-item[1].total, item[0]))

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
        clock = ports.clock
        saved_s = clock.monotonic()
        try:
            while True:
                records = view().records
                self.note(records, voice_of, contributors())
                self.date(records)
                if clock.monotonic() >= saved_s + SAVE_S:
                    saved_s = clock.monotonic()
                    await ports.compute.beside(self.save)  # a busy disk takes its time
                await asyncio.sleep(NOTE_S)
        finally:
            self.save()

    def save(self) -> None:
        """For the next life; what cannot be written is only lost to the card. Blocks."""
        with self._lock:  # one that is under way when the backbone leaves is waited for
            if not self._is_changed or not self._is_kept:
                return
            content = {peer: asdict(credit) for peer, credit in self._credits.items()}
            self._is_changed = False
            try:
                replace_file(self._path, json.dumps(content).encode())
            except OSError as error:
                self._is_changed = True
                logger.warning("who gave how much cannot be written to %s: %s; free some space", self._path, error)


def who_counts(given: Iterable[tuple[PeerId, Credit]], run: Run) -> list[tuple[PeerId, Credit]]:
    """Of those who say to have given something: where training goes in rounds, who was seen in one."""
    has_rounds = not isinstance(run.strategy, VcAsgd | Solo)
    return [(peer, one) for peer, one in given if one.is_seen or not has_rounds]


def _credit(one: dict[str, Any]) -> Credit:
    """What an earlier version has written has no mark, and was in the book before anybody looked for it."""
    name, earlier, samples = str(one["name"]), int(one["earlier"]), int(one["samples"])
    others = {int(life): int(given) for life, given in one.get("others", {}).items()} or NO_OTHERS
    invite, is_seen, life = str(one.get("invite", "")), bool(one.get("is_seen", True)), int(one.get("life", 0))
    return Credit(name, earlier, samples, invite, is_seen, life, others, float(one.get("said_at_s", 0.0)))


def _read(path: Path) -> dict[PeerId, Credit]:
    """
    Raises:
        OSError: there is something that can neither be read nor put aside.
    """
    try:
        content = json.loads(path.read_bytes())
        return {PeerId(str(peer)): _credit(one) for peer, one in content.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        names = (path.with_name(f"{path.stem}.unreadable-{number}{path.suffix}") for number in count(1))
        aside = next(name for name in names if not name.exists())
        path.rename(aside)
        logger.warning(
            "who gave how much cannot be read from %s (%r); it lies in %s, and all begin at 0: to have it back, stop "
            "this backbone and put a mended file, or one of a backup, in its place", path, error, aside
        )  # fmt: skip
        return {}
