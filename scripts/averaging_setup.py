"""What a benchmark of averaging is asked to do, and how fast its links would allow it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from averaging_gauges import NO_COMPANY, Company
from netlab_links import Link

BYTES_PER_ELEMENT = 4
MB = 1e6
CODEC_BYTES = {"none": 4.0, "half": 2.0}
"""An element on the wire, by policies that need not see a link; ``auto`` differs from sender to sender."""

DTYPE_BYTES = {"float32": 4, "float16": 2}
"""An element in a peer's memory."""


class Part(StrEnum):
    """What a peer does in the rounds of a benchmark."""

    TRAINER = "trainer"
    CLIENT = "client"
    """A trainer that cannot be dialled, and reduces nothing."""
    AUXILIARY = "auxiliary"
    """Reduces for others, without a vector of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swarm:
    """Peers and their links."""

    parts: tuple[Part, ...]
    links: tuple[Link, ...] = ()
    """One for each peer; none at all: everybody on loopback, without limits."""

    @property
    def trainers(self) -> tuple[int, ...]:
        """Those with a vector."""
        return tuple(index for index, part in enumerate(self.parts) if part is not Part.AUXILIARY)


PRESETS = {
    "hom25": "25,25,25,25,25,25,25,25",
    "het": "200,200,20,25,30,35,40,50",
    "het_rtt": "200@5,200@5,20@20,25@20,30@20,35@20,40@20,50@20",
    "home_only": "10/100,12/100,14/100,16/100,18/100,20/100",
    "home_aux": "200:aux,200:aux,10/100,12/100,14/100,16/100,18/100,20/100",
    "home_client": "200:aux,200:aux," + ",".join(f"{up}/100:client" for up in (10, 12, 14, 16, 18, 20)),
    "dedloc_a": ",".join(["1000"] * 8),
    "dedloc_b": ",".join(["200"] * 16),
    "dedloc_c": ",".join(["1000"] * 8 + ["200"] * 16),
    "dedloc_d": ",".join(["200"] * 16 + ["2500"]),
}
"""Swarms by name, as ``parse_swarm`` reads them; DeDLOC's table wants a ``--scale`` below 1 on small machines."""
MARKS = {"": Part.TRAINER, "aux": Part.AUXILIARY, "client": Part.CLIENT}


def parse_swarm(text: str, auxiliary: Sequence[int] = (), clients: Sequence[int] = (), scale: float = 1.0) -> Swarm:
    """Read ``200,20/100@15:client,...``, a name of ``PRESETS``, or ``loopback:N``.

    Raises:
        ValueError: it is none of these, or a peer is named that is not there.
    """
    if text.startswith("loopback:"):
        parts, links = [Part.TRAINER] * int(text.removeprefix("loopback:")), list[Link]()
    else:
        items = [item.partition(":") for item in PRESETS.get(text, text).split(",")]
        parts, links = [MARKS[mark] for _, _, mark in items], [Link.parse(rate).scaled(scale) for rate, _, _ in items]
    for part, indices in ((Part.AUXILIARY, auxiliary), (Part.CLIENT, clients)):
        for index in indices:
            if not 0 <= index < len(parts):
                raise ValueError(f"there is no peer {index} among {len(parts)}")
            parts[index] = part
    swarm = Swarm(parts=tuple(parts), links=tuple(links))
    if len(swarm.trainers) < 1 or len(parts) < 2 or all(part is Part.CLIENT for part in parts):
        raise ValueError("a round needs two peers, a trainer among them, and somebody who can be dialled")
    return swarm


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What travels in one round, in bytes."""

    vectors: Mapping[int, float]
    """Each sender's encoded vector, by index."""
    result: float
    """The encoded result."""

    @classmethod
    def of(cls, swarm: Swarm, num_elements: int, bytes_per_element: float) -> "Sizes":
        """The same encoding for everybody."""
        size = num_elements * bytes_per_element
        return cls(vectors=dict.fromkeys(swarm.trainers, size), result=size)


@dataclass(frozen=True, slots=True)
class Load:
    """Seconds that one direction of a peer's link is busy: ``fixed_s + share x per_share_s``."""

    peer: int
    fixed_s: float
    per_share_s: float


def loads(swarm: Swarm, sizes: Sizes) -> list[Load]:
    """Up and down of every peer, by its own share.

    A reducer sends its span to every receiver but itself, and receives everybody's span but its own. Source: the
    plan's inequalities in docs/architecture.md; DeDLOC (Diskin et al., 2021), section 3.2.
    """
    receivers, total = len(swarm.trainers), sum(sizes.vectors.values())
    found = []
    for index, link in enumerate(swarm.links):
        up, down = (mbit * 1e6 / 8 for mbit in (link.up_mbit_per_s, link.down_mbit_per_s))
        receives = index in swarm.trainers
        own, result = sizes.vectors.get(index, 0.0), sizes.result if receives else 0.0
        found.append(Load(index, own / up, ((receivers - receives) * sizes.result - own) / up))
        found.append(Load(index, result / down, (total - own - result) / down))
    return found


def optimum_s(swarm: Swarm, sizes: Sizes) -> float:
    """Shortest possible round when every link is full duplex and never idle: a linear program over the shares."""
    import numpy as np
    from scipy.optimize import linprog

    rows = loads(swarm, sizes)
    num_peers = len(swarm.parts)
    coefficients = np.zeros((len(rows), num_peers + 1))
    for row, load in zip(coefficients, rows, strict=True):
        row[load.peer], row[-1] = load.per_share_s, -1.0
    solution = linprog(
        [0.0] * num_peers + [1.0],
        A_ub=coefficients,
        b_ub=[-load.fixed_s for load in rows],
        A_eq=[[1.0] * num_peers + [0.0]],
        b_eq=[1.0],
        bounds=[(0.0, 0.0 if part is Part.CLIENT else 1.0) for part in swarm.parts] + [(0.0, None)],
        method="highs",
    )
    if not solution.success:
        raise ValueError(f"no plan fits these links: {solution.message}")
    return float(solution.fun)


def equal_shares_s(swarm: Swarm, sizes: Sizes) -> float:
    """The same when everybody who can be dialled reduces as much: what measuring links is compared with."""
    share = 1.0 / sum(part is not Part.CLIENT for part in swarm.parts)
    return max(
        load.fixed_s + load.per_share_s * (0.0 if swarm.parts[load.peer] is Part.CLIENT else share)
        for load in loads(swarm, sizes)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What every engine is asked to do."""

    swarm: Swarm
    num_elements: int
    codec: str
    seed: int
    limit_s: float
    """A round that takes longer has failed."""
    niceness: int
    dtype: str = "float32"
    """Of the vectors."""
    company: Company = NO_COMPANY
    """What measures beside the rounds."""

    @property
    def vector_bytes(self) -> int:
        """What a trainer's vector takes in its memory."""
        return self.num_elements * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What one peer is told."""

    engine: str
    index: int
    parts: tuple[Part, ...]
    num_elements: int
    codec: str
    seed: int
    host: str
    interface: str
    true_mbit_per_s: float
    """The slower direction of the peer's link, for engines that want to be told."""
    contact: str
    """Of the first peer, for engines whose others join through it; empty for the first."""
    port: int
    """Free at the first peer's host."""
    limit_s: float
    """A round that takes longer has failed."""
    dtype: str = "float32"
    """Of the vectors."""
    heartbeats_to: int | None = None
    """Whom to send heartbeats."""
    computes: bool = False
    """Whether a thread computes as a trainer's does."""
    core: int | None = None
    """That thread's own; None: it shares those of its process."""

    @property
    def part(self) -> Part:
        """Our own."""
        return self.parts[self.index]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Assignment":
        fields = json.loads(text)
        return cls(parts=tuple(Part(part) for part in fields.pop("parts")), **fields)
