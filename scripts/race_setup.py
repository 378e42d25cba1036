"""What bench_time_to_loss.py asks of its processes: the model, the swarm and the engine."""

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from collab.config import Run, parse_run
from collab.tasks.base import Task
from collab.tasks.registry import build_task, make_assets
from peers.places import cache_dir

if TYPE_CHECKING:
    from collections.abc import Mapping

STRATEGIES = ("dedloc", "dts", "diloco")
HIVEMIND = ("hivemind", "hivemind-delay", "hivemind-local")
ENGINES = (*HIVEMIND, "torchft", *STRATEGIES)
RUN_TEXT = """\
run_id: bench-race
seed: {seed}
microbatch_size: {batch}
task:
  name: causal_lm
  model:
    {{model_type: gpt2, n_layer: {layers}, n_head: 4, n_embd: {width}, initializer_range: 0.1,
      attn_pdrop: 0.0, embd_pdrop: 0.0, resid_pdrop: 0.0}}
  sequence_length: 64
  vocab_size: 1024
  data: {{source: builtin, max_megabytes: 2}}
  eval_samples: 64
optimizer: {{name: adamw, learning_rate: {rate}, weight_decay: 0.01, betas: [0.9, 0.95]}}
strategy: {{name: {strategy}, target_batch_size: {target}, max_gradient_norm: 1.0{options}}}
averaging: {{compression: {compression}, reduction: mean}}
checkpoints: {{every_epochs: 1000000}}
"""


def not_installed() -> list[str]:
    """Engines whose library is not here: torchft is nothing that this project needs otherwise."""
    return [] if find_spec("torchft") else ["torchft"]


class Peer(Protocol):
    """Whatever takes steps with the gradients that stand in a model."""

    @property
    def epoch(self) -> int: ...

    def step(self, loss: float) -> None: ...

    def leave(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One contestant with its settings."""

    name: str
    learning_rate: float
    target: int
    """Samples of all peers between two exchanges."""
    compression: str = "auto"
    """Of collab; hivemind has float16, torchft float32."""
    delay: int = 0
    """1: exchanges go on beside the next microbatches."""
    outer_learning_rate: float = 0.7
    outer_momentum: float = 0.9
    """Of diloco and torchft."""

    @property
    def is_ours(self) -> bool:
        """Whether it is a strategy of this project."""
        return self.name in STRATEGIES

    @property
    def options(self) -> str:
        """More fields of its strategy in a run file."""
        outer = f", outer_learning_rate: {self.outer_learning_rate}, outer_momentum: {self.outer_momentum}"
        return {"dedloc": f", delay: {self.delay}", "diloco": f", delay: {self.delay}{outer}"}.get(self.name, "")


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one trainer is told."""

    engine: Engine
    index: int
    trainers: int
    """That begin together."""
    host: str
    up_mbit_per_s: float
    """hivemind is told the truth."""
    seconds: float
    """To train for."""
    pace_ms: float
    """What a microbatch takes, whatever this machine needs for it."""
    batch: int
    layers: int
    width: int
    seed: int
    contact: str = ""
    """An invite, hivemind's multiaddresses separated by spaces, or the URL of torchft's lighthouse."""

    @classmethod
    def from_json(cls, text: str) -> "Work":
        """The reverse of ``to_json``."""
        fields = json.loads(text)
        return cls(engine=Engine(**fields.pop("engine")), **fields)

    def to_json(self) -> str:
        """For a command line."""
        return json.dumps(asdict(self))

    @property
    def microbatches_between_exchanges(self) -> int:
        """Of one trainer, when all are here and equally fast."""
        return max(1, round(self.engine.target / self.trainers / self.batch))

    @property
    def run_text(self) -> str:
        """The run file; for others than this project's strategies its task and its optimiser alone count."""
        engine = self.engine
        return RUN_TEXT.format(
            seed=self.seed,
            batch=self.batch,
            layers=self.layers,
            width=self.width,
            rate=engine.learning_rate,
            strategy=engine.name if engine.is_ours else "dedloc",
            target=engine.target,
            options=engine.options,
            compression=engine.compression,
        )

    @cached_property
    def run(self) -> Run:
        """Parsed."""
        return parse_run(self.run_text, origin="the benchmark")

    def task(self) -> Task:
        """The same text, tokens and first model for every engine."""
        assets: Mapping[str, bytes] = make_assets(self.run, base_dir=Path(), cache_dir=cache_dir())
        return build_task(self.run, assets=assets, cache_dir=cache_dir(), peer_id="")
