"""Who has given how much to a run, as they say themselves: for model card and dashboard. Kept on a backbone's disk."""

import asyncio
import json
import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from collab.ports import Clock
from collab.swarm.progress import SwarmView
from collab.swarm.records import PeerRecord
from collab.types import PeerId, Role

logger = logging.getLogger(__name__)

NOTE_S, SAVE_S = 1.0, 10.0
"""How often it is noted who has given how much, and how often that is written down."""
MOST_PEERS = 5000
"""Identities are free to make; of more, those who gave least are forgotten first."""


@dataclass(slots=True)
class Credit:
    """One peer."""

    name: str = ""
    """Empty: it does not want to be named."""
    earlier: int = 0
    """Samples of its lives before this one."""
    samples: int = 0
    """Of this life."""

    @property
    def total(self) -> int:
        """Samples of all its lives."""
        return self.earlier + self.samples


class CreditBook:
    """Of one run, as one backbone has seen it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._credits = _read(path)
        self._is_changed = False

    def note(self, records: Iterable[PeerRecord]) -> None:
        """What trainers say now. A total that has gone down is that of a new life."""
        for record in records:
            if record.role is not Role.TRAINER or record.total_samples <= 0:
                continue
            credit = self._credits.setdefault(record.peer, Credit())
            if record.total_samples < credit.samples:
                credit.earlier += credit.samples
            name = record.name if record.wants_credit else ""
            self._is_changed |= (name, record.total_samples) != (credit.name, credit.samples)
            credit.name, credit.samples = name, record.total_samples
        if len(self._credits) > MOST_PEERS:
            self._credits = dict(sorted(self._credits.items(), key=lambda item: -item[1].total)[:MOST_PEERS])

    def all(self) -> tuple[Credit, ...]:
        """Most first."""
        return tuple(sorted(self._credits.values(), key=lambda credit: (-credit.total, credit.name)))

    def by_peer(self) -> list[tuple[PeerId, Credit]]:
        """Most first."""
        return sorted(self._credits.items(), key=lambda item: (-item[1].total, item[0]))

    async def keep(self, clock: Clock, view: Callable[[], SwarmView]) -> None:
        """Note what trainers say, and write it down now and then, until cancelled."""
        saved_s = clock.monotonic()
        try:
            while True:
                self.note(view().records)
                if clock.monotonic() >= saved_s + SAVE_S:
                    saved_s = clock.monotonic()
                    self.save()
                await asyncio.sleep(NOTE_S)
        finally:
            self.save()

    def save(self) -> None:
        """For the next life; what cannot be written is only lost to the card."""
        if not self._is_changed:
            return
        unfinished = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            content = {peer: asdict(credit) for peer, credit in self._credits.items()}
            unfinished.write_text(json.dumps(content), encoding="utf-8")
            unfinished.replace(self._path)
            self._is_changed = False
        except OSError as error:
            logger.warning("who gave how much cannot be written to %s: %s; free some space", self._path, error)


def _read(path: Path) -> dict[PeerId, Credit]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {
            PeerId(str(peer)): Credit(str(one["name"]), int(one["earlier"]), int(one["samples"]))
            for peer, one in content.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
