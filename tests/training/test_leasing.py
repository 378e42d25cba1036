"""What a trainer's leases tell others, and when they tell nothing."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from collab.data.blocks import BlockPlan
from collab.data.coverage_exchange import ask_for_coverage
from collab.swarm.progress import SwarmView
from collab.swarm.records import PeerState
from collab.training import leasing
from collab.training.leasing import LeasedSupply
from collab.training.shard_stream import ShardStream
from tests.fakes import NOW, FakeDirectory, FakeNetwork, make_ports, run
from tests.training.test_shard_stream import Shards

PLAN = BlockPlan.of(1500, digest="a" * 32, seed=0, microbatch_size=8)


def test_who_has_taken_over_a_state_answers_nobody_until_it_has_asked_what_is_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two that do so at once each would else believe the other, who knows nothing either."""

    async def everything() -> None:
        async with FakeNetwork() as network:
            asker, ports = make_ports(network.join("asker")), make_ports(network.join("me"), FakeDirectory())
            supply = LeasedSupply(participant(ports), lambda: PLAN)
            task = asyncio.create_task(supply.run())

            async def words() -> int:
                await asyncio.sleep(1.0)
                return len(await ask_for_coverage(asker.transport, asker.errands, "f" * 64, [ports.transport.peer_id]))

            assert await words() == 1
            may_answer = asyncio.Event()

            async def late(*_: object) -> list[object]:
                await may_answer.wait()
                return []

            monkeypatch.setattr(leasing, "ask_for_coverage", late)
            supply.note_state()
            assert await words() == 0
            may_answer.set()
            assert await words() == 1
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run(everything())


@pytest.mark.parametrize("is_finished", [False, True])
def test_when_the_run_is_over_no_shard_is_kept_and_else_all_are(is_finished: bool) -> None:
    async def everything() -> None:
        async with FakeNetwork() as network:
            ports = make_ports(network.join("me"), FakeDirectory())
            shards, one_of_us = Shards(), participant(ports)
            one_of_us.is_finished = is_finished
            plan = BlockPlan.of_shards(shards.number, digest=shards.digest, seed=0)
            supply = LeasedSupply(one_of_us, lambda: plan, ShardStream(ports, shards))
            task = asyncio.create_task(supply.run())
            await supply.next(1)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await supply.close()
            assert bool(shards.is_open) is not is_finished

    run(everything())


def participant(ports: Any) -> Any:
    """As much of one as leases look at."""

    async def nothing() -> None:
        pass

    strategy = SimpleNamespace(target_batch_size=64)
    return SimpleNamespace(
        vitals=SimpleNamespace(state=PeerState.TRAINING),
        ports=ports,
        bundle=SimpleNamespace(fingerprint="f" * 64, run=SimpleNamespace(strategy=strategy)),
        membership=SimpleNamespace(view=SwarmView((), NOW), look=nothing, report=nothing, backbones=lambda: ()),
        settings=SimpleNamespace(state_dir=None),
        teller=SimpleNamespace(listener=None, data=None),
    )
