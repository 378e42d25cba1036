"""Catching up on missed rounds."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from collab.averaging import history
from collab.averaging.base import Committed
from collab.averaging.history import KEPT_ROUNDS, RESULTS_PROTOCOL, History
from collab.net.base import Stream
from collab.net.pieces import PIECE_BYTES
from collab.net.wire import Message
from collab.types import Lineage, PeerId, Vector
from tests.averaging.certifying import certify, make_verdicts
from tests.averaging.records import X, Y, make_record
from tests.fakes import FakeNetwork, make_ports, run

L = Lineage("l")


def committed(epoch: int, mean: Vector) -> Committed:
    return Committed(mean=mean, record=make_record(round_id=f"r{epoch}", epoch=epoch, lineage=L))


def make_history(network: FakeNetwork, name: str, fingerprint: str = "f") -> History:
    ports = make_ports(network.join(name))
    return History(ports.transport, fingerprint, make_verdicts(ports).believe)


def keep(donor: History, committed: Committed) -> None:
    donor.remember(committed, certify(committed.record).certificate)


def random_vector(num_elements: int) -> Vector:
    return np.random.default_rng(num_elements).normal(size=num_elements).astype(np.float32)


async def kept(network: FakeNetwork, epochs: Iterable[int], num_elements: int) -> list[int]:
    """Which of ``epochs`` the peer "donor" can still give."""
    ours = make_history(network, "asker")
    return [e for e in epochs if await ours.fetch([PeerId("donor")], e, L, num_elements) is not None]


@pytest.mark.parametrize("num_elements", [1, PIECE_BYTES // 4 - 1, PIECE_BYTES // 4, PIECE_BYTES // 4 + 1])
def test_a_missed_round_is_served_with_the_very_same_bytes(num_elements: int) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            donor = make_history(network, "donor")
            await donor.serve()
            original = committed(3, random_vector(num_elements))
            keep(donor, original)
            ours = make_history(network, "asker")
            got = await ours.fetch([PeerId("nobody"), PeerId("donor")], 3, L, num_elements)
            assert got is not None
            assert got.mean.tobytes() == original.mean.tobytes()
            assert got.record == original.record
            assert got.lineage == original.lineage

    run(main())


def test_only_the_last_rounds_are_kept() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            donor = make_history(network, "donor")
            await donor.serve()
            for epoch in range(KEPT_ROUNDS + 3):
                keep(donor, committed(epoch, random_vector(2)))
            assert await kept(network, range(KEPT_ROUNDS + 3), 2) == list(range(3, KEPT_ROUNDS + 3))

    run(main())


def test_only_so_many_bytes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "KEPT_BYTES", 1000)

    async def main() -> None:
        async with FakeNetwork() as network:
            donor = make_history(network, "donor")
            await donor.serve()
            for epoch in range(5):
                keep(donor, committed(epoch, random_vector(100)))
            assert await kept(network, range(5), 100) == [3, 4]
            keep(donor, committed(9, random_vector(251)))
            assert await kept(network, [9], 251) == []

    run(main())


@pytest.mark.parametrize(
    ("fingerprint", "epoch", "lineage"), [("other", 3, L), ("f", 2, L), ("f", 4, L), ("f", 3, Lineage("m"))]
)
def test_another_run_epoch_or_history_gets_nothing(fingerprint: str, epoch: int, lineage: Lineage) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            donor = make_history(network, "donor")
            await donor.serve()
            keep(donor, committed(3, random_vector(4)))
            ours = make_history(network, "asker", fingerprint)
            assert await ours.fetch([PeerId("donor")], epoch, lineage, 4) is None

    run(main())


HONEST = np.array([1, 2, 3], "<f4")
RECORD = committed(3, HONEST).record
PROVED = certify(RECORD)


@pytest.mark.parametrize(
    "answers",
    [
        [Message("unknown")],
        [Message("result", {"record": {}})],
        *[
            [Message("result", fields), Message("piece", {"start": 0}, HONEST.tobytes())]
            for fields in (
                {"record": RECORD.to_fields()},
                certify(RECORD, (X, Y, PeerId("z")), voters=(Y,)).to_fields(),
                certify(RECORD, fingerprint="g").to_fields(),
                {**PROVED.to_fields(), "record": {**RECORD.to_fields(), "digests": ["other"]}},
                certify(committed(4, HONEST).record).to_fields(),
                certify(replace(RECORD, lineage=Lineage("m"))).to_fields(),
            )
        ],
        [Message("result", {**PROVED.to_fields(), "record": {**RECORD.to_fields(), "epoch": 4}})],
        [Message("result", {**PROVED.to_fields(), "record": {**RECORD.to_fields(), "epoch": float("inf")}})],
        [Message("result", {**PROVED.to_fields(), "record": {**RECORD.to_fields(), "lineage": "m"}})],
        [Message("result", PROVED.to_fields())],
        *[
            [Message("result", PROVED.to_fields()), piece]
            for piece in (
                Message("piece", {"start": 0}, HONEST.tobytes()[:-1]),
                Message("piece", {"start": 0}, HONEST.tobytes() + b"\0"),
                Message("piece", {"start": 0}, b""),
                Message("piece", {"start": 1}, HONEST.tobytes()),
                Message("piece", {"start": "0"}, HONEST.tobytes()),
                Message("piece", {}, HONEST.tobytes()),
                Message("lump", {"start": 0}, HONEST.tobytes()),
                Message("piece", {"start": 0}, np.array([1, np.nan, 3], "<f4").tobytes()),
                Message("piece", {"start": 0}, np.array([1, np.inf, 3], "<f4").tobytes()),
            )
        ],
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
            donor = make_history(network, "donor")
            await donor.serve()
            keep(donor, committed(3, HONEST))
            ours = make_history(network, "asker")
            assert await ours.fetch([PeerId("liar")], 3, L, 3) is None
            got = await ours.fetch([PeerId("liar"), PeerId("donor")], 3, L, 3)
            assert got is not None
            assert np.array_equal(got.mean, HONEST)

    run(main())
