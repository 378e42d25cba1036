"""What peers tell each other through the directory: signed, bounded, expiring."""

import math
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from functools import cache, partial
from typing import Any, get_type_hints

from collab.averaging.claims import MOST_CLAIMED
from collab.errors import BadMessage
from collab.newest import Newest
from collab.swarm.duties import Duty
from collab.swarm.envelope import Envelope
from collab.swarm.identity import Identity
from collab.types import Lineage, PeerId, Reachability, Role

MAX_RECORD_BYTES = 2048
"""A record of ours takes about 300 bytes, with a pass 550; the rest is room for names."""
LONGEST_LIFE_S = 120.0
"""For which a peer may ask that its record is believed."""
MAX_NAME_CHARACTERS = 40
MAX_VERSION_CHARACTERS = 40
MAX_GPU_CHARACTERS = 40
MAX_DATA_CHARACTERS = 64
MAX_WITHOUT_CHARACTERS = 200
MAX_PASS = 1 << 31
PEERS_REMEMBERED = 4096
"""Of whose newest records what was read is kept."""
ENVELOPE = Envelope(name="record", max_bytes=MAX_RECORD_BYTES, has_numbered_fields=True)
"""Without a purpose: a map of numbers is signed as nothing else."""


class PeerState(StrEnum):
    """What a peer is busy with."""

    SYNCING = "syncing"
    """Fetching the swarm's state; not part of any quorum."""
    TRAINING = "training"
    SERVING = "serving"
    """Backbone and auxiliary peers."""
    LEAVING = "leaving"
    """Takes no part any more, but has voted, or may have, in a round of which it does not know what became."""
    LEFT = "left"
    """Said goodbye: it will vote no more, and no vote of its is open. The record only outlives it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRecord:
    """One peer's word about itself. Nothing in it is proven but who said it."""

    peer: PeerId
    fingerprint: str
    name: str
    role: Role
    state: PeerState
    said_at: float
    """Swarm time."""
    can_be_dialled: bool
    epoch: int = 0
    """Global steps taken; of one that has left, the first of which it has promised nothing."""
    lineage: Lineage = Lineage("")
    samples: int = 0
    """Accumulated towards the next step."""
    samples_per_s: float = 0.0
    microbatch_s: float = 0.0
    """Seconds of one microbatch, recently."""
    loss: float = math.nan
    """Mean over the samples of the peer's last finished epoch; NaN before the first."""
    total_samples: int = 0
    """Committed by this peer since it joined."""
    epochs_contributed: int = 0
    checkpoint_epoch: int = -1
    """Newest checkpoint on a backbone's disk; -1: none."""
    eval_epoch: int = -1
    """Epoch of ``eval_loss``; -1: none yet."""
    eval_loss: float = math.nan
    has_seat: bool = True
    """Whether it may vote about what follows its history. Not who was in that round in an earlier life: it may have
    voted since, and has forgotten."""
    orders: int = 0
    """Of the organiser's, that it knows."""
    era: str = ""
    """Mark of the rollback that its state comes from; empty: there was none."""
    version: str = ""
    """Of its package."""
    credential: bytes = b""
    """Its pass; empty: it was not invited by name."""
    data: str = ""
    """Name of the data whose blocks this peer shares with others: how much it is, and its digest; empty: none."""
    data_pass: int = 0
    """The pass over that data which it is in."""
    reach: Reachability = Reachability.DIRECT
    """How it says that others get to it."""
    life_s: float = 15.0
    """For how long this is believed; in a large swarm everybody speaks more rarely."""
    eval_accuracy: float = math.nan
    """Share of the held-out samples got right, as ``eval_loss``; NaN: nobody says."""
    wants_credit: bool = False
    """Whether its owner agrees that its name is published with the model."""
    gpu: str = ""
    """What a trainer computes on, as the driver calls it; empty: the CPU."""
    period: float = 0.0
    """Own steps in a window whose steps are averaged beside the next ones, as it came out; 0: there are none yet."""
    delay: float = 0.0
    """Own steps from the end of a window until its mean is here."""
    without: str = ""
    """Duties of a backbone that are switched off, by name, with commas between them."""
    life: int = 0
    """Mark of a trainer's life, to which ``total_samples`` belongs: milliseconds of swarm time when it began, as far as
    the peer knew the time then. 0: it does not say. New fields go below."""

    def does(self, duty: Duty) -> bool:
        """Whether a backbone does this for the run, as far as it says. A name that we do not know says nothing."""
        return duty not in self.without.split(",")


def pack_record(record: PeerRecord, identity: Identity) -> bytes:
    """Signed bytes of ``record``: fields by their number, and only what differs from what everybody assumes."""
    values = ((number, field, getattr(record, field.name)) for number, field in enumerate(fields(record)))
    told = {number: value for number, field, value in values if number and not _is_assumed(value, field.default)}
    return ENVELOPE.pack(told, identity)


_READ: Newest[PeerRecord] = Newest(PEERS_REMEMBERED)


def unpack_record(data: bytes, peer: PeerId) -> PeerRecord:
    """Record of ``peer`` from the directory.

    Everybody's records are read every second, and most are as they were then: what was verified once is remembered.

    Raises:
        BadMessage: too large, malformed, not signed by ``peer``, or holding impossible values.
    """
    if (known := _READ.get(peer, data)) is not None:
        return known
    return _READ.put(peer, data, ENVELOPE.unpack(data, peer, partial(_checked, peer=peer)))


def _is_assumed(value: object, default: object) -> bool:
    return value == default or (value != value and default != default)  # NaN is not equal to itself


@cache
def _kinds() -> dict[str, Any]:
    return get_type_hints(PeerRecord)


def _checked(values: Any, peer: PeerId) -> PeerRecord:
    if not isinstance(values, dict):
        raise BadMessage(f"record of a {type(values).__name__}")
    hints = _kinds()
    converted: dict[str, Any] = {"peer": peer}
    for number, field in enumerate(fields(PeerRecord)):
        if field.name == "peer" or (number not in values and field.default is not MISSING):
            continue  # what a newer version says beyond this is not heard
        value, kind = values[number], hints[field.name]
        kind = getattr(kind, "__supertype__", kind)
        if kind is float and type(value) is int:
            value = float(value)
        if issubclass(kind, StrEnum):
            value = kind(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise BadMessage(f"record field {field.name} should be {kind.__name__}, got {type(value).__name__}")
        converted[field.name] = value
    record = PeerRecord(**converted)
    counts = (record.samples, record.total_samples, record.epochs_contributed, record.orders, record.life)
    speeds = (record.samples_per_s, record.microbatch_s, record.said_at, record.life_s, record.period, record.delay)
    is_sound = all(0 <= figure <= MOST_CLAIMED for figure in (record.epoch, record.data_pass, *counts, *speeds))
    is_sound &= max(record.checkpoint_epoch, record.eval_epoch) <= MOST_CLAIMED
    if not is_sound or record.life_s > LONGEST_LIFE_S:
        raise BadMessage("record holds impossible values")
    if len(record.data) > MAX_DATA_CHARACTERS or record.data_pass > MAX_PASS:
        raise BadMessage("record is of data that cannot be")
    if len(record.name) > MAX_NAME_CHARACTERS:
        raise BadMessage(f"name of {len(record.name)} characters is over the limit of {MAX_NAME_CHARACTERS}")
    if len(record.version) > MAX_VERSION_CHARACTERS:
        raise BadMessage(f"version of {len(record.version)} characters is over the limit of {MAX_VERSION_CHARACTERS}")
    if len(record.without) > MAX_WITHOUT_CHARACTERS:
        raise BadMessage(f"{len(record.without)} characters of duties are over the limit of {MAX_WITHOUT_CHARACTERS}")
    if len(record.gpu) > MAX_GPU_CHARACTERS:
        raise BadMessage(f"gpu of {len(record.gpu)} characters is over the limit of {MAX_GPU_CHARACTERS}")
    return record
