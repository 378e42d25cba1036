"""A device whose memory is too small for the run's microbatch: the trainer takes less at once, and loses nothing."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from collab.errors import DeviceFull
from collab.metrics.records import EpochFinished, MicrobatchDone, Notice
from collab.tasks.base import Task
from tests.simulation.swarm import SimSwarm
from tests.simulation.test_faults import assert_equal_ends


class Small:
    """The run's task on a device where only so many samples fit; the error comes when half of the work is done."""

    def __init__(self, inner: Task, fits: int) -> None:
        self._inner, self._fits = inner, fits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def loss(self, model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        loss = self._inner.loss(model, tensors)
        if len(next(iter(tensors.values()))) > self._fits:
            loss.backward()  # type: ignore[no-untyped-call]
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return loss


@pytest.mark.parametrize("strategy", ["dedloc", "dts"])
def test_it_takes_less_at_once_and_every_sample_is_computed(tmp_path: Path, strategy: str) -> None:
    swarm = SimSwarm(tmp_path, until=6, strategy=strategy)
    swarm.add_backbone()
    small = swarm.add_trainer(microbatch_size=32, task=Small(swarm.task, fits=10))  # type: ignore[arg-type]
    other = swarm.add_trainer()
    swarm.world.run()
    assert_equal_ends(swarm, [small, other], epoch=6)
    told = [notice.text for notice in swarm.events(small, Notice) if "too many" in notice.text]
    assert len(told) == 2
    sizes = [done.samples for done in swarm.events(small, MicrobatchDone)]
    assert sizes[:4] == [8, 8, 8, 8], "what was asked for at once comes in pieces"
    own = [sample for step in swarm.events(small, EpochFinished) for sample in step.sample_ids]
    assert own[:32] == list(dict.fromkeys(own[:32]))


def test_a_device_that_not_one_sample_fits_into_is_told_so(tmp_path: Path) -> None:
    swarm = SimSwarm(tmp_path, until=6)
    swarm.add_backbone()
    swarm.add_trainer(microbatch_size=4, task=Small(swarm.task, fits=0))  # type: ignore[arg-type]
    with pytest.raises(DeviceFull, match="not one sample of this run fits") as error:
        swarm.world.run()
    assert "--device cpu" in error.value.hint
