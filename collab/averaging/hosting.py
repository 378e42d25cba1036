"""What a peer serves of a round: a reduction of its own, or results that it holds of a reducer that was lost."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from collab.averaging.complaints import Complaint
from collab.averaging.exchange import Holding
from collab.averaging.reduction import Result, Runs
from collab.compression.base import Buffer
from collab.errors import BadPart
from collab.types import PeerId


class Source(Protocol):
    """Where the results of a job come from: a reduction, or what a member holds of a lost one."""

    @property
    def num_parts(self) -> int:
        """How many results there are."""
        ...

    def expects(self, peer: PeerId) -> bool:
        """Whether ``peer`` has to send parts, and they are waited for."""
        ...

    def add(self, peer: PeerId, index: int, data: Buffer, runs: Runs | None = None) -> None:
        """See ``Reduction``."""
        ...

    async def result(self, index: int) -> Result:
        """See ``Reduction``."""
        ...


class Kept:
    """Implements ``Source``: hands on what another reducer had given before it was lost."""

    def __init__(self, holding: Holding) -> None:
        self._holding = holding

    @property
    def num_parts(self) -> int:
        return self._holding.job.valid

    def expects(self, peer: PeerId) -> bool:
        return False

    def add(self, peer: PeerId, index: int, data: Buffer, runs: Runs | None = None) -> None:
        raise BadPart("not_a_contributor", f"{peer} sends a part of what is reduced already")

    async def result(self, index: int) -> Result:
        return self._holding.result(index)


@dataclass(frozen=True, slots=True)
class Hosted:
    """One job in one round, as who serves it knows it."""

    source: Source
    holding: Holding
    receivers: frozenset[PeerId]
    """Members that want the result, without ourselves."""
    complain: Callable[[Complaint], None]
