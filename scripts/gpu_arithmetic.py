"""What a replica does on a GPU beside the same on the processor: arithmetic, optimisers, moving; and how fast it is."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from collab import config
from collab.tasks.base import Batch
from collab.training.genesis import replica_of
from collab.training.optimizers import build_optimizer
from collab.training.precision import LossScale, Precision, best_precision
from collab.training.replica import Replica

CPU = torch.device("cpu")
STEPS, SAMPLES, LENGTH, VOCABULARY = 12, 8, 64, 512
CLOSE, HALF_CLOSE = 2e-4, 0.02
"""Of a loss: what another order of float32 sums makes after some steps, and what 16 bits do."""
STRATEGIES: dict[str, config.Strategy] = {
    "dedloc": config.Dedloc(name="dedloc"),
    "dts": config.Dts(name="dts"),
    "diloco": config.Diloco(name="diloco"),
    "vc_asgd": config.VcAsgd(name="vc_asgd"),
}
OPTIMIZERS = ("sgd", "adamw", "lamb", "adamw8bit")
TIMED_S = 2.0
Figures = dict[str, Any]


def gpt2(width: int, layers: int, vocabulary: int = VOCABULARY, length: int = LENGTH) -> torch.nn.Module:
    """A language model with torch's generator as it stands; without dropout, so that devices can be compared."""
    import transformers

    drawn = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    settings = transformers.GPT2Config(
        n_embd=width, n_layer=layers, n_head=max(width // 64, 1), vocab_size=vocabulary, n_positions=length,
        bos_token_id=0, eos_token_id=0, **drawn
    )
    model: torch.nn.Module = transformers.AutoModelForCausalLM.from_config(settings)
    return model


def next_token_loss(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """As a run's language model computes it."""
    ids = tensors["input_ids"]
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
    return functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def batches(count: int, samples: int, length: int = LENGTH, vocabulary: int = VOCABULARY) -> list[Batch]:
    """Text in which each token tells the next: something can be learnt from it."""
    made = []
    for number in range(count):
        starts = (torch.arange(samples) * 37 + number * 101) % vocabulary
        ids = (starts[:, None] + 3 * torch.arange(length)[None, :]) % vocabulary
        first = number * samples
        made.append(Batch(sample_ids=tuple(range(first, first + samples)), tensors={"input_ids": ids}))
    return made


def parsed(section: str = "microbatch_size: 8") -> config.Run:
    """A run file of which only the optimiser is used."""
    return config.parse_run(f"{{run_id: gpu, task: {{name: image_classification}}, {section}}}", origin="this program")


def small_replica(
    device: torch.device, precision: Precision, optimizer: str = "adamw", strategy: str = "dedloc"
) -> Replica:
    """The same parameters on each device."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = gpt2(width=64, layers=2)
    rate = 0.1 if optimizer == "sgd" else 0.003
    run = parsed(f"optimizer: {{name: {optimizer}, learning_rate: {rate}}}")
    run = run.model_copy(update={"strategy": STRATEGIES[strategy]})
    model.to(device)
    return replica_of(run, model, build_optimizer(run.optimizer, model), device, precision)


def losses_of(replica: Replica, steps: int = STEPS) -> list[float]:
    """Of so many steps, each of one microbatch."""
    found = []
    for batch in batches(steps, SAMPLES):
        report = replica.accumulate(batch, next_token_loss)
        if report.skipped:
            raise RuntimeError(f"a microbatch was thrown away: {report.skipped}")
        found.append(report.loss)
        replica.step(replica.hand_over().mean, replica.lineage)
        replica.settle(((0, replica.num_elements),))
    return found


def farthest(ours: list[float], theirs: list[float]) -> float:
    """The largest difference, as a share of the loss."""
    return max(abs(one - other) / other for one, other in zip(ours, theirs, strict=True))


def arithmetic(device: torch.device) -> Figures:
    """Losses in each precision beside those of the processor, and what becomes of a loss scale that is too large."""
    plain = losses_of(small_replica(CPU, Precision.FLOAT32))
    apart = {kind.value: farthest(losses_of(small_replica(device, kind)), plain) for kind in Precision}
    replica = small_replica(device, Precision.FLOAT16)
    scale = replica._backward.scale or LossScale()
    scale.value *= 4
    overflowing = losses_of(replica)
    return {
        "holds": apart["float32"] < CLOSE
        and max(apart["bfloat16"], apart["float16"]) < HALF_CLOSE
        and farthest(overflowing, plain) < HALF_CLOSE
        and plain[-1] < plain[0],
        "chosen": best_precision(device).value,
        "loss": [round(plain[0], 4), round(plain[-1], 4)],
        "apart": {kind: round(share, 6) for kind, share in apart.items()},
        "scale_after_one_too_large": scale.value,
    }


def optimisers(device: torch.device) -> Figures:
    """Steps of each optimiser on both devices: peers of one run have both."""
    apart: dict[str, float] = {}
    for name in OPTIMIZERS:
        ours = losses_of(small_replica(device, Precision.FLOAT32, name))
        theirs = losses_of(small_replica(CPU, Precision.FLOAT32, name))
        apart[name] = farthest(ours, theirs)
    # Eight bits round each device's own way.
    limits = {name: HALF_CLOSE if name == "adamw8bit" else CLOSE for name in OPTIMIZERS}
    return {
        "holds": all(apart[name] < limits[name] for name in OPTIMIZERS),
        "apart": {name: round(share, 6) for name, share in apart.items()},
    }


def moving(device: torch.device) -> Figures:
    """A replica of each strategy leaves the device with work in it: whether anything of it is left there."""
    left: dict[str, int] = {}
    for strategy in STRATEGIES:
        replica = small_replica(device, Precision.FLOAT32, strategy=strategy)
        replica.accumulate(batches(1, SAMPLES)[0], next_token_loss)
        replica.move_to(CPU)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            left[strategy] = torch.cuda.memory_allocated(device)
        report = replica.accumulate(batches(2, SAMPLES)[1], next_token_loss)
        if report.skipped or replica.samples != 2 * SAMPLES:
            raise RuntimeError(f"{strategy}: what was accumulated did not come along")
        del replica
    # What CUDA's libraries keep is no replica's, and the same for each.
    return {"holds": max(left.values(), default=0) <= min(left.values(), default=0) + 1e6, "bytes_left": left}


def speeds(device: torch.device, width: int, layers: int, sizes: tuple[int, ...]) -> Figures:
    """Samples a second of forward and backward: of a loop that does nothing else, and of a replica."""
    found: dict[str, dict[str, float]] = {}
    for samples in sizes:
        plain, ours = _plain_rate(device, width, layers, samples), _replica_rate(device, width, layers, samples)
        found[str(samples)] = {"plain": round(plain, 1), "replica": round(ours, 1), "share": round(ours / plain, 3)}
    return {"holds": True, "samples_per_s": found, "step_s": round(_step_s(device, width, layers), 4)}


def _timed(step: Callable[[], object], device: torch.device, samples: int) -> float:
    for _ in range(3):
        step()
    began_s, done = time.perf_counter(), 0
    while time.perf_counter() - began_s < TIMED_S:
        step()
        done += samples
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return done / (time.perf_counter() - began_s)


def _plain_rate(device: torch.device, width: int, layers: int, samples: int) -> float:
    model = gpt2(width, layers, 2048, 256).to(device)
    ids = batches(1, samples, 256, 2048)[0].tensors["input_ids"].to(device)
    precision = best_precision(device)

    def step() -> float:
        with precision.autocast(device):
            loss = next_token_loss(model, {"input_ids": ids})
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())  # as a loop does that looks at its loss

    model.train()
    return _timed(step, device, samples)


def _step_s(device: torch.device, width: int, layers: int) -> float:
    """Of the optimiser with a gradient from the network."""
    replica = _large_replica(device, width, layers)
    gradient = np.full(replica.num_elements, 1e-3, np.float32)
    return 1 / _timed(lambda: replica.step(gradient, replica.lineage), device, 1)


def _large_replica(device: torch.device, width: int, layers: int) -> Replica:
    model, run = gpt2(width, layers, 2048, 256).to(device), parsed()
    return replica_of(run, model, build_optimizer(run.optimizer, model), device, best_precision(device))


def _replica_rate(device: torch.device, width: int, layers: int, samples: int) -> float:
    replica = _large_replica(device, width, layers)
    batch = batches(1, samples, 256, 2048)[0]
    rate = _timed(lambda: replica.accumulate(batch, next_token_loss), device, samples)
    if math.isnan(rate) or not replica.samples:
        raise RuntimeError("nothing was accumulated")
    return rate
