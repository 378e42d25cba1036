"""Taking over state: from many donors at once, whatever some of them do."""

import asyncio
import resource
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from collab.averaging.flow import Links
from collab.errors import BadMessage, NoDonor
from collab.net.base import Stream
from collab.net.errands import Errands
from collab.net.pieces import PIECE_BYTES
from collab.net.wire import Message
from collab.swarm.donation import MAX_DONATIONS, STATE_PROTOCOL, StateServer
from collab.swarm.download import Download
from collab.swarm.snapshots import CHUNK_BYTES, Manifest, PackedSnapshot, Snapshot, pack, unpack
from collab.swarm.state_transfer import Wanted, fetch_state
from collab.swarm.vouching import serve_vouching, who_has_contributed
from collab.types import Lineage, PeerId
from tests.averaging.records import make_record
from tests.fakes import FakeNetwork, FakeTransport, run

L = Lineage("l")
VALUES = np.arange(1_500_000, dtype=np.float32)
GOOD = pack(Snapshot(epoch=5, lineage=L, tensors={"model.a": VALUES}, scalars={"s": 1}), fingerprint="f")
LIE = pack(Snapshot(epoch=5, lineage=L, tensors={"model.a": -VALUES}, scalars={"s": 1}), fingerprint="f")
FIRST, SECOND = PeerId("first"), PeerId("second")


async def donate(
    network: FakeNetwork, name: PeerId, packed: PackedSnapshot | None = GOOD, *, run_is: str = "f", after_s: float = 0.0
) -> None:
    async def provide(epoch: int | None) -> PackedSnapshot | None:
        await asyncio.sleep(after_s)
        return packed if packed is not None and epoch in (None, packed.manifest.epoch) else None

    await StateServer(network.join(name), links(), run_is, provide).serve()


def links() -> Links:
    """Of one peer."""
    return Links(asyncio.get_running_loop().time)


async def fetch(
    transport: FakeTransport, *donors: PeerId, wanted: Wanted | None = None
) -> tuple[PackedSnapshot, set[PeerId]]:
    packed, brought = await fetch_state(transport, links(), list(donors), fingerprint="f", wanted=wanted or Wanted())
    assert sum(brought.values()) == packed.manifest.num_bytes
    return packed, set(brought)


@pytest.mark.parametrize("wanted", [Wanted(), Wanted(5), Wanted(5, L), Wanted(None, L)])
def test_the_state_arrives_whole_and_every_donor_brings_some_of_it(wanted: Wanted) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            await donate(network, FIRST)
            await donate(network, SECOND)
            packed, donors = await fetch(network.join("me"), FIRST, SECOND, wanted=wanted)
            assert donors == {FIRST, SECOND}
            assert packed == GOOD
            assert np.array_equal(unpack(packed).tensors["model.a"], VALUES)

    run(main())


def test_liars_of_one_invite_are_one_voice() -> None:
    """Three devices of one person offer another state than two people do."""

    async def main() -> None:
        async with FakeNetwork() as network:
            liars = [PeerId(f"liar {number}") for number in range(3)]
            for liar in liars:
                await donate(network, liar, LIE)
            await donate(network, FIRST)
            await donate(network, SECOND)
            everybody = [*liars, FIRST, SECOND]

            def voice_of(peer: PeerId) -> PeerId:
                return PeerId("their invite") if peer in liars else peer

            me = network.join("me")
            fooled, _ = await fetch(me, *everybody)
            assert fooled == LIE, "by number alone the liars are most"
            packed, _ = await fetch(me, *everybody, wanted=Wanted(voice_of=voice_of))
            assert packed == GOOD

    run(main())


def test_who_has_never_contributed_has_no_voice() -> None:
    """Strangers are free to make; a backbone has seen the first one contribute."""

    async def main() -> None:
        async with FakeNetwork() as network:
            liars = [PeerId(f"liar {number}") for number in range(3)]
            for liar in liars:
                await donate(network, liar, LIE)
            await donate(network, FIRST)
            contributors = ((FIRST, 5.0), (SECOND, 5.0))
            records = [make_record(contributors=contributors, epoch=epoch) for epoch in range(3)]
            await serve_vouching(network.join("backbone"), Errands(), lambda: records)
            me = network.join("me")
            steady = await who_has_contributed(me, Errands(), [PeerId("nobody"), PeerId("backbone")])
            assert steady == {FIRST, SECOND}
            packed, _ = await fetch(me, *liars, FIRST, wanted=Wanted(voices=steady))
            assert packed == GOOD

    run(main())


def test_a_donor_that_only_says_wait_is_left_after_a_while() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:

            async def stall(stream: Stream) -> None:
                await stream.receive(timeout_s=1)
                while True:
                    await stream.send(Message("wait"), timeout_s=1)
                    await asyncio.sleep(1.0)

            await network.join(FIRST).serve(STATE_PROTOCOL, stall)
            with pytest.raises(NoDonor, match="says only that we have to wait"):
                await fetch(network.join("me"), FIRST, wanted=Wanted(patience_s=30.0))

    run(main())


def test_memory_is_taken_for_what_comes_and_not_for_what_is_promised() -> None:
    num_bytes = 4 << 30
    promised = Manifest(fingerprint="f", epoch=5, lineage=L, num_bytes=num_bytes, chunk_digests=(b"",) * (4 << 10))
    before = resident_bytes()
    download = Download(promised)
    assert not download.is_complete
    assert resident_bytes() - before < num_bytes / 8


def test_more_than_there_can_be_memory_for_is_refused() -> None:
    promised = Manifest(fingerprint="f", epoch=5, lineage=L, num_bytes=1 << 62, chunk_digests=(b"",))
    with pytest.raises(BadMessage, match="more than this machine can hold"):
        Download(promised)


def resident_bytes() -> int:
    """Of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.mark.parametrize("fault", ["dies", "flips", "cuts", "another chunk", "nonsense", "stalls", "falls silent"])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_donor_that_fails_midway_costs_its_chunk_and_nothing_else(after: int, fault: str) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            await donate(network, SECOND)

            async def fail(stream: Stream) -> None:
                await stream.receive(timeout_s=1)
                await stream.send(GOOD.manifest.to_message(), timeout_s=1)
                num_given = 0
                while True:
                    message = await stream.receive(timeout_s=60)
                    if message.kind != "want":
                        continue
                    index = message.get("index", int)
                    data = bytearray(GOOD.chunk(index))
                    if num_given == after:
                        if fault == "dies":
                            return
                        if fault == "falls silent":
                            await asyncio.sleep(3600)
                        while fault == "stalls":
                            await stream.send(Message("wait"), timeout_s=1)
                            await asyncio.sleep(1)
                        if fault == "nonsense":
                            await stream.send(Message("thanks"), timeout_s=1)
                        if fault == "flips":
                            data[-1] ^= 1
                        if fault == "cuts":
                            del data[-1]
                        if fault == "another chunk":
                            index = (index + 1) % len(GOOD.manifest.chunk_digests)
                    num_given += 1
                    for start in range(0, len(data), PIECE_BYTES):
                        fields = {"index": index, "start": start, "sent_s": 0.0, "queue_s": 0.0}
                        piece = memoryview(data)[start : start + PIECE_BYTES]
                        await stream.send(Message("piece", fields, piece), timeout_s=1)

            await network.join(FIRST).serve(STATE_PROTOCOL, fail)
            packed, donors = await fetch(network.join("me"), FIRST, SECOND)
            assert SECOND in donors
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
            assert (packed, donor) == (GOOD, {SECOND})

    run(main())


OLD = pack(Snapshot(epoch=4, lineage=Lineage("k"), tensors={"model.a": VALUES + 1}, scalars={}), fingerprint="f")


@pytest.mark.parametrize("silent", [0, 1])
def test_what_most_donors_have_is_taken(silent: int) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            await donate(network, PeerId("liar"), replace(GOOD, manifest=replace(GOOD.manifest, epoch=10**6)))
            for name in (FIRST, SECOND):
                await donate(network, name)

            async def freeze(stream: Stream) -> None:
                await asyncio.sleep(3600)

            frozen = [PeerId(f"frozen{number}") for number in range(silent)]
            for name in frozen:
                await network.join(name).serve(STATE_PROTOCOL, freeze)
            packed, donors = await fetch(network.join("me"), PeerId("liar"), *frozen, FIRST, SECOND)
            assert packed == GOOD
            assert PeerId("liar") not in donors

    run(main())


def test_the_older_checkpoints_of_backbones_are_taken_only_when_trainers_have_nothing() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            await donate(network, FIRST)
            backbones = [PeerId("backbone0"), PeerId("backbone1")]
            for name in backbones:
                await donate(network, name, OLD)
            wanted = Wanted(voices=frozenset({FIRST, SECOND}))
            me = network.join("me")
            assert await fetch(me, *backbones, FIRST, wanted=wanted) == (GOOD, {FIRST})
            await donate(network, SECOND, None)
            packed, donors = await fetch(me, SECOND, *backbones, wanted=wanted)
            assert packed == OLD
            assert donors <= set(backbones)

    run(main())


@pytest.mark.parametrize(("after_s", "packed"), [(30.0, GOOD), (900.0, OLD)])
def test_who_stands_in_a_queue_for_the_newest_state_takes_no_old_one_meanwhile(
    after_s: float, packed: PackedSnapshot
) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            await donate(network, FIRST, after_s=after_s)
            await donate(network, PeerId("backbone"), OLD)
            me, wanted = network.join("me"), Wanted(voices=frozenset({FIRST}))
            assert (await fetch(me, PeerId("backbone"), FIRST, wanted=wanted))[0] == packed

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


def test_one_newcomer_that_asks_for_all_slots_leaves_some_to_others() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            await donate(network, FIRST)
            greedy = network.join("greedy")
            for _ in range(MAX_DONATIONS):
                stream = await greedy.open(FIRST, STATE_PROTOCOL, timeout_s=1)
                await stream.send(Message("get", {"fingerprint": "f", "epoch": -1}), timeout_s=1)
            began_s = asyncio.get_running_loop().time()
            assert (await fetch(network.join("me"), FIRST))[0] == GOOD
            assert asyncio.get_running_loop().time() - began_s < 0.5, "before one of its streams is given up"

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
