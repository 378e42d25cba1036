"""What bench_world.py asks of its processes: sites, links and work."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from netlab import Lab
from netlab_links import Link, parse_round_trips

WITHIN_SITE_MS = 1.0
"""Round trip between a trainer and a backbone of one site."""
SITES_FILE = Path(__file__).with_name("sites_four.json")


@dataclass(frozen=True, slots=True)
class Sites:
    """Where trainers are, one at each site."""

    names: tuple[str, ...]
    round_trips_ms: dict[tuple[int, int], float]
    """By sites."""
    mbit_per_s: float
    """Of each, both ways."""
    backbone: int
    """The site that the backbone is at, too."""

    @classmethod
    def read(cls, path: Path) -> "Sites":
        """From a JSON file: ``{"sites": [NAME, ...], "round_trips_ms": {"0-1": MS, ...}, "mbit_per_s": RATE,
        "backbone": NAME}``.

        Raises:
            ValueError: it is written otherwise.
        """
        try:
            told = json.loads(path.read_text())
            names = tuple(told["sites"])
            pairs = ",".join(f"{pair}:{ms}" for pair, ms in told["round_trips_ms"].items())
            sites = cls(
                names, parse_round_trips(pairs, len(names)), float(told["mbit_per_s"]), names.index(told["backbone"])
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path}: {error!r}; see sites_four.json beside this program") from error
        if len(sites.round_trips_ms) != len(names) * (len(names) - 1) // 2 or sites.mbit_per_s <= 0:
            raise ValueError(f"{path}: each pair of sites needs a round trip, and links a rate above zero")
        return sites

    def lab(self) -> Lab:
        """Peer 0 is the backbone, peer i + 1 the trainer of site i."""
        trips = {(low + 1, high + 1): ms for (low, high), ms in self.round_trips_ms.items()}
        for site in range(len(self.names)):
            pair = min(site, self.backbone), max(site, self.backbone)
            trips[0, site + 1] = WITHIN_SITE_MS if site == self.backbone else self.round_trips_ms[pair]
        link = Link(up_mbit_per_s=self.mbit_per_s, down_mbit_per_s=self.mbit_per_s)
        return Lab([link] * (len(self.names) + 1), trips)

    def told(self) -> dict[str, Any]:
        """For the report."""
        trips = {f"{self.names[one]}-{self.names[other]}": ms for (one, other), ms in self.round_trips_ms.items()}
        return {"sites": self.names, "round_trips_ms": trips, "mbit_per_s": self.mbit_per_s}


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one trainer is told."""

    strategy: str
    """``alone``: no swarm."""
    index: int
    trainers: int
    step_ms: float
    """One microbatch and the step that it leads to, as if a machine took so long."""
    batch: int
    hidden: int
    seconds: float
    """To measure for, after the first global steps."""
    steps: int
    """To take in all, when above zero; then the loss counts, and not the time."""
    is_skewed: bool
    """Whether each trainer has labels of its own only."""
    seed: int
    windows: int = 1
    """That one round averages, with ``dts``."""
    invite: str = ""

    @classmethod
    def from_json(cls, text: str) -> "Work":
        """The reverse of ``to_json``."""
        return cls(**json.loads(text))

    def to_json(self) -> str:
        """For a command line."""
        return json.dumps(asdict(self))

    def run_text(self, *, learning_rate: float, delay: int | None) -> str:
        """The swarm's run file; the target batch is one microbatch of each trainer."""
        late = ""
        if self.strategy == "dts":
            late = f", delay: {'null' if delay is None else delay}, windows: {self.windows}"
        return f"""\
run_id: bench-world
seed: {self.seed}
task: {{name: image_classification, hidden_sizes: [{self.hidden}]}}
optimizer: {{name: sgd, learning_rate: {learning_rate}}}
strategy: {{name: {self.strategy}, target_batch_size: {self.batch * self.trainers}, max_gradient_norm: null{late}}}
averaging: {{compression: exact, reduction: mean}}
checkpoints: {{every_epochs: 1000000}}
"""


def vector_bytes(hidden: int) -> int:
    """Of the model's parameters, as float32."""
    return 4 * (64 * hidden + hidden + 10 * hidden + 10)


def mean(values: Sequence[float]) -> float:
    """Of at least one."""
    return sum(values) / len(values)
