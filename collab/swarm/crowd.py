"""A large swarm in few words: what a backbone tells of all trainers, so that nobody else reads every record.

In a swarm of a few everybody reads everybody's records. When it grows, trainers move to pages of their own, which
backbones read, and one of these sums them up: how many train where, how far they are together, and the signed records
of the helpers and of a few trainers, the same for everybody, to fetch state and rounds from. It says so on the front
page, where newcomers look, and in many copies, so that no keeper is asked by everybody. What a peer reads then does not
grow with the swarm. Only a backbone that the owner has named is believed.
"""

import hashlib
import math
from dataclasses import astuple, dataclass, fields
from typing import Any

from collab.errors import BadMessage
from collab.net.wire import Message
from collab.newest import Newest
from collab.swarm.envelope import Envelope
from collab.swarm.identity import Identity
from collab.types import Lineage, PeerId

PURPOSE = b"collab/crowd/1"
"""Goes before what is signed: no other signature of a peer can be taken for this one."""
CROWD_FROM, CROWD_BELOW = 9, 7
"""Trainers from which on, and below which, a swarm is a crowd: one that comes and one that goes change nothing."""
PAGE_RECORDS = 128
"""On each page, about: 40 KB, two dozen parts of a round."""
MAX_LEVEL = 8
"""128 pages, for 16,000 trainers; of more than that the pages grow."""
READERS = 32
"""Of each copy of a summary, about."""
SAMPLE, HELPERS = 8, 4
"""Records that everybody reads: of as many trainers as a newcomer fetches its state from, and of helpers."""
SAMPLE_EPOCHS = 16
"""After so many epochs the sample consists of others."""
HEARTBEAT_S, LONGEST_HEARTBEAT_S, MANY = 8.0, 16.0, 512
"""How often each peer of a crowd speaks, and listens; from so many trainers on the more rarely, the more there are."""
NOTICE_S, NOTICE_HEARTBEATS = 10.0, 3
"""After so long everybody has heard what the organiser orders; in a crowd so many heartbeats later: where the swarm
stands is known from words of the last one, and who reads of the order later hands it on later.
"""
MAX_TALLIES = 16
"""Histories that are told of; honest swarms are at two or three at once."""
MAX_BYTES = 32768
"""The sample's records, and a kilobyte."""
LIFE_HEARTBEATS = 3.5
"""A summary is believed for so many heartbeats of its author: its reader's may be two old, and one may be lost."""
REMEMBERED = 64
"""Peers whose newest summaries were read, of at most ``MAX_BYTES`` each."""
ENVELOPE = Envelope(name="summary", purpose=PURPOSE, max_bytes=MAX_BYTES)


@dataclass(frozen=True, slots=True)
class Tally:
    """All trainers at one point of history, together."""

    epoch: int
    lineage: Lineage
    trainers: int
    seated: int
    """Of these, those that have gone on since they were started."""
    samples: int
    """Accumulated towards the next step, as far as their words go."""
    samples_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """A swarm in few words."""

    fingerprint: str
    said_at: float
    """Swarm time."""
    life_s: float
    """For how long this is believed."""
    level: int
    """How the trainers' records are cut into pages."""
    peers: int
    """Everybody who is there, helpers and newcomers included."""
    tallies: tuple[Tally, ...]
    """Most trainers first."""
    left: tuple[tuple[int, int], ...] = ()
    """Who has just said goodbye: epochs, and how many there."""
    sample: tuple[tuple[PeerId, bytes], ...] = ()
    """Helpers' and some trainers' own records, as they signed them."""

    @property
    def trainers(self) -> int:
        """Of all histories."""
        return sum(tally.trainers for tally in self.tallies)

    @property
    def beat_s(self) -> float:
        """How often everybody speaks, and looks."""
        return heartbeat_s(self.trainers)

    @property
    def samples_per_s(self) -> float:
        """Of all trainers."""
        return math.fsum(tally.samples_per_s for tally in self.tallies)

    @property
    def is_at_rest(self) -> bool:
        """Whether no trainer has gone on since it was started."""
        return not any(tally.seated for tally in self.tallies)

    def at(self, epoch: int, lineage: Lineage) -> Tally:
        """Trainers of one history."""
        known = (tally for tally in self.tallies if (tally.epoch, tally.lineage) == (epoch, lineage))
        return next(known, Tally(epoch, lineage, 0, 0, 0, 0.0))

    def is_fresh(self, now: float) -> bool:
        """Whether it is not older than its life, nor from a future that no clock error explains."""
        return abs(now - self.said_at) <= self.life_s


def heartbeat_s(trainers: int) -> float:
    """How often each peer of a crowd speaks."""
    return min(HEARTBEAT_S * max(trainers / MANY, 1.0), LONGEST_HEARTBEAT_S)


def idle_s(crowd: Crowd | None, now: float, due_s: float, *, step_s: float) -> float:
    """How long a peer need not look whether there is something to say or to read.

    Among few there may be at any time, so that it looks each ``step_s``. In a crowd nothing is urgent, and what is due
    is known before, unless the word on which that rests is too old by then.

    Args:
        now: swarm time.
        due_s: until it speaks or reads next.
    """
    if crowd is None:
        return step_s
    due_s = max(min(due_s, crowd.said_at + crowd.life_s - now), 0.0)
    return step_s * max(math.ceil(due_s / step_s), 1)


def notice_s(trainers: int) -> float:
    """By when everybody has heard of an order in a swarm of so many."""
    return NOTICE_S + (NOTICE_HEARTBEATS * heartbeat_s(trainers) if trainers >= CROWD_FROM else 0.0)


def level_for(trainers: int) -> int:
    """How the records of so many trainers are cut: level L has 2^(L-1) pages; 0: all are on the front page."""
    return min(1 + math.ceil(math.log2(max(trainers / PAGE_RECORDS, 1.0))), MAX_LEVEL)


def page_keys(front: str, level: int) -> list[str]:
    """Directory keys of all pages of a level; the front page, where helpers are, is not one of them."""
    return [f"{front}.{level}.{page}" for page in range(1 << level - 1)] if level else []


def page_key(front: str, level: int, peer: PeerId) -> str:
    """Where ``peer``, a trainer, writes its record."""
    return f"{front}.{level}.{_number(peer) % (1 << level - 1)}" if level else front


def copy_keys(front: str, level: int) -> list[str]:
    """Directory keys of all copies of a summary."""
    return [f"{front}.crowd.{copy}" for copy in range(_copies(level))]


def copy_key(front: str, level: int, peer: PeerId) -> str:
    """Which copy ``peer`` reads."""
    return f"{front}.crowd.{_number(peer) % _copies(level)}"


def _copies(level: int) -> int:
    return (1 << level - 1) * PAGE_RECORDS // READERS if level else 0


def _number(peer: PeerId) -> int:
    return int.from_bytes(hashlib.sha256(peer.encode()).digest()[:4], "big")


def pack_crowd(crowd: Crowd, identity: Identity) -> bytes:
    """Signed bytes of ``crowd``."""
    return ENVELOPE.pack(
        [crowd.fingerprint, crowd.said_at, crowd.life_s, crowd.level, crowd.peers,
         [list(astuple(tally)) for tally in crowd.tallies], [list(row) for row in crowd.left],
         [list(row) for row in crowd.sample]],
        identity,
    )  # fmt: skip


_READ: Newest[Crowd] = Newest(REMEMBERED)


def unpack_crowd(data: bytes, peer: PeerId) -> Crowd:
    """Summary of ``peer`` from the directory. What was verified once is remembered.

    Raises:
        BadMessage: too large, malformed, not signed by ``peer``, or holding impossible values.
    """
    if (known := _READ.get(peer, data)) is not None:
        return known
    return _READ.put(peer, data, ENVELOPE.unpack(data, peer, _checked))


def _checked(values: Any) -> Crowd:
    said = Message("summary", dict(zip((field.name for field in fields(Crowd)), values, strict=True)))
    limits = {"tallies": MAX_TALLIES, "left": MAX_TALLIES, "sample": SAMPLE + HELPERS}
    if any(len(said.get(name, list)) > limit for name, limit in limits.items()):
        raise BadMessage("summary says more than it may")
    crowd = Crowd(
        fingerprint=said.get("fingerprint", str),
        said_at=said.get("said_at", float),
        life_s=said.get("life_s", float),
        level=said.get("level", int),
        peers=said.get("peers", int),
        tallies=tuple(Tally(*row) for row in said.rows("tallies", int, str, int, int, int, float)),
        left=tuple((epoch, number) for epoch, number in said.rows("left", int, int)),
        sample=tuple((PeerId(peer), record) for peer, record in said.rows("sample", str, bytes)),
    )
    whole = [crowd.level, crowd.peers, *(n for row in crowd.left for n in row)]
    whole += [n for tally in crowd.tallies for n in (tally.epoch, tally.trainers, tally.seated, tally.samples)]
    real = [crowd.said_at, crowd.life_s, *(tally.samples_per_s for tally in crowd.tallies)]
    if min(whole) < 0 or not all(math.isfinite(value) and value >= 0 for value in real):
        raise BadMessage("summary holds impossible values")
    if not 0 < crowd.level <= MAX_LEVEL:
        raise BadMessage("summary says more than it may")
    return crowd
