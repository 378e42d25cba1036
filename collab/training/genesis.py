"""The first state of a run: a freshly initialised model, made once by the organiser's backbone."""

import torch

from collab.averaging.agreement import genesis
from collab.config import Diloco, Dts, Run, VcAsgd
from collab.data.unit_samples import check_can_be_cut
from collab.errors import DataError, TaskFailed
from collab.swarm.bundle import Bundle
from collab.swarm.snapshots import Snapshot, pack
from collab.tasks.base import Task
from collab.tasks.evaluation import blaming_task
from collab.training.anchored import AnchoredReplica
from collab.training.momentum import outgoing
from collab.training.optimizers import build_optimizer
from collab.training.outer import Nesterov, OuterReplica
from collab.training.precision import Precision
from collab.training.replica import Replica
from collab.training.stepping import SteppingReplica
from collab.training.unit_replica import UnitReplica
from collab.types import Lineage


def make_genesis(bundle: Bundle, task: Task) -> Snapshot:
    """Snapshot of epoch 0: parameters drawn with the run's seed, no optimiser state yet.

    Everybody fetches these bytes, since other versions of torch may draw other numbers from the same seed.

    Raises:
        DataError: the run's units of work are more than there are samples.
    """
    if isinstance(bundle.run.strategy, VcAsgd) and (num_samples := _counted(task)) is not None:
        check_can_be_cut(num_samples, bundle.run.strategy.shards)
    replica = build_replica(bundle, task, torch.device("cpu"))
    empty = replica.snapshot()
    digest = pack(empty, fingerprint=bundle.fingerprint).manifest.digest
    lineage = Lineage(genesis(bundle.fingerprint, digest))
    return Snapshot(epoch=0, lineage=lineage, tensors=empty.tensors, scalars=empty.scalars)


def _counted(task: Task) -> int | None:
    """Samples of the task; None: this machine has none of the data, as a backbone need not."""
    try:
        with blaming_task("count its samples"):
            return task.num_samples
    except (DataError, TaskFailed):
        return None


def build_replica(bundle: Bundle, task: Task, device: torch.device) -> Replica:
    """A replica of the run's model on ``device``, initialised with the run's seed; torch's generator is left alone."""
    from collab.training.precision import best_precision

    run = bundle.run
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        model = task.build_model()
    model.to(device)
    return replica_of(run, model, build_optimizer(run.optimizer, model), device, best_precision(device))


def replica_of(
    run: Run,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    precision: Precision = Precision.FLOAT32,
) -> Replica:
    """A replica as the run's strategy needs it."""
    sent = outgoing(run.averaging.worker_momentum)
    if not isinstance(run.strategy, Dts | Diloco | VcAsgd):
        return Replica(model, optimizer, run.schedule, device=device, precision=precision, outgoing=sent)
    kinds: dict[str, type[SteppingReplica]] = {"dts": AnchoredReplica, "diloco": OuterReplica, "vc_asgd": UnitReplica}
    kind = kinds[run.strategy.name]
    stepping = kind(model, optimizer, run.schedule, device=device, precision=precision, outgoing=sent)
    stepping.max_gradient_norm = run.strategy.max_gradient_norm
    if isinstance(stepping, OuterReplica) and isinstance(run.strategy, Diloco):
        stepping.rule = Nesterov(run.strategy.outer_learning_rate, run.strategy.outer_momentum)
    if isinstance(stepping, AnchoredReplica) and isinstance(run.strategy, Dts):
        stepping.num_windows = run.strategy.windows
    return stepping
