"""Rounds whose vector has a row for each of several windows: rows leave one by one, and their means come so."""

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from collab.averaging.base import Aborted, Committed, Contribution, Outcome
from collab.averaging.messages import ROUND_PROTOCOL, Group, Join, Member
from collab.averaging.plan import SMALLEST_PART_ELEMENTS, Span
from collab.averaging.rows import SHORTEST_ROW_S, folded, hub_of, padded, part_of_row, row_interval_s
from collab.errors import BadMessage
from collab.net.wire import Message
from collab.types import AnyVector, Lineage, PeerId, Vector
from tests.averaging.swarm import L, Rounds
from tests.fakes import FakeNetwork, run

LENGTH = 6


class Rows:
    """Windows whose rows are known before; who asks when they were over, and when their means came."""

    def __init__(self, rows: Vector, fails_at: int = -1) -> None:
        self._rows, self._fails_at = rows, fails_at
        self.vector = np.zeros(rows.size, np.float32)
        self.ended_s: list[float] = []
        self.means: dict[int, AnyVector | None] = {}
        self.came_s: dict[int, float] = {}

    @property
    def count(self) -> int:
        return len(self._rows)

    async def close(self, row: int) -> None:
        if row == self._fails_at:
            await asyncio.Event().wait()
        assert row == len(self.ended_s)
        self.ended_s.append(asyncio.get_running_loop().time())
        self.vector.reshape(self._rows.shape)[row] = self._rows[row]

    def put(self, row: int, mean: AnyVector | None) -> None:
        self.means[row] = mean
        self.came_s[row] = asyncio.get_running_loop().time()

    def contribution(self, weight: float) -> Contribution:
        return Contribution(epoch=0, lineage=L, vector=self.vector, weight=weight, windows=self)


async def average(rounds: Rounds, brings: dict[str, Rows], weights: dict[str, float]) -> dict[str, Outcome]:
    running = {
        name: asyncio.create_task(rounds.engines[name].average(rows.contribution(weights[name])))
        for name, rows in brings.items()
    }
    return {name: await task for name, task in running.items()}


def with_swarm(names: str, talk: Callable[[Rounds, FakeNetwork], object]) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, names[0])
            for name in names:
                await rounds.add_trainer(name)
            await talk(rounds, network)  # type: ignore[misc]

    run(main())


def brought(names: str, count: int, length: int = LENGTH) -> dict[str, Rows]:
    generator = np.random.default_rng(count)
    return {name: Rows(generator.normal(size=(count, length)).astype(np.float32)) for name in names}


def test_three_rows_of_two_peers_by_hand() -> None:
    """Each row's mean has the same weight for each peer, whatever samples stand behind it."""

    async def talk(rounds: Rounds, network: FakeNetwork) -> None:
        ours = Rows(np.array([[1, 2], [3, 4], [5, 6]], np.float32))
        theirs = Rows(np.array([[3, 0], [0, 0], [1, -6]], np.float32))
        outcomes = await average(rounds, {"a": ours, "b": theirs}, {"a": 100.0, "b": 1.0})
        for name, rows in (("a", ours), ("b", theirs)):
            outcome = outcomes[name]
            assert isinstance(outcome, Committed)
            assert outcome.mean.tolist() == [2, 1, 1.5, 2, 3, 0]
            assert dict(outcome.record.contributors) == {"a": 100.0, "b": 1.0}
            assert [rows.means[row].tolist() for row in range(3)] == [[2, 1], [1.5, 2], [3, 0]]  # type: ignore[union-attr]

    with_swarm("ab", talk)


@pytest.mark.parametrize("count", [2, 5, 17])
def test_a_row_leaves_when_its_window_is_over_and_its_mean_is_here_before_the_next_one_is(count: int) -> None:
    async def talk(rounds: Rounds, network: FakeNetwork) -> None:
        brings = brought("abc", count)
        outcomes = await average(rounds, brings, dict.fromkeys("abc", 3.0))
        assert len({outcome.mean.tobytes() for outcome in outcomes.values() if isinstance(outcome, Committed)}) == 1
        for rows in brings.values():
            between = np.diff(rows.ended_s)
            assert np.allclose(between, SHORTEST_ROW_S), "nothing is known of links and speeds"
            for row in range(count):
                assert 0 <= rows.came_s[row] - rows.ended_s[row] < SHORTEST_ROW_S / 2
            mean = np.mean([other._rows for other in brings.values()], axis=0)
            np.testing.assert_allclose([rows.means[row] for row in range(count)], mean, atol=1e-6)

    with_swarm("abc", talk)


def test_rows_of_several_parts_are_reduced_part_by_part_and_told_whole() -> None:
    async def talk(rounds: Rounds, network: FakeNetwork) -> None:
        brings = brought("abc", 4, padded(3 * SMALLEST_PART_ELEMENTS - 5))
        outcomes = await average(rounds, brings, dict.fromkeys("abc", 3.0))
        mean = np.mean([rows._rows for rows in brings.values()], axis=0)
        for name, rows in brings.items():
            outcome = outcomes[name]
            assert isinstance(outcome, Committed)
            np.testing.assert_allclose(outcome.mean.reshape(mean.shape), mean, atol=1e-6)
            assert sorted(rows.means) == [0, 1, 2, 3]

    with_swarm("abc", talk)


def test_a_round_of_one_window_says_nothing_of_rows() -> None:
    async def talk(rounds: Rounds, network: FakeNetwork) -> None:
        await rounds.average({name: np.ones(LENGTH, np.float32) for name in "ab"})
        said = [message for _, _, protocol, message in network.sent if protocol == ROUND_PROTOCOL]
        assert {message.kind for message in said} >= {"join", "begin"}
        assert not any({"rows", "row_s", "farthest_s"} & message.fields.keys() for message in said)

    with_swarm("ab", talk)


def test_who_makes_other_rows_of_its_vector_than_most_is_refused() -> None:
    async def talk(rounds: Rounds, network: FakeNetwork) -> None:
        brings = {**brought("abc", 3, 4), "d": brought("d", 2, 6)["d"]}
        outcomes = await average(rounds, brings, dict.fromkeys("abcd", 3.0))
        assert all(isinstance(outcomes[name], Committed) for name in "abc")
        refused = outcomes["d"]
        assert isinstance(refused, Aborted)
        assert "12 elements in 3 rows, yours has 12 in 2" in refused.text

    with_swarm("abcd", talk)


@pytest.mark.parametrize("victim", "abcd")
@pytest.mark.parametrize("after_rows", [1, 3])
def test_the_rest_of_a_round_goes_on_when_somebody_dies_in_it(victim: str, after_rows: int) -> None:
    """Whoever reduces all rows included, and the leader: survivors hold the same bytes, of rows that they told of."""

    async def talk(rounds: Rounds, network: FakeNetwork) -> None:
        brings = brought("abcd", 6)

        async def die() -> None:
            while len(brings[victim].ended_s) < after_rows:
                await asyncio.sleep(SHORTEST_ROW_S / 4)
            network.leave(victim)

        network.run(die())
        running = {
            name: asyncio.create_task(rounds.engines[name].average(brings[name].contribution(2.0))) for name in "abcd"
        }
        outcomes = {name: await task for name, task in running.items() if name != victim}
        running[victim].cancel()
        await asyncio.gather(running[victim], return_exceptions=True)
        results = [outcome for outcome in outcomes.values() if isinstance(outcome, Committed)]
        assert len(results) == 3, outcomes
        assert len({result.mean.tobytes() for result in results}) == 1
        record = results[0].record
        for row in range(6):
            first, stop = row * LENGTH, (row + 1) * LENGTH
            used = [n for n in "abcd" if any(low <= first and stop <= high for low, high in record.used_of(PeerId(n)))]
            assert set(used) >= set("abcd") - {victim}
            mean = np.mean([brings[name]._rows[row] for name in used], axis=0)
            np.testing.assert_allclose(results[0].mean[first:stop], mean, atol=1e-6)
            for name in outcomes:
                np.testing.assert_allclose(brings[name].means[row], mean, atol=1e-6)  # type: ignore[arg-type]
        assert any(stop > start for start, stop in record.used_of(PeerId(victim))) or after_rows == 1

    with_swarm("abcd", talk)


def test_windows_that_were_over_are_not_brought_again_by_the_same_call() -> None:
    """A round that is lost after its first window was over goes back to whoever fills the windows."""

    async def talk(rounds: Rounds, network: FakeNetwork) -> None:
        def tamper(sender: PeerId, to: PeerId, protocol: str, message: Message) -> Message | None:
            return None if message.kind in ("part", "vote") else message

        network.tamper = tamper
        brings = brought("ab", 3)
        outcomes = await average(rounds, brings, dict.fromkeys("ab", 3.0))
        for name, outcome in outcomes.items():
            assert isinstance(outcome, Aborted)
            assert len(outcome.rounds) == 1
            assert len(brings[name].ended_s) <= 3

    with_swarm("ab", talk)


# -- plans -----------------------------------------------------------------------------------------------------------


def join(rows: int = 8, *, farthest_s: float = 0.0, up: float = 0.0, is_full: bool = False, **other: object) -> Join:
    fields = {"fingerprint": "f", "epoch": 0, "lineage": Lineage("l"), "num_elements": 800, "weight": 1.0}
    fields |= {"can_reduce": True, "rows": rows, "farthest_s": farthest_s, "up_bytes_per_s": up, "up_is_limit": is_full}
    return Join(**{**fields, **other})  # type: ignore[arg-type]


def test_all_rows_go_to_who_is_nearest_to_whoever_is_farthest_from_it() -> None:
    ways = {"ohio": 0.155, "oregon": 0.13, "tokyo": 0.215, "london": 0.215}
    joins = {PeerId(name): join(farthest_s=way) for name, way in ways.items()}
    assert hub_of(joins, 100) == "oregon"
    joins[PeerId("near")] = join(farthest_s=0.01, can_reduce=False)
    assert hub_of(joins, 100) == "oregon"
    joins[PeerId("oregon")] = join(farthest_s=0.13, up=20_000.0, is_full=True)
    assert hub_of(joins, 1000) == "ohio", "its own link needs longer for a row than the way saves"


def test_rows_are_a_batch_apart_but_not_denser_than_ways_and_links_ask_for() -> None:
    joins = {PeerId(name): join(farthest_s=0.2) for name in "ab"}
    group = brought_group(joins)
    assert row_interval_s(joins, group.spans, 8, 0.5) == 0.5
    assert row_interval_s(joins, group.spans, 8, 0.001) == pytest.approx(0.05)
    assert row_interval_s(joins, group.spans, 8, 100.0) == pytest.approx(1.0), "a round is not for minutes"
    assert row_interval_s(joins, group.spans, 8, 3.0, least_s=3.0) == 3.0, "unless the run asks for it"
    assert row_interval_s(joins, group.spans, 8, 0.0) == 0.0, "nobody computes beside the last round"
    slow = joins | {PeerId("b"): join(farthest_s=0.2, up=200.0, is_full=True)}
    assert row_interval_s(slow, group.spans, 8, 0.5) == pytest.approx(1.25 * 2.0)


def brought_group(joins: dict[PeerId, Join]) -> Group:
    members = tuple(Member(peer, 1.0) for peer in joins)
    return Group(
        round_id="r", epoch=0, lineage=Lineage("l"), num_elements=800, leader=PeerId("a"), members=members,
        spans=(Span(PeerId("a"), 0, 800),), part_elements=100, rows=8, row_s=0.1,
    )


def test_begin_says_what_rows_there_are() -> None:
    group = brought_group({PeerId("a"): join(), PeerId("b"): join()})
    assert Group.from_message(group.to_message()) == group
    assert Join.from_message(join().to_message()) == join()


@pytest.mark.parametrize(
    "fields",
    [{"rows": 0}, {"rows": 7}, {"rows": 300}, {"row_s": -1.0}, {"row_s": float("nan")}, {"part_elements": 160}],
)
def test_begin_with_rows_that_cannot_be_is_refused(fields: dict[str, object]) -> None:
    message = brought_group({PeerId("a"): join(), PeerId("b"): join()}).to_message()
    message.fields.update(fields)
    with pytest.raises(BadMessage):
        Group.from_message(message)


@pytest.mark.parametrize("num_elements", [1, 2410, 8192, 8193, 40_000, 1_000_003])
@pytest.mark.parametrize("longest", [8192, 16_384, 131_072])
def test_no_part_is_of_two_rows(num_elements: int, longest: int) -> None:
    row = padded(num_elements)
    part = part_of_row(longest, row)
    assert num_elements <= row < num_elements + SMALLEST_PART_ELEMENTS
    assert row % part == 0
    assert min(row, SMALLEST_PART_ELEMENTS) <= part <= max(longest, SMALLEST_PART_ELEMENTS)


def test_what_was_used_of_a_vector_is_told_row_by_row() -> None:
    used = ((0, 5), (12, 30))
    assert folded(used, 0, 10, 8) == [(0, 5)]
    assert folded(used, 1, 10, 8) == [(2, 8)]
    assert folded(used, 2, 10, 8) == [(0, 8)]
    assert folded(used, 3, 10, 8) == []
