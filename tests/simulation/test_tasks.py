"""Tasks of a backbone's event loop, in virtual time."""

import asyncio
from collections import Counter
from pathlib import Path

from tests.simulation.swarm import SimSwarm


def test_when_all_trainers_have_gone_no_task_is_left_of_them(tmp_path: Path) -> None:
    """Eight come; four are killed in the middle of a round or a word, four say goodbye."""
    swarm = SimSwarm(tmp_path, until=100_000, every=50)
    swarm.add_backbone()
    swarm.backbones_stay_s = 200.0
    seen: list[Counter[str]] = []

    def look() -> None:
        tasks = asyncio.all_tasks(swarm.world.loop)
        seen.append(Counter(getattr(task.get_coro(), "__qualname__", "") for task in tasks))

    def kill() -> None:
        for index in trainers[:4]:
            swarm.world.kill(index)

    def dismiss() -> None:
        for index in trainers[4:]:
            swarm.stops[index].set()

    trainers: list[int] = []
    swarm.world.call_at(5.0, look)
    swarm.world.call_at(6.0, lambda: trainers.extend(swarm.add_trainer().index for _ in range(8)))
    swarm.world.call_at(14.0, look)
    swarm.world.call_at(16.0, kill)
    swarm.world.call_at(20.0, dismiss)
    swarm.world.call_at(60.0, look)
    with swarm.world:
        swarm.world.run(until_s=61.0)
    before, amid, after = seen
    assert amid.total() > before.total(), "they were there"
    assert after == before
