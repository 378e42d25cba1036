"""Catching up on missed rounds."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from collab.averaging.base import Committed
from collab.averaging.certificates import Certified
from collab.averaging.donor import Streams, kept_streams
from collab.averaging.flow import Links
from collab.averaging.history import KEPT_ROUNDS, RESULTS_PROTOCOL, SOON_S, History, Missed
from collab.averaging.reduction import span_digest
from collab.averaging.transcript import Transcript
from collab.compression.base import codec_by_name
from collab.net.base import Stream
from collab.net.pieces import PIECE_BYTES
from collab.net.wire import Message
from collab.swarm.bandwidth import Rate
from collab.types import Lineage, PeerId, Vector
from tests.averaging.certifying import certify, make_verdicts
from tests.averaging.records import X, Y, make_record
from tests.fakes import FakeNetwork, make_ports, run

L = Lineage("l")
PART = 8192


def committed(
    epoch: int, mean: Vector, *, lineage: Lineage = L, **transcript: Any
) -> tuple[Committed, Transcript]:
    """A round of one reducer for each half of the vector, and how its result travelled."""
    how = Transcript(**{"codec": "none", "part_elements": PART, **transcript})
    edges = [0, len(mean) // 2, len(mean)]
    pieces = tuple((X, start, stop) for start, stop in pairwise(edges) if start < stop)
    record = make_record(round_id=f"r{epoch}", epoch=epoch, lineage=lineage, pieces=pieces, digests=("",) * len(pieces))
    digests: list[list[bytes]] = [[] for _ in pieces]
    for (place, _, _), result in zip(how.parts(record), how.results(record, mean), strict=True):
        digests[place[0]].append(result.digest())
    record = replace(record, digests=tuple(span_digest(piece) for piece in digests))
    return Committed(mean=mean, record=record), how


def history(network: FakeNetwork, name: str, fingerprint: str = "f", links: Links | None = None) -> History:
    ports = make_ports(network.join(name))
    links = links or Links(asyncio.get_running_loop().time)
    return History(ports.transport, fingerprint, links, make_verdicts(ports).believe)


def keep(donor: History, committed: Committed, how: Transcript) -> None:
    donor.remember(certify(committed.record), committed.mean, how)


def random_vector(num_elements: int) -> Vector:
    return np.random.default_rng(num_elements).normal(size=num_elements).astype(np.float32)


async def kept(network: FakeNetwork, epochs: Iterable[int], num_elements: int) -> list[int]:
    """Which of ``epochs`` the peer "donor" can still give."""
    ours = history(network, "asker")
    return [e for e in epochs if await ours.fetch([PeerId("donor")], (e, L), num_elements) is not None]


@pytest.mark.parametrize("num_elements", [1, PIECE_BYTES // 4 - 1, PIECE_BYTES // 4, PIECE_BYTES // 4 + 1])
def test_a_missed_round_is_served_with_the_very_same_bytes(num_elements: int) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            donor = history(network, "donor")
            await donor.serve()
            original, how = committed(3, random_vector(num_elements))
            keep(donor, original, how)
            ours = history(network, "asker")
            got = await ours.fetch([PeerId("nobody"), PeerId("donor")], (3, L), num_elements)
            assert got is not None
            assert got.mean.tobytes() == original.mean.tobytes()
            assert got.record == original.record
            assert got.lineage == original.lineage

    run(main())


@pytest.mark.parametrize("codec", ["none", "int8"])
def test_whoever_has_fetched_a_round_gives_it_on(codec: str) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            donor, second = history(network, "donor"), history(network, "second")
            await donor.serve()
            await second.serve()
            keep(donor, *committed(3, random_vector(100), codec=codec))
            first = await second.fetch([PeerId("donor")], (3, L), 100)
            then = await history(network, "third").fetch([PeerId("second")], (3, L), 100)
            assert first is not None
            assert then is not None
            assert then.mean.tobytes() == first.mean.tobytes()

    run(main())


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_round_that_goes_on_is_told_when_it_is_over(is_committed: bool) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            donor, clock = history(network, "donor"), asyncio.get_running_loop().time
            await donor.serve()
            original, how = committed(3, random_vector(100))
            with donor.expecting((3, L)):
                began_s = clock()
                asking = asyncio.create_task(history(network, "asker").fetch([PeerId("donor")], (3, L), 100))
                await asyncio.sleep(0.3)
                assert not asking.done()
                if is_committed:
                    keep(donor, original, how)
            got = await asking
            assert (got is not None) == is_committed
            assert clock() - began_s < 0.3 + SOON_S / 2, "at once"

    run(main())


def test_several_rounds_come_over_one_stream_and_the_last_one_is_said_to_be() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            donor, asker = history(network, "donor"), history(network, "asker")
            await donor.serve()
            first, how = committed(3, random_vector(100))
            second, _ = committed(4, random_vector(101)[:100], lineage=first.lineage)
            third, _ = committed(5, random_vector(102)[:100], lineage=second.lineage)
            rounds = [first, second, third]
            for one in rounds:
                keep(donor, one, how)

            async def fetch(one: Committed, streams: Streams, *, joins: bool = True) -> Missed:
                instance = one.record.epoch, one.record.lineage
                got = await asker.fetch([PeerId("nobody"), PeerId("donor")], instance, 100, kept=streams, joins=joins)
                assert got is not None
                assert got.mean.tobytes() == one.mean.tobytes()
                return got

            with kept_streams() as streams:
                assert [(await fetch(one, streams)).is_newest for one in rounds] == [False, False, True]
                (stream,) = streams.values()
                with donor.expecting((6, third.lineage), is_joinable=True):
                    assert (await fetch(third, streams)).is_newest, "it can be joined"
                    assert not (await fetch(third, streams, joins=False)).is_newest
                assert list(streams.values()) == [stream]
                stream.close()
                assert (await fetch(first, streams)).record == first.record
                assert list(streams.values()) != [stream], "older donors close it"

    run(main())


def test_nobody_waits_for_long_for_a_round_that_goes_on() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            donor, clock = history(network, "donor"), asyncio.get_running_loop().time
            await donor.serve()
            with donor.expecting((3, L)):
                began_s = clock()
                assert await history(network, "asker").fetch([PeerId("donor")], (3, L), 100) is None
                assert SOON_S <= clock() - began_s < 2 * SOON_S

    run(main())


def test_who_can_still_join_a_round_does_not_wait_for_it_and_a_newcomer_does() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            donor, clock = history(network, "donor"), asyncio.get_running_loop().time
            await donor.serve()
            asker = history(network, "asker")
            with donor.expecting((3, L), is_joinable=True):
                began_s = clock()
                assert await asker.fetch([PeerId("donor")], (3, L), 100, joins=True) is None
                assert clock() - began_s < SOON_S / 2
                with donor.expecting((3, L)):  # it has begun
                    assert await asker.fetch([PeerId("donor")], (3, L), 100, joins=True) is None
                    assert clock() - began_s >= SOON_S
                asking = asyncio.create_task(asker.fetch([PeerId("donor")], (3, L), 100))
                await asyncio.sleep(0.3)
                keep(donor, *committed(3, random_vector(100)))
            got = await asking
            assert got is not None
            assert got.was_awaited

    run(main())


def test_only_the_last_rounds_are_kept() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            donor = history(network, "donor")
            await donor.serve()
            for epoch in range(KEPT_ROUNDS + 3):
                keep(donor, *committed(epoch, random_vector(2)))
            assert await kept(network, range(KEPT_ROUNDS + 3), 2) == list(range(3, KEPT_ROUNDS + 3))

    run(main())


def test_only_so_many_bytes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collab.averaging.history.KEPT_BYTES", 1000)

    async def main() -> None:
        async with FakeNetwork() as network:
            donor = history(network, "donor")
            await donor.serve()
            for epoch in range(5):
                keep(donor, *committed(epoch, random_vector(100)))
            assert await kept(network, range(5), 100) == [3, 4]
            keep(donor, *committed(9, random_vector(251)))
            assert await kept(network, [9], 251) == []

    run(main())


@pytest.mark.parametrize(
    ("fingerprint", "epoch", "lineage"), [("other", 3, L), ("f", 2, L), ("f", 4, L), ("f", 3, Lineage("m"))]
)
def test_another_run_epoch_or_history_gets_nothing(fingerprint: str, epoch: int, lineage: Lineage) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            donor = history(network, "donor")
            await donor.serve()
            keep(donor, *committed(3, random_vector(4)))
            ours = history(network, "asker", fingerprint)
            assert await ours.fetch([PeerId("donor")], (epoch, lineage), 4) is None

    run(main())


HONEST = np.array([1, 2, 3], "<f4")
RECORD, TRANSCRIPT = committed(3, HONEST)[0].record, committed(3, HONEST)[1].to_fields()


def told(record: dict[str, Any] | None = None, **transcript: Any) -> Message:
    """What a donor says before the bytes."""
    proved = certify(RECORD).to_fields()
    fields = {"record": proved["record"] | (record or {}), "transcript": TRANSCRIPT | transcript}
    return Message("result", proved | fields)


def proved(certified: Certified) -> Message:
    """The same with other votes."""
    return Message("result", certified.to_fields() | {"transcript": TRANSCRIPT})


def piece(data: bytes, start: object = 0, kind: str = "piece") -> Message:
    return Message(kind, {"start": start}, data)


FIRST, SECOND = HONEST[:1].tobytes(), HONEST[1:].tobytes()


@pytest.mark.parametrize(
    "answers",
    [
        [Message("unknown")],
        [Message("result", {"record": {}})],
        [Message("result", {"record": RECORD.to_fields()})],
        *[
            [unbelievable, piece(FIRST), piece(SECOND)]
            for unbelievable in (
                Message("result", {"record": RECORD.to_fields(), "transcript": TRANSCRIPT}),
                proved(certify(RECORD, (X, Y, PeerId("z")), voters=(Y,))),
                proved(certify(RECORD, fingerprint="g")),
                proved(certify(committed(4, HONEST)[0].record)),
                proved(certify(replace(RECORD, lineage=Lineage("m")))),
                told({"digests": ["other", "other"]}),
            )
        ],
        [told({"epoch": 4})],
        [told({"epoch": float("inf")})],
        [told({"lineage": "m"})],
        [told()],
        [told(codec="bfloat16"), piece(FIRST[:2]), piece(SECOND[:4])],
        [told(codec="nonsense")],
        [told(part_elements=0)],
        [told(part_elements=1 << 40)],
        [told(missing=[[0, 0, ["x"]]]), piece(FIRST), piece(SECOND)],
        [told(missing=[[0, 0, [0]]]), piece(FIRST), piece(SECOND)],
        [told(), piece(SECOND), piece(FIRST)],
        [told(), piece(FIRST[:-1])],
        [told(), piece(FIRST + b"\0")],
        [told(), piece(b"")],
        [told(), piece(FIRST, start=1)],
        [told(), piece(FIRST, start="0")],
        [told(), Message("piece", {}, FIRST)],
        [told(), piece(FIRST, kind="lump")],
        [told(), piece(np.array([np.nan], "<f4").tobytes())],
        [told(), piece(np.array([np.inf], "<f4").tobytes())],
        [told(), piece(np.array([1.5], "<f4").tobytes()), piece(SECOND)],
    ],
)
def test_a_hostile_donor_is_passed_over_and_the_next_one_is_asked(answers: list[Message]) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:

            async def lie(stream: Stream) -> None:
                await stream.receive(timeout_s=1)
                for message in answers:
                    await stream.send(message, timeout_s=1)
                await stream.receive(timeout_s=60)  # thanks, if it is believed

            await network.join("liar").serve(RESULTS_PROTOCOL, lie)
            donor = history(network, "donor")
            await donor.serve()
            keep(donor, *committed(3, HONEST))
            ours = history(network, "asker")
            assert await ours.fetch([PeerId("liar")], (3, L), 3) is None
            got = await ours.fetch([PeerId("liar"), PeerId("donor")], (3, L), 3)
            assert got is not None
            assert np.array_equal(got.mean, HONEST)

    run(main())


@pytest.mark.parametrize("codec", ["none", "float16", "int8", "int4"])
def test_what_was_encoded_and_what_lacked_somebody_is_served_as_it_travelled(codec: str) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            donor = history(network, "donor")
            await donor.serve()
            encoded = codec_by_name(codec)
            sent = random_vector(3 * PART)
            parts = np.split(sent, 6)
            mean = np.concatenate([encoded.decode(encoded.encode(part), len(part)) for part in parts])
            keep(donor, *committed(3, mean, codec=codec, part_elements=PART // 2, missing={(1, 2): (0, 4)}))
            got = await history(network, "asker").fetch([PeerId("donor")], (3, L), len(mean))
            assert got is not None
            assert got.mean.tobytes() == mean.tobytes()
            num_bytes = sum(len(message.payload) for *_, message in network.sent)
            assert num_bytes < 1.1 * encoded.encoded_bytes(len(mean))

    run(main())


def test_a_peer_that_keeps_half_precision_serves_the_bytes_that_all_got() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            donor = history(network, "donor")
            await donor.serve()
            exact = random_vector(100)
            data = {(0, 0): exact[:50].tobytes(), (1, 0): exact[50:].tobytes()}
            theirs, how = committed(3, exact, kept=data)
            keep(donor, replace(theirs, mean=exact.astype(np.float16)), how)
            got = await history(network, "asker").fetch([PeerId("donor")], (3, L), 100)
            assert got is not None
            assert got.mean.tobytes() == exact.tobytes()

    run(main())


@pytest.mark.parametrize("frozen", [1, 2, 3])
def test_donors_that_say_nothing_cost_a_silence_each_and_less_once_it_is_known_how_long_pauses_are(frozen: int) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:

            async def sleep(stream: Stream) -> None:
                await asyncio.sleep(1000)

            sleepers = [PeerId(f"sleeper-{number}") for number in range(frozen)]
            for name in sleepers:
                await network.join(name).serve(RESULTS_PROTOCOL, sleep)
            donor = history(network, "donor")
            await donor.serve()
            keep(donor, *committed(3, random_vector(40 * PART)))
            ours = history(network, "asker")
            for limit_s in (3.0, 1.5):
                began_s = asyncio.get_running_loop().time()
                assert await ours.fetch([*sleepers, PeerId("donor")], (3, L), 40 * PART) is not None
                assert asyncio.get_running_loop().time() - began_s < frozen * (limit_s + 0.3)

    run(main())


def test_one_that_brings_far_less_than_our_link_carries_is_overtaken() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            ours, honest = committed(3, random_vector(40 * PART))

            async def trickle(stream: Stream) -> None:
                await stream.receive(timeout_s=1)
                fields = certify(ours.record).to_fields() | {"transcript": honest.to_fields()}
                await stream.send(Message("result", fields), timeout_s=1)
                for result in honest.results(ours.record, ours.mean):
                    await asyncio.sleep(1.0)
                    await stream.send(piece(bytes(result.data)), timeout_s=1)

            await network.join("slow").serve(RESULTS_PROTOCOL, trickle)
            donor = history(network, "donor")
            await donor.serve()
            keep(donor, ours, honest)
            links = Links(asyncio.get_running_loop().time)
            links.downlink.believe(Rate(8e6, is_limit=True), 1.0)
            asker = history(network, "asker", links=links)
            began_s = asyncio.get_running_loop().time()
            assert await asker.fetch([PeerId("slow"), PeerId("donor")], (3, L), 40 * PART) is not None
            assert asyncio.get_running_loop().time() - began_s < 5.0

    run(main())
