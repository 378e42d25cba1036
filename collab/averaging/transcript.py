"""How the result of a round travelled: so its bytes can be made again, and checked against the round's record."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from collab.averaging.agreement import CommitRecord
from collab.averaging.contribution_plan import RESULT_CODECS
from collab.averaging.plan import LARGEST_PART_ELEMENTS
from collab.averaging.reduction import Result, part_edges
from collab.compression.base import Buffer, Codec, codec_by_name
from collab.errors import BadMessage
from collab.net.wire import Message
from collab.types import AnyVector

Place = tuple[int, int]
"""Of a part: which piece of the record, which part of the piece."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """What a record does not say of its round's results, and who holds them knows.

    Nobody needs to be believed about it: with another encoding, other edges or other gaps the bytes have other digests.
    For that the encodings of ``RESULT_CODECS`` must differ in length.
    """

    codec: str
    part_elements: int
    missing: Mapping[Place, tuple[int, ...]] = field(default_factory=dict)
    """Contributors, by their place in the group's order, of whom nothing is in a part."""
    kept: Mapping[Place, Buffer] = field(default_factory=dict)
    """Encodings that the mean cannot tell again, since it is less exact."""

    @property
    def kept_bytes(self) -> int:
        """Memory beside the mean."""
        return sum(memoryview(data).nbytes for data in self.kept.values())

    def parts(self, record: CommitRecord) -> Iterator[tuple[Place, int, int]]:
        """All parts of the result, in the order of the record: place, first element, element behind the last."""
        for piece, (_, start, stop) in enumerate(record.pieces):
            for part, (first, last) in enumerate(part_edges(stop - start, self.part_elements)):
                yield (piece, part), start + first, start + last

    def results(self, record: CommitRecord, mean: AnyVector) -> Iterator[Result]:
        """All results as they travelled, made again of the mean."""
        codec = self.encoding()
        for place, start, stop in self.parts(record):
            data = self.kept.get(place) or codec.encode(mean[start:stop].astype(np.float32, copy=False))
            yield Result(data, self.missing.get(place, ()))

    def encoding(self) -> Codec:
        """Of the results."""
        return codec_by_name(self.codec)

    def to_fields(self) -> dict[str, Any]:
        """As plain values for a message, without what was kept."""
        missing = [[*place, list(who)] for place, who in sorted(self.missing.items())]
        return {"codec": self.codec, "part_elements": self.part_elements, "missing": missing}

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> "Transcript":
        """From the plain values of a message.

        Raises:
            BadMessage: something is missing or malformed.
        """
        message = Message("transcript", fields)
        codec, part_elements = message.get("codec", str), message.get("part_elements", int)
        if codec not in RESULT_CODECS or not 0 < part_elements <= LARGEST_PART_ELEMENTS:
            raise BadMessage(f"results cannot have parts of {part_elements} elements as {codec!r}")
        missing: dict[Place, tuple[int, ...]] = {}
        for piece, part, who in message.rows("missing", int, int, list):
            if not all(isinstance(place, int) and not isinstance(place, bool) for place in who):
                raise BadMessage("a contributor's place is no number")
            missing[piece, part] = tuple(who)
        return cls(codec=codec, part_elements=part_elements, missing=missing)
