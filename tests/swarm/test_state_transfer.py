"""Taking over state: from whoever can give it whole."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from collab.errors import NoDonor
from collab.net.base import Stream
from collab.net.pieces import send_bytes
from collab.net.wire import Message
from collab.swarm.snapshots import CHUNK_BYTES, Manifest, PackedSnapshot, Snapshot, pack, unpack
from collab.swarm.state_transfer import MAX_DONATIONS, STATE_PROTOCOL, StateServer, Wanted, fetch_state
from collab.types import Lineage, PeerId
from tests.fakes import FakeNetwork, FakeTransport, run

L = Lineage("l")
GOOD = pack(
    Snapshot(epoch=5, lineage=L, tensors={"model.a": np.arange(700_000, dtype=np.float32)}, scalars={"s": 1}),
    fingerprint="f",
)
FIRST, SECOND = PeerId("first"), PeerId("second")


async def donate(
    network: FakeNetwork, name: PeerId, packed: PackedSnapshot | None = GOOD, *, run_is: str = "f"
) -> None:
    async def provide(epoch: int | None) -> PackedSnapshot | None:
        return packed if packed is not None and epoch in (None, packed.manifest.epoch) else None

    await StateServer(network.join(name), run_is, provide).serve()


async def fetch(
    transport: FakeTransport, *donors: PeerId, wanted: Wanted | None = None
) -> tuple[PackedSnapshot, PeerId]:
    return await fetch_state(transport, list(donors), fingerprint="f", wanted=wanted or Wanted())


@pytest.mark.parametrize("wanted", [Wanted(), Wanted(5), Wanted(5, L), Wanted(None, L)])
def test_the_first_donor_s_state_arrives_whole(wanted: Wanted) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            await donate(network, FIRST)
            packed, donor = await fetch(network.join("me"), FIRST, wanted=wanted)
            assert donor == FIRST
            assert packed == GOOD
            assert np.array_equal(unpack(packed).tensors["model.a"], np.arange(700_000))

    run(main())


@pytest.mark.parametrize("chunk", [0, 1, 2])
@pytest.mark.parametrize("fault", ["dies", "flips", "cuts", "repeats", "stalls"])
def test_a_donor_that_fails_midway_is_replaced_by_the_next(chunk: int, fault: str) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            await donate(network, SECOND)

            async def fail(stream: Stream) -> None:
                await stream.receive(timeout_s=1)
                await stream.send(GOOD.manifest.to_message(), timeout_s=1)
                for index in range(len(GOOD.manifest.chunk_digests)):
                    data = bytearray(GOOD.chunk(index))
                    if index == chunk and fault == "dies":
                        return
                    if index == chunk and fault == "stalls":
                        await asyncio.sleep(3600)
                    if index == chunk and fault == "flips":
                        data[-1] ^= 1
                    if index == chunk and fault == "cuts":
                        del data[-1]
                    if index == chunk and fault == "repeats":
                        data = bytearray(GOOD.chunk(index - 1 if index else 1))
                    await send_bytes(stream, data, timeout_s=1)

            await network.join(FIRST).serve(STATE_PROTOCOL, fail)
            packed, donor = await fetch(network.join("me"), FIRST, SECOND)
            assert donor == SECOND
            assert packed == GOOD

    run(main())


def test_a_donor_that_offers_another_state_than_was_asked_for_is_passed_over() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            other = replace(GOOD.manifest, epoch=6)
            stranger = replace(GOOD.manifest, fingerprint="g")
            fork = replace(GOOD.manifest, lineage=Lineage("m"))
            for number, manifest in enumerate((other, stranger, fork)):

                async def offer(stream: Stream, manifest: Manifest = manifest) -> None:
                    await stream.receive(timeout_s=1)
                    await stream.send(manifest.to_message(), timeout_s=1)
                    await asyncio.sleep(3600)

                await network.join(f"liar{number}").serve(STATE_PROTOCOL, offer)
            await donate(network, SECOND)
            liars = [PeerId(f"liar{number}") for number in range(3)]
            packed, donor = await fetch(network.join("me"), *liars, SECOND, wanted=Wanted(5, L))
            assert (packed, donor) == (GOOD, SECOND)

    run(main())


def test_a_newcomer_of_another_run_is_refused_and_told_both_fingerprints() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            await donate(network, FIRST, run_is="g")
            with pytest.raises(NoDonor) as caught:
                await fetch(network.join("me"), FIRST)
            assert "fingerprint is f" in caught.value.message
            assert "run's is g" in caught.value.message

    run(main())


def test_without_a_donor_the_error_says_why_for_each() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            await donate(network, FIRST, None)
            await donate(network, SECOND)
            me = network.join("me")
            with pytest.raises(NoDonor) as caught:
                await fetch(me, PeerId("gone"), FIRST, SECOND, wanted=Wanted(99))
            text = caught.value.message
            assert "gone: gone is gone" in text
            assert "first: no snapshot of epoch 99" in text
            assert "second: no snapshot of epoch 99" in text
            assert caught.value.hint
            with pytest.raises(NoDonor, match="first: no state yet"):
                await fetch(me, FIRST)
            with pytest.raises(NoDonor, match="nobody is known"):
                await fetch(me)

    run(main())


def test_more_newcomers_than_slots_are_all_served() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            await donate(network, FIRST)
            newcomers = [network.join(f"me{number}") for number in range(2 * MAX_DONATIONS + 1)]
            results = await asyncio.gather(*(fetch(newcomer, FIRST) for newcomer in newcomers))
            assert all(packed == GOOD for packed, _ in results)

    run(main())


def test_newcomers_that_vanish_do_not_use_up_the_donor_s_slots() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            await donate(network, FIRST)
            for number in range(2 * MAX_DONATIONS):
                stream = await network.join(f"ghost{number}").open(FIRST, STATE_PROTOCOL, timeout_s=1)
                await stream.send(Message("get", {"fingerprint": "f", "epoch": -1}), timeout_s=1)
                if number % 2:
                    stream.close()
            assert (await fetch(network.join("me"), FIRST))[0] == GOOD

    run(main())


@pytest.mark.parametrize(
    "request_fields", [{}, {"fingerprint": "f"}, {"fingerprint": 5, "epoch": 1}, {"fingerprint": "f", "epoch": "x"}]
)
def test_a_garbled_request_ends_its_own_stream_only(request_fields: dict[str, object]) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            await donate(network, FIRST)
            me = network.join("me")
            stream = await me.open(FIRST, STATE_PROTOCOL, timeout_s=1)
            await stream.send(Message("get", request_fields), timeout_s=1)
            assert (await fetch(me, FIRST))[0] == GOOD

    run(main())


def test_the_snapshot_under_test_spans_several_chunks() -> None:
    assert len(GOOD.data) > 2 * CHUNK_BYTES
