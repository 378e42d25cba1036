"""Snapshots that are taken while the replica takes step after step: all of one epoch, or there is a defect."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch

from collab import config
from collab.compute import ThreadCompute
from collab.swarm.snapshots import unpack
from collab.training.replica import Replica
from collab.training.state_sync import StateSync
from collab.types import Lineage, PeerId
from tests.fakes import FakeNetwork, make_ports
from tests.training.toy import Plain, replica

STEPS, WIDTH = 300, 4000


def counting_replica() -> Replica:
    """Every parameter is the number of its steps."""
    model = Plain(WIDTH)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    ours = replica(model, config.Optimizer(name="sgd", learning_rate=1.0))
    ours.lineage = Lineage("0")
    return ours


def test_a_donor_in_the_middle_of_its_steps_never_gives_a_torn_state() -> None:
    async def main() -> set[int]:
        async with FakeNetwork() as network:
            compute, ours = ThreadCompute(), counting_replica()
            ports = replace(make_ports(network.join(PeerId("donor"))), compute=compute)
            none = cast(Any, None)
            sync = StateSync(ports, ours, none, none, cast(Any, SimpleNamespace(fingerprint="f")))
            gradient = np.full(ours.layout.num_elements, -1.0, np.float32)
            epochs = set[int]()

            async def train() -> None:
                for _ in range(STEPS):
                    await compute.run(lambda: ours.step(gradient, Lineage(str(ours.epoch + 1))))

            training = asyncio.create_task(train())
            while not training.done():
                packed = await sync.provide(None)
                assert packed is not None
                snapshot = unpack(packed)
                assert snapshot.lineage == str(snapshot.epoch)
                for name, tensor in snapshot.tensors.items():
                    assert set(np.unique(tensor)) == {float(snapshot.epoch)}, name
                epochs.add(snapshot.epoch)
            await training
            compute.close()
            return epochs

    epochs = asyncio.run(main())
    assert len(epochs) > 10, "it was asked in the middle of them"
