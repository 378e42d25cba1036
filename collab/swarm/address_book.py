"""Where peers of a run can be dialled: what the invite says, and what was learned since of the backbones.

An invite is as old as its making; the backbones that it names may all be gone. So each peer remembers on its disk where
backbones were when it last looked, and comes back through any of them.
"""

import asyncio
import json
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from collab.durable import replace_file
from collab.errors import NetworkError
from collab.ports import Ports
from collab.swarm.backbone_records import MAX_ADDRESS_CHARACTERS, BackboneRecord
from collab.swarm.lease_keeper import Vouched, read_backbones

logger = logging.getLogger(__name__)

MOST_LEARNED = 8
"""Addresses beyond the invite's; each is dialled every few seconds while nobody answers there."""
FIRST_LOOK_S, LOOK_S = 5.0, 60.0
"""When a peer looks for backbones for the first time; then after twice as long each time, up to this. It reads one key
of the directory."""


class AddressBook(Collection[str]):
    """Multiaddresses, the invite's first. What is learned counts at once for whoever holds this collection."""

    def __init__(self, first: Sequence[str] = (), path: Path | None = None) -> None:
        """
        Args:
            first: from the invite; stay for good.
            path: where what is learned is kept; None: nowhere.
        """
        self._first, self._path = tuple(first), path
        self._learned: tuple[str, ...] = _read(path) if path is not None else ()

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._first, *self._learned)))

    def __len__(self) -> int:
        return len(set(self._first) | set(self._learned))

    def __contains__(self, address: object) -> bool:
        return address in self._first or address in self._learned

    def learn(self, addresses: Iterable[str]) -> None:
        """Backbones are at ``addresses`` now; of those known before the oldest are forgotten first."""
        learned = tuple(dict.fromkeys((*addresses, *self._learned)))[:MOST_LEARNED]
        if learned == self._learned:
            return
        self._learned = learned
        if self._path is not None:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(self._path, json.dumps(learned).encode(), is_synced=False)
            except OSError as error:
                logger.warning("where backbones are cannot be noted in %s: %s", self._path, error)

    async def follow(self, ports: Ports, fingerprint: str, vouched: Vouched = lambda _: True) -> None:
        """Look where backbones are, now and then, until cancelled.

        Args:
            vouched: see ``Vouched``.
        """
        pause_s = FIRST_LOOK_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LOOK_S)
            try:
                records = await read_backbones(ports, fingerprint, now=ports.clock.now(), vouched=vouched)
            except NetworkError as error:
                logger.debug("backbones cannot be looked for: %s", error)
            else:
                me = ports.transport.peer_id
                self.learn(live_addresses(record for record in records.values() if record.peer != me))


def live_addresses(records: Iterable[BackboneRecord]) -> tuple[str, ...]:
    """Of backbones that are alive, in turn, so that each of them is among the first."""
    ordered = [record.addresses for record in sorted(records, key=lambda record: record.claim.rank)]
    longest = max((len(addresses) for addresses in ordered), default=0)
    return tuple(addresses[n] for n in range(longest) for addresses in ordered if n < len(addresses))


def _read(path: Path) -> tuple[str, ...]:
    """What was learned in an earlier life; nothing, when it cannot be read."""
    try:
        told = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return ()
    if not isinstance(told, list):
        return ()
    known = [text for text in told if isinstance(text, str) and len(text) <= MAX_ADDRESS_CHARACTERS]
    return tuple(known[:MOST_LEARNED])
