"""What a peer says in the directory of one page of blocks: which it holds, and which it has trained. Signed."""

import math
from dataclasses import dataclass
from typing import Any

from collab.data.blocks import PAGE_BLOCKS
from collab.errors import BadMessage
from collab.newest import Newest
from collab.ports import Keys
from collab.swarm.envelope import Envelope
from collab.swarm.records import MAX_DATA_CHARACTERS, MAX_PASS
from collab.types import PeerId

ENTRY_BYTES, MAX_ENTRY_BYTES = 300, 512
"""What an entry of ours takes at most, and what is read."""
MAX_LIFE_S = 600.0
"""Whatever an entry says: a holder says it again long before."""
FUTURE_S = 10.0
"""What clocks may differ by: an entry from further in the future is refused."""
PAGE_BYTES = PAGE_BLOCKS // 8
REMEMBERED = 4096
"""Pages of peers whose newest entries were read."""
ENVELOPE = Envelope(name="lease entry", purpose=b"collab/lease/2", max_bytes=MAX_ENTRY_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One key of the directory."""

    fingerprint: str
    """Of the run."""
    data: str
    pass_number: int
    page: int

    @property
    def key(self) -> str:
        """Of the directory."""
        digest = self.data.rpartition(".")[2]
        return f"{self.fingerprint[:32]}.data.{digest[:16]}.{self.pass_number}.{self.page}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageEntry:
    """One peer's word about one page. Nothing in it is proven but who said it."""

    page: Page
    said_at: float
    """Swarm time."""
    life_s: float
    """For how long its claim holds from then on; readers believe at most ``MAX_LIFE_S``."""
    held: int
    """A bit for each block that it claims."""
    trained: int
    """A bit for each block all samples of which this peer has brought into steps."""

    def is_live(self, now: float) -> bool:
        """Whether its claim holds: by what it says, but never for longer than a claim may live."""
        return -FUTURE_S <= now - self.said_at <= min(self.life_s, MAX_LIFE_S)


def pack_entry(entry: PageEntry, keys: Keys) -> bytes:
    """Signed bytes of ``entry``."""
    page = entry.page
    values = [
        page.fingerprint,
        page.data,
        page.pass_number,
        page.page,
        entry.said_at,
        entry.life_s,
        entry.held.to_bytes(PAGE_BYTES, "big"),
        entry.trained.to_bytes(PAGE_BYTES, "big"),
    ]
    return ENVELOPE.pack(values, keys)


_READ: Newest[PageEntry] = Newest(REMEMBERED)


class EntryReader:
    """Reads entries; what was verified once is remembered, since most are as they were when they were read before."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def read(self, data: bytes, peer: PeerId, page: Page) -> PageEntry:
        """Entry of ``peer`` under the key of ``page``.

        Raises:
            BadMessage: too large, malformed, of another page, impossible, or not signed by ``peer``.
        """
        if (known := _READ.get((peer, page), data)) is not None:
            return known
        entry = ENVELOPE.unpack(data, peer, _checked, self._keys.is_signed_by)
        if entry.page != page:
            raise BadMessage("lease entry is of another page")
        return _READ.put((peer, page), data, entry)


def _checked(values: Any) -> PageEntry:
    fingerprint, data, pass_number, page, said_at, life_s, held, trained = values
    texts, wholes = (fingerprint, data), (pass_number, page)
    if not all(isinstance(text, str) and len(text) <= MAX_DATA_CHARACTERS for text in texts):
        raise BadMessage("lease entry names no run or no data")
    if not all(type(whole) is int and 0 <= whole <= MAX_PASS for whole in wholes):
        raise BadMessage("lease entry is of an impossible page")
    return PageEntry(
        page=Page(fingerprint=fingerprint, data=data, pass_number=pass_number, page=page),
        said_at=_time(said_at),
        life_s=_time(life_s),
        held=_bits(held),
        trained=_bits(trained),
    )


def _time(value: Any) -> float:
    if type(value) is not float or not math.isfinite(value) or value < 0:
        raise BadMessage(f"lease entry has an impossible time {value!r:.40}")
    return value


def _bits(value: Any) -> int:
    if not isinstance(value, bytes) or len(value) != PAGE_BYTES:
        raise BadMessage("lease entry has a set of blocks of the wrong size")
    return int.from_bytes(value, "big")
