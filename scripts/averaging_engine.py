"""What a contestant of the averaging benchmark is: one peer, in a process of its own, without anybody's model."""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from averaging_vectors import AnyFloats


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One peer's part in one round."""

    vector: AnyFloats | None
    """None: reduce for others."""
    weight: float
    epoch: int
    """Rounds that the swarm has committed."""
    lineage: str
    """Where its history stands; engines without one leave it as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a round ended for one peer."""

    mean: AnyFloats | None
    """None: there is none, or it is not for us."""
    epoch: int
    lineage: str
    is_committed: bool
    contributors: dict[int, float]
    """Weights of the peers in the mean; empty when the engine cannot say: then it should be everybody's."""
    gaps: tuple[tuple[int, int, int], ...] = ()
    """Contributors of whom a stretch is missing: index, first element, element behind the last."""
    vector_bytes: float = 0.0
    """Our encoded vector."""
    result_bytes: float = 0.0
    """The encoded result."""
    reason: str = ""
    """Why there is no mean."""


class Engine(Protocol):
    """One peer of a swarm. Its calls block, and come from one thread."""

    contact: str
    """For others to find it."""

    def connect(self, contacts: Sequence[str]) -> None:
        """Get to know everybody, in order; all of them are up."""
        ...

    def average(self, turn: Turn) -> Result: ...

    def take_payload_bytes(self) -> int:
        """Encoded elements sent to others since the last call."""
        ...

    def leave(self) -> None: ...


class Voice:
    """Says what happens to the program that measures, a JSON line each; also from processes that an engine forked."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def tell(self, kind: str, **fields: object) -> None:
        """Lines are shorter than a pipe's atomic write, so that nobody's end up inside each other."""
        line = json.dumps({"kind": kind, "at_s": time.monotonic(), **fields})
        os.write(self._descriptor, (line + "\n").encode())
