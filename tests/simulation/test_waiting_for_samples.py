"""A trainer whose samples are long in coming (a slow disk, a lease that others want) brings what it has by then."""

import asyncio
from pathlib import Path

import pytest

from collab.metrics.records import EpochFinished, MicrobatchDone
from collab.simulation.virtual_time import EPOCH_S
from collab.tasks.base import Task
from collab.training import trainer
from collab.training.beside import Patience
from collab.training.participant import Participant
from collab.training.supply import Supply, build_supply
from tests.simulation.swarm import SimSwarm

STALLS_S, STALLED_S = 20.0, 30.0


class Stalling:
    """Samples of which none come for a while; the one microbatch that is under way is in the middle of an epoch."""

    def __init__(self, inner: Supply, stalls_at_s: float) -> None:
        self._inner, self._stalls_at_s = inner, stalls_at_s
        self.close, self.run, self.skipped = inner.close, inner.run, inner.skipped

    async def next(self, size: int) -> tuple[int, ...]:
        if 0 <= asyncio.get_running_loop().time() - self._stalls_at_s < STALLED_S:
            await asyncio.sleep(STALLED_S)
        return await self._inner.next(size)


@pytest.mark.parametrize("is_round_waited_for", [True, False])
def test_what_it_has_is_in_the_step_for_which_the_others_have_their_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_round_waited_for: bool
) -> None:
    if not is_round_waited_for:  # it goes on beside the next microbatch, which is long in coming
        monkeypatch.setattr(Patience, "limit_s", lambda _: 0.0)
    swarm = SimSwarm(tmp_path, until=12, target=1200)
    swarm.add_backbone()
    slow, *others = [swarm.add_trainer() for _ in range(3)]

    def supply(participant: Participant, task: Task) -> Supply:
        made = build_supply(participant, task)
        return Stalling(made, STALLS_S) if participant.ports.transport.peer_id == slow.peer_id else made

    monkeypatch.setattr(trainer, "build_supply", supply)
    swarm.world.run()
    computed = [event.at_s - EPOCH_S for event in swarm.events(slow, MicrobatchDone)]
    assert not any(STALLS_S + 0.2 < at_s < STALLS_S + STALLED_S for at_s in computed)
    steps = [event for event in swarm.events(others[0], EpochFinished) if event.at_s - EPOCH_S > STALLS_S]
    assert steps[0].contributors == 3, "it brings what it had when its samples ceased to come"
    assert steps[1].contributors == 2
    ours = [event for event in swarm.events(slow, EpochFinished) if event.at_s - EPOCH_S > STALLS_S]
    assert ours[0].epoch == steps[0].epoch
    assert ours[0].own_samples > 0
    assert ours[0].at_s - steps[0].at_s < 0.5, "it steps with the others, not when its samples come"
    assert len({peer.result["lineage"] for peer in (slow, *others)}) == 1
