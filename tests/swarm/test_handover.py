"""The last state is in safe hands before its trainer leaves."""

import asyncio

import pytest

from collab.averaging.timeouts import MeasuredTimeouts, RoundTimeouts
from collab.net.base import Stream
from collab.net.wire import Message
from collab.swarm.handover import HANDOVER_PROTOCOL, Offer, offer_state, serve_handover
from collab.types import PeerId
from tests.fakes import FakeNetwork, run

FIRST, SECOND = PeerId("first"), PeerId("second")
OFFER = Offer("f", 7, eval_loss=0.5)


def timeouts() -> MeasuredTimeouts:
    """Of a peer that has measured nothing yet."""
    return MeasuredTimeouts(asyncio.get_running_loop().time, RoundTimeouts())


async def backbone(network: FakeNetwork, name: PeerId, *, takes: bool, run_is: str = "f") -> list[tuple[PeerId, Offer]]:
    """A backbone; the list fills with what it was offered."""
    offers: list[tuple[PeerId, Offer]] = []

    async def take(peer: PeerId, offer: Offer) -> bool:
        offers.append((peer, offer))
        return takes

    await serve_handover(network.join(name), timeouts(), run_is, take)
    return offers


def test_the_first_backbone_that_takes_the_state_is_enough() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            first = await backbone(network, FIRST, takes=True)
            second = await backbone(network, SECOND, takes=True)
            assert await offer_state(network.join("me"), timeouts(), [FIRST, SECOND], OFFER, 2.0)
            assert first == [(PeerId("me"), OFFER)]
            assert second == []

    run(main())


def test_a_backbone_that_is_gone_or_declines_or_garbles_is_followed_by_the_next() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:

            async def garble(stream: Stream) -> None:
                await stream.receive(timeout_s=1)
                await stream.send(Message("answer", {"taken": 1}), timeout_s=1)

            await network.join("garbler").serve(HANDOVER_PROTOCOL, garble)
            declined = await backbone(network, FIRST, takes=False)
            taken = await backbone(network, SECOND, takes=True)
            asked = [PeerId("gone"), PeerId("garbler"), FIRST, SECOND]
            assert await offer_state(network.join("me"), timeouts(), asked, OFFER, 2.0)
            assert declined == taken == [(PeerId("me"), OFFER)]

    run(main())


def test_nobody_taking_it_is_told_and_never_raised() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            await backbone(network, FIRST, takes=False)
            me = network.join("me")
            assert not await offer_state(me, timeouts(), [], OFFER, 2.0)
            assert not await offer_state(me, timeouts(), [FIRST, PeerId("gone")], OFFER, 2.0)

    run(main())


def test_a_backbone_of_another_run_does_not_even_look() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            offers = await backbone(network, FIRST, takes=True, run_is="g")
            assert not await offer_state(network.join("me"), timeouts(), [FIRST], OFFER, 2.0)
            assert offers == []

    run(main())


@pytest.mark.parametrize("timeout_s", [0.5, 2.0])
def test_a_backbone_that_is_slow_does_not_hold_up_a_goodbye(timeout_s: float) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:

            async def take(peer: PeerId, offer: Offer) -> bool:
                await asyncio.sleep(60)
                return True

            await serve_handover(network.join(FIRST), timeouts(), "f", take)
            began = asyncio.get_running_loop().time()
            assert not await offer_state(network.join("me"), timeouts(), [FIRST], OFFER, timeout_s)
            assert asyncio.get_running_loop().time() - began == pytest.approx(timeout_s)

    run(main())


def test_a_backbone_that_fetches_for_long_says_so_and_is_waited_for() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:

            async def take(peer: PeerId, offer: Offer) -> bool:
                await asyncio.sleep(90)
                return True

            await serve_handover(network.join(FIRST), timeouts(), "f", take)
            assert await offer_state(network.join("me"), timeouts(), [FIRST], OFFER, 120.0)

    run(main())


def test_a_backbone_that_freezes_over_it_is_followed_by_the_next() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:

            async def freeze(stream: Stream) -> None:
                await stream.receive(timeout_s=1)
                await asyncio.sleep(1000)

            await network.join(FIRST).serve(HANDOVER_PROTOCOL, freeze)
            taken = await backbone(network, SECOND, takes=True)
            assert await offer_state(network.join("me"), timeouts(), [FIRST, SECOND], OFFER, 60.0)
            assert taken == [(PeerId("me"), OFFER)]

    run(main())
