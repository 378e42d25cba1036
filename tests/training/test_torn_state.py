"""Snapshots that are taken while the replica takes step after step: all of one epoch, or there is a defect."""

import asyncio
import threading
from dataclasses import replace

import numpy as np
import torch

from collab import config
from collab.compute import ThreadCompute
from collab.swarm.snapshots import unpack
from collab.training.replica import Replica
from collab.training.state_shelf import StateShelf
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


def donating(network: FakeNetwork, compute: ThreadCompute, ours: Replica) -> StateShelf:
    """What gives the state of a replica to others."""
    ports = replace(make_ports(network.join(PeerId("donor"))), compute=compute)
    return StateShelf(ports, ours, "f")


def test_a_donor_in_the_middle_of_its_steps_never_gives_a_torn_state() -> None:
    async def main() -> set[int]:
        async with FakeNetwork() as network:
            compute, ours = ThreadCompute(), counting_replica()
            sync = donating(network, compute, ours)
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
                await asyncio.sleep(0)  # what is packed already comes at once
            await training
            compute.close()
            return epochs

    epochs = asyncio.run(main())
    assert len(epochs) > 10, "it was asked in the middle of them"


def test_nobody_waits_for_a_donors_microbatch() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            compute, ours, is_over = ThreadCompute(), counting_replica(), threading.Event()
            computing = asyncio.create_task(compute.run(lambda: is_over.wait(60.0)))
            try:
                async with asyncio.timeout(30.0):
                    assert await donating(network, compute, ours).provide(None) is not None
                assert not computing.done()
            finally:
                is_over.set()
            assert await computing
            compute.close()

    asyncio.run(main())
