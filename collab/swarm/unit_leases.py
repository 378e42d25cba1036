"""Leases on work units, as they travel: the scheduler's signed word that a unit is a client's."""

from dataclasses import dataclass
from typing import Any

from collab.data.work_units import Unit
from collab.errors import BadMessage
from collab.ports import Keys
from collab.swarm.envelope import Envelope
from collab.types import PeerId

UNITS_PROTOCOL = "collab/units/1"
PARAMETERS_PROTOCOL = "collab/parameters/1"
PERMIT = Envelope(name="unit lease", max_bytes=1 << 10, purpose=b"collab/unit-lease/1:")
OTHER_ERA = "one of us has not heard of a rollback"
"""Why a question is refused that names another era."""
LARGEST_NUMBER = 1 << 40
"""Of passes, shards and versions."""


@dataclass(frozen=True, slots=True)
class Permit:
    """Who may push what a unit has come to. It does not end: of several pushes for a unit the first one counts."""

    fingerprint: str
    era: str
    """Mark of the last rollback that the scheduler knew of: into which store it goes."""
    unit: Unit
    lease: str
    client: PeerId

    def packed(self, keys: Keys) -> bytes:
        """Signed by the scheduler."""
        unit = self.unit
        values = [self.fingerprint, self.era, unit.pass_number, unit.shard, self.lease, self.client]
        return PERMIT.pack(values, keys)


def unpack_permit(data: object, scheduler: PeerId) -> Permit:
    """A permit that ``scheduler`` has signed.

    Raises:
        BadMessage: it has not, or it is malformed.
    """
    return PERMIT.unpack(data, scheduler, _read)


def _read(values: Any) -> Permit:
    fingerprint, era, pass_number, shard, lease, client = values
    texts, numbers = (fingerprint, era, lease, client), (pass_number, shard)
    if not all(isinstance(text, str) and len(text) <= 128 for text in texts):
        raise BadMessage("a unit lease has something else than short texts")
    if not all(type(number) is int and 0 <= number <= LARGEST_NUMBER for number in numbers):
        raise BadMessage(f"a unit lease has the numbers {numbers}")
    return Permit(fingerprint, era, Unit(pass_number, shard), lease, PeerId(client))
