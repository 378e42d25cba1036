"""Rounds in which nothing moves, though everybody says that it is there."""

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from collab.averaging.base import Aborted, Committed
from collab.averaging.flow import Links
from collab.averaging.laggards import Progress
from collab.averaging.timeouts import FIRST
from collab.averaging.watchdog import FACTOR, LOOK_S, Watchdog
from collab.errors import TimedOut
from collab.net.wire import Message
from collab.types import PeerId
from tests.averaging.swarm import Rounds, random_vectors
from tests.fakes import FakeNetwork, run

STALLED_S = 60.0
A = PeerId("a")


class Work:
    """As the test says."""

    def __init__(self) -> None:
        self.is_whole, self.parts = False, 0

    def progress(self) -> Progress:
        return Progress(Counter({A: self.parts}), [self.parts])


def watched(story: Any) -> None:
    async def main() -> None:
        work = Work()
        clock = asyncio.get_running_loop().time
        links = Links(clock, timeouts=replace(FIRST, stalled_s=STALLED_S))
        await story(work, Watchdog(work, links, 0.0), clock)

    run(main())


async def forever() -> None:
    await asyncio.sleep(1e6)


def test_what_moves_is_waited_for_and_what_stands_still_is_not() -> None:
    async def story(work: Work, watchdog: Watchdog, clock: Any) -> None:
        async def move() -> None:
            for _ in range(10):
                await asyncio.sleep(STALLED_S - 2)
                work.parts += 1

        moving = asyncio.create_task(move())
        with pytest.raises(TimedOut, match="10 parts came"):
            await watchdog.guard(forever())
        assert moving.done()
        assert 0 <= clock() - (10 * (STALLED_S - 2) + STALLED_S) <= 2 * LOOK_S

    watched(story)


def test_who_has_everything_waits_for_the_slower_ones_in_proportion() -> None:
    async def story(work: Work, watchdog: Watchdog, clock: Any) -> None:
        async def finish() -> None:
            await asyncio.sleep(20.0)
            work.parts, work.is_whole = 5, True

        finishing = asyncio.create_task(finish())
        with pytest.raises(TimedOut, match="has everything and hears no verdict"):
            await watchdog.guard(forever())
        assert finishing.done()
        assert abs(clock() - (20.0 + FACTOR * 20.0 + STALLED_S)) <= (FACTOR + 2) * LOOK_S

    watched(story)


def test_what_ends_in_time_is_as_without_a_watchdog() -> None:
    async def story(work: Work, watchdog: Watchdog, clock: Any) -> None:
        async def answer() -> int:
            await asyncio.sleep(STALLED_S - 1)
            return 42

        async def fail() -> None:
            raise ValueError("as it is")

        assert await watchdog.guard(answer()) == 42
        with pytest.raises(ValueError, match="as it is"):
            await watchdog.guard(fail())

    watched(story)


@pytest.mark.parametrize("swallowed", ["begin", "prepare"])
def test_a_leader_that_says_it_is_there_and_never_goes_on_loses_its_members(swallowed: str) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "helper", "a")
            await rounds.add_auxiliary("helper")
            for name in "abc":
                await rounds.add_trainer(name)

            def tamper(sender: PeerId, to: PeerId, protocol: str, message: Message) -> Message:
                return Message("wait") if (sender, message.kind) == ("helper", swallowed) else message

            network.tamper = tamper
            began_s = asyncio.get_running_loop().time()
            outcomes = await rounds.average(random_vectors("abc", 100), {"a": 1.0, "b": 1.0, "c": 1.0})
            took_s = asyncio.get_running_loop().time() - began_s
            assert {type(outcome) for outcome in outcomes.values()} <= {Aborted, Committed}
            assert took_s < 4 * (FIRST.stalled_s + 2 * FIRST.gather_limit_s)

    run(main())
