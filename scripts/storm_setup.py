"""What a storm is played with: sizes, paces, links and the run file."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from netlab_links import Link
from storm_schedule import Forecast

RUN_FILE = """\
run_id: storm
seed: {seed}
microbatch_size: {microbatch}
task: {{name: image_classification, hidden_sizes: [{hidden}]}}
optimizer: {{name: sgd, learning_rate: 0.05}}
strategy: {{name: dedloc, target_batch_size: {target}}}
averaging: {{compression: {compression}}}
checkpoints: {{every_epochs: 10, keep: 2}}
"""
NUM_PIXELS = 64
NUM_CLASSES = 10
CALM_LIMIT_S = 90.0
"""After the last fault is over: for everybody to be in one step again."""
CALM_STEP_S = 5.0

Tell = Callable[[str], None]
"""Says how far it is, to a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One storm and the swarm that it befalls."""

    forecast: Forecast
    warm_up_s: float
    """From the first step of everybody to the fault-free measurement: rates are learnt, plans settle."""
    baseline_s: float
    pace_s: float
    """One microbatch."""
    microbatch: int
    epoch_s: float
    """How long the swarm computes for one step when all is well."""
    hidden: tuple[int, ...]
    """Sizes of the model's layers, which make the vector's length."""
    link: Link
    compression: str
    keeps_identity: bool = False
    """Whether who replaces a killed volunteer has its key. By default a stranger comes, since that is the harder case:
    the dead peer's record stays in the directory until it is stale, and nobody says that it is void."""

    @property
    def peers(self) -> int:
        """Trainers."""
        return self.forecast.peers

    @property
    def backbone(self) -> int:
        """Its slot."""
        return self.forecast.peers

    @property
    def target_batch(self) -> int:
        """Samples of one step."""
        return max(1, round(self.peers * self.microbatch / self.pace_s * self.epoch_s))

    @property
    def vector_bytes(self) -> int:
        """Of one gradient in float32."""
        sizes = (NUM_PIXELS, *self.hidden, NUM_CLASSES)
        return 4 * sum((wide + 1) * narrow for wide, narrow in pairwise(sizes))

    def run_file(self) -> str:
        """Its text."""
        return RUN_FILE.format(
            seed=self.forecast.seed,
            microbatch=self.microbatch,
            hidden=", ".join(str(size) for size in self.hidden),
            target=self.target_batch,
            compression=self.compression,
        )
