"""Who offers a backbone a state that the run has never come to changes nothing, and takes no checkpoint's place."""

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from collab.averaging.flow import Links
from collab.checkpoints.local import epoch_of, list_checkpoints
from collab.errors import CollabError
from collab.metrics.records import CheckpointSaved, StateFetched
from collab.ports import Ports
from collab.swarm.donation import StateServer
from collab.swarm.handover import Offer, offer_state
from collab.swarm.snapshots import PackedSnapshot, Snapshot, pack
from collab.types import Lineage
from tests.simulation.swarm import SimSwarm
from tests.simulation.test_faults import assert_equal_ends

UNTIL = 30


@pytest.mark.parametrize("ahead", [1, 10**6])
def test_a_stranger_that_offers_a_later_state_is_not_even_asked_for_it(tmp_path: Path, ahead: int) -> None:
    swarm = SimSwarm(tmp_path, until=UNTIL, every=5)
    backbone = swarm.add_backbone()
    trainers = [swarm.add_trainer() for _ in range(3)]
    asked: list[int | None] = []
    taken: list[bool] = []

    async def lie(ports: Ports) -> None:
        links, fingerprint = Links(ports.clock.monotonic), swarm.bundle.fingerprint

        async def provide(epoch: int | None) -> PackedSnapshot:
            asked.append(epoch)
            tensors = {"model.a": np.zeros(4, np.float32)}
            forged = Snapshot(epoch=epoch or 0, lineage=Lineage("forged"), tensors=tensors, scalars={})
            return pack(forged, fingerprint=fingerprint)

        await StateServer(ports.transport, links, fingerprint, provide).serve()
        for _ in range(4):
            offer = Offer(fingerprint, swarm.backbones[0].keeper.shelf.saved_epoch + ahead + len(taken))
            with suppress(CollabError):
                taken.append(await offer_state(ports.transport, links.timeouts, [backbone.peer_id], offer, 20.0))

    swarm.world.call_at(15.0, lambda: swarm.world.add_peer(lie))
    with swarm.world:
        swarm.world.run()
    assert_equal_ends(swarm, trainers, epoch=UNTIL)
    assert taken == [False] * 4
    assert asked == []
    assert not [event for event in swarm.events(backbone, StateFetched) if event.epoch > UNTIL]
    kept = [epoch_of(path) for path in list_checkpoints(tmp_path / "backbone-0" / "checkpoints")]
    assert max(kept) == UNTIL
    assert max(event.epoch for event in swarm.events(backbone, CheckpointSaved)) == UNTIL
