"""What bench_time_to_loss.py asks of its processes: the model, the swarm and the engine."""

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from collab.config import Run, parse_run
from collab.tasks.base import Task
from collab.tasks.registry import build_task, make_assets
from peers.places import cache_dir

if TYPE_CHECKING:
    from collections.abc import Mapping

STRATEGIES = ("dedloc", "dts", "diloco")
ENGINES = ("hivemind", "hivemind-local", *STRATEGIES)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One contestant with its settings."""

    name: str
    learning_rate: float
    target: int
    """Samples of all peers between two exchanges."""
    compression: str = "auto"
    """Of collab; hivemind has float16."""
    options: str = ""
    """More fields of the strategy, as in a run file: ``, delay: 1``."""

    @property
    def is_ours(self) -> bool:
        """Whether it is a strategy of this project."""
        return self.name in STRATEGIES


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one trainer is told."""

    engine: Engine
    index: int
    host: str
    up_mbit_per_s: float
    """hivemind is told the truth."""
    seconds: float
    """To train for."""
    batch: int
    layers: int
    width: int
    seed: int
    contact: str = ""
    """An invite, or hivemind's multiaddresses separated by spaces."""

    @classmethod
    def from_json(cls, text: str) -> "Work":
        """The reverse of ``to_json``."""
        fields = json.loads(text)
        return cls(engine=Engine(**fields.pop("engine")), **fields)

    def to_json(self) -> str:
        """For a command line."""
        return json.dumps(asdict(self))

    @property
    def run_text(self) -> str:
        """The run file; for hivemind its task and its optimiser alone count."""
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
