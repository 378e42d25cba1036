"""Whole exchanges through the real butterfly: what comes out, which streams it takes, what it holds."""

import asyncio

import numpy as np
import pytest

from collab.averaging.buffers import Buffers
from collab.averaging.division import Job
from collab.averaging.encodings import Encodings
from collab.averaging.exchange import AHEAD_BYTES, SMALLEST_AHEAD, Bring, Exchange, Holding
from collab.averaging.messages import Group, Member
from collab.averaging.plan import PART_ELEMENTS
from collab.averaging.reduction import Result
from collab.errors import BadMessage, BadPart
from collab.types import Lineage, PeerId
from tests.averaging.butterflies import (
    LENGTH,
    NONE,
    SMALL_PART,
    Exchanged,
    Failed,
    Streams,
    Swarm,
    break_a_part,
    members,
    random_vector,
    swarm_of,
)
from tests.averaging.spans import equal_shares
from tests.fakes import run

# -- what comes out ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", ["ab", "abc"])
@pytest.mark.parametrize("codec", ["none", "float16", "int8"])
def test_float16_vectors_give_float16_means_the_same_for_all(names: str, codec: str) -> None:
    async def talk(swarm: Swarm, network: Streams) -> None:
        vectors = {name: random_vector(seed).astype(np.float16) for seed, name in enumerate(names)}
        kept = {name: vector.copy() for name, vector in vectors.items()}
        means = await swarm.exchange(swarm.group(members(names, codec), result_codec=codec), vectors)
        assert {mean.dtype for mean in means.values()} == {np.dtype(np.float16)}
        assert len({mean.tobytes() for mean in means.values()}) == 1
        exact = sum(vector.astype(np.float64) for vector in kept.values()) / len(names)
        assert np.abs(means["a"] - exact).max() < (0.05 if codec == "int8" else 2e-3)
        assert all(np.array_equal(vectors[name], kept[name]) for name in names)
        assert not swarm.owed_by_senders().any()

    swarm_of(names, talk)


@pytest.mark.parametrize("reducers", ["a", "ab", "d", "abcd"])
def test_members_that_only_receive_get_the_mean_and_send_no_part(reducers: str) -> None:
    async def talk(swarm: Swarm, network: Streams) -> None:
        vectors = {"a": random_vector(1), "b": random_vector(2), "c": np.full(LENGTH, np.nan, np.float32), "d": None}
        everybody = (*members("ab", weight=2.0), Member(PeerId("c"), 0.0), Member(PeerId("d"), 0.0, receives=False))
        means = await swarm.exchange(swarm.group(everybody, reducers=reducers), vectors)
        assert means["c"] == pytest.approx((vectors["a"] + vectors["b"]) / 2, abs=1e-6)
        assert means["a"].tobytes() == means["b"].tobytes() == means["c"].tobytes()
        assert means["d"] is None
        assert {sender for sender, _, _, message in network.sent if message.kind == "part"} <= {"a", "b"}
        assert not [to for _, to, _, message in network.sent if message.kind == "result" and to == "d"]

    swarm_of("abcd", talk)


def test_everything_that_was_sent_is_acknowledged_when_an_exchange_ends() -> None:
    async def talk(swarm: Swarm, network: Streams) -> None:
        for _ in range(3):
            await swarm.exchange(swarm.group(members("abc")), {name: random_vector(1) for name in "abc"})
            await asyncio.sleep(1.0)
            for peer in swarm.peers.values():
                assert [peer.links.uplink.path(PeerId(name)).under_way_bytes for name in "abc"] == [0, 0, 0]

    swarm_of("abc", talk)


# -- streams -----------------------------------------------------------------------------------------------------------


def test_streams_serve_round_after_round() -> None:
    async def talk(swarm: Swarm, network: Streams) -> None:
        for _ in range(10):
            await swarm.exchange(swarm.group(members("abc")), {name: random_vector(1) for name in "abc"})
        assert len(network.opened) == 6

    swarm_of("abc", talk)


@pytest.mark.parametrize("which", ["served", "opened"])
def test_a_stream_that_broke_between_rounds_is_opened_again_and_the_round_succeeds(which: str) -> None:
    async def talk(swarm: Swarm, network: Streams) -> None:
        vectors = {name: random_vector(seed) for seed, name in enumerate("abc")}
        first = await swarm.exchange(swarm.group(members("abc")), vectors)
        for stream in network.opened[:2]:
            broken = stream if which == "served" else stream.other
            assert broken is not None
            broken.close()
        await asyncio.sleep(1.0)
        second = await swarm.exchange(swarm.group(members("abc")), vectors)
        assert {mean.tobytes() for mean in second.values()} == {mean.tobytes() for mean in first.values()}
        assert len(network.opened) == 8

    swarm_of("abc", talk)


def test_after_a_round_that_broke_the_next_one_succeeds() -> None:
    async def talk(swarm: Swarm, network: Streams) -> None:
        vectors = {name: random_vector(seed) for seed, name in enumerate("abc")}
        break_a_part(network, 4)
        outcomes = await swarm.try_exchange(swarm.group(members("abc")), vectors)
        assert any(isinstance(outcome, Failed) for outcome in outcomes.values())
        network.tamper = None
        await swarm.exchange(swarm.group(members("abc")), vectors)

    swarm_of("abc", talk)


# -- memory ------------------------------------------------------------------------------------------------------------


def test_a_contributor_runs_no_more_parts_ahead_of_the_slowest_than_agreed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collab.averaging.exchange.AHEAD_BYTES", 0)

    async def talk(swarm: Swarm, network: Streams) -> None:
        vectors = {name: random_vector(seed) for seed, name in enumerate("abc")}
        group = swarm.group(members("abc"), reducers="b")
        early = asyncio.create_task(swarm.try_exchange(group, {name: vectors[name] for name in "ab"}))
        await asyncio.sleep(5.0)
        parts = [message for _, _, _, message in network.sent if message.kind == "part"]
        assert [message.fields["index"] for message in parts] == list(range(SMALLEST_AHEAD))
        late = await swarm.try_exchange(group, {"c": vectors["c"]})
        assert isinstance(late["c"], Exchanged)
        assert all(isinstance(outcome, Exchanged) for outcome in (await early).values())

    swarm_of("abc", talk)


@pytest.mark.parametrize("num_contributors", [2, 8, 100])
@pytest.mark.parametrize("part_elements", [PART_ELEMENTS, 8 * PART_ELEMENTS])
def test_a_reducer_holds_a_bounded_number_of_bytes_for_want_of_the_slowest(
    num_contributors: int, part_elements: int
) -> None:
    names = tuple(PeerId(f"p{number}") for number in range(num_contributors))
    group = Group(
        round_id="r",
        epoch=0,
        lineage=Lineage("l"),
        num_elements=LENGTH,
        leader=names[0],
        members=tuple(Member(name, 1.0) for name in names),
        spans=equal_shares(LENGTH, names[:1]),
        part_elements=part_elements,
    )
    exchange = Exchange(group, names[1], Bring(random_vector(1)), Encodings(), Buffers())
    part_bytes = 4 * part_elements * num_contributors
    assert exchange.ahead_parts * part_bytes <= max(AHEAD_BYTES, SMALLEST_AHEAD * part_bytes)


# -- results of a reducer ----------------------------------------------------------------------------------------------


def test_results_are_taken_in_their_order_and_only_if_they_are_numbers() -> None:
    async def main() -> None:
        names = (PeerId("a"), PeerId("b"))
        group = Group(
            round_id="r",
            epoch=0,
            lineage=Lineage("l"),
            num_elements=3 * SMALL_PART,
            leader=names[0],
            members=tuple(Member(name, 1.0) for name in names),
            spans=equal_shares(3 * SMALL_PART, names[:1]),
            part_elements=SMALL_PART,
        )
        vector = np.zeros(3 * SMALL_PART, np.float32)
        exchange = Exchange(group, names[1], Bring(vector), Encodings(), Buffers())
        flow = Holding(exchange, Job(group.spans[0], valid=3))
        good = NONE.encode(np.ones(SMALL_PART, np.float32))
        for index in (-1, 1, 2**40):
            with pytest.raises(BadMessage):
                flow.take(index, Result(good))
        with pytest.raises(BadPart):
            flow.take(0, Result(NONE.encode(np.full(SMALL_PART, np.inf, np.float32))))
        with pytest.raises(BadPart):
            flow.take(0, Result(NONE.encode(np.ones(SMALL_PART - 1, np.float32))))
        assert flow.num_held == 0
        flow.take(0, Result(good))
        with pytest.raises(BadMessage):
            flow.take(0, Result(good))
        assert flow.num_held == 1

    run(main())
