"""Other peers are waited for as long as they were seen to take."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from collab.answers import ENOUGH, FACTOR, SLOT_S
from collab.data.coverage_exchange import COVERAGE_PROTOCOL, ask_for_coverage
from collab.errors import TimedOut
from collab.net.base import Stream
from collab.net.errands import FIRST_S, FORGOTTEN_S, LONGEST_S, MOST_MISSED, SHORTEST_S, Errands
from collab.types import PeerId
from tests.fakes import FakeNetwork, run

FAST, FROZEN = PeerId("fast"), PeerId("frozen")


async def ask(errands: Errands, peer: PeerId, takes_s: float) -> float:
    """Ask ``peer``, whose answer takes so long, and wait no longer than allowed; how long that would have been."""
    with suppress(TimedOut), errands.asking(peer) as limit_s:
        await asyncio.sleep(min(takes_s, limit_s))
        if takes_s > limit_s:
            raise TimedOut("no answer")
    return limit_s


def with_errands(test: Callable[[Errands], Awaitable[None]]) -> None:
    async def main() -> None:
        await test(Errands())

    run(main())


def test_little_is_known_at_first() -> None:
    async def look(errands: Errands) -> None:
        for _ in range(ENOUGH - 1):
            await ask(errands, FAST, 0.05)
        assert errands.limit_s() == pytest.approx(FIRST_S)
        await ask(errands, FAST, 0.05)
        assert errands.limit_s() == pytest.approx(SHORTEST_S)

    with_errands(look)


@pytest.mark.parametrize(("takes_s", "limit_s"), [(0.1, SHORTEST_S), (2.0, FACTOR * 2.0), (4.9, FACTOR * 4.9)])
def test_the_limit_follows_what_answers_took(takes_s: float, limit_s: float) -> None:
    async def look(errands: Errands) -> None:
        for _ in range(ENOUGH):
            await ask(errands, FAST, takes_s)
        assert await ask(errands, FAST, 0.0) == pytest.approx(limit_s)

    with_errands(look)


def test_one_that_does_not_answer_has_longer_the_next_time_and_others_do_not() -> None:
    async def look(errands: Errands) -> None:
        for _ in range(ENOUGH):
            await ask(errands, FAST, 0.05)
        limits = [await ask(errands, FROZEN, 1e9) for _ in range(5)]
        assert limits == pytest.approx([SHORTEST_S, 2 * SHORTEST_S, 4 * SHORTEST_S, 8 * SHORTEST_S, LONGEST_S])
        assert errands.limit_s(FAST) == pytest.approx(SHORTEST_S)
        await asyncio.sleep(SLOT_S)
        await ask(errands, FROZEN, 0.05)
        assert errands.limit_s(FROZEN) == pytest.approx(SHORTEST_S)

    with_errands(look)


def test_what_is_known_of_many_silent_peers_is_bounded() -> None:
    async def look(errands: Errands) -> None:
        await asyncio.gather(*(ask(errands, PeerId(f"silent {number}"), 1e9) for number in range(MOST_MISSED + 1)))
        assert errands.limit_s(PeerId("silent 0")) == pytest.approx(FIRST_S), "the oldest is forgotten"
        assert errands.limit_s(PeerId("silent 1")) == pytest.approx(2 * FIRST_S)

    with_errands(look)


def test_a_peer_that_did_not_answer_long_ago_is_waited_for_as_any_other() -> None:
    async def look(errands: Errands) -> None:
        await ask(errands, FROZEN, 1e9)
        await asyncio.sleep(FORGOTTEN_S - 1.0)
        assert errands.limit_s(FROZEN) == pytest.approx(2 * FIRST_S)
        await asyncio.sleep(2.0)
        assert errands.limit_s(FROZEN) == pytest.approx(FIRST_S)

    with_errands(look)


def test_a_frozen_peer_that_is_asked_for_coverage_costs_what_is_learned() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:

            async def freeze(stream: Stream) -> None:
                await asyncio.sleep(1e6)

            await network.join(FROZEN).serve(COVERAGE_PROTOCOL, freeze)
            errands, us = Errands(), network.join("us")
            for _ in range(ENOUGH):
                await ask(errands, FAST, 0.05)
            began_s = asyncio.get_running_loop().time()
            assert await ask_for_coverage(us, errands, "run", [FROZEN]) == []
            assert asyncio.get_running_loop().time() - began_s == pytest.approx(SHORTEST_S, abs=0.1)

    run(main())
