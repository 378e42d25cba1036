"""One reducer's arithmetic."""

import asyncio
import itertools

import numpy as np
import pytest

from collab.averaging.plan import PART_ELEMENTS
from collab.averaging.reduction import Reduction, Work, part_edges
from collab.compression.base import Buffer, codec_by_name
from collab.errors import BadPart
from collab.types import PeerId, Vector
from tests.averaging.reductions import HALF, NONE, A, B, C, make_reduction, mean_of, vector
from tests.fakes import run


@pytest.mark.parametrize("part_elements", [1, PART_ELEMENTS, 8 * PART_ELEMENTS])
def test_parts_cut_a_span_at_fixed_places_and_the_last_one_may_be_short(part_elements: int) -> None:
    assert part_edges(1, part_elements) == [(0, 1)]
    assert part_edges(part_elements, part_elements) == [(0, part_elements)]
    assert part_edges(part_elements + 1, part_elements) == [(0, part_elements), (part_elements, part_elements + 1)]
    assert part_edges(0, part_elements) == []


def test_the_mean_is_weighted_by_samples() -> None:
    async def main() -> Vector:
        reduction = make_reduction(2, {A: 1.0, B: 3.0})
        reduction.add(A, 0, NONE.encode(vector(8, -4)))
        reduction.add(B, 0, NONE.encode(vector(0, 4)))
        return await mean_of(reduction)

    assert np.array_equal(run(main()), vector(2, 2))


def test_the_order_of_arrival_and_who_reduces_never_change_the_bytes() -> None:
    generator = np.random.default_rng(1)
    vectors = {peer: generator.normal(size=100).astype(np.float32) * 10**i for i, peer in enumerate((A, B, C))}
    weights = {A: 3.0, B: 7.0, C: 11.0}

    async def main(order: tuple[PeerId, ...], own: PeerId | None) -> bytes:
        reduction = make_reduction(100, weights, own={own: vectors[own]} if own else None)
        for peer in order:
            if peer != own:
                reduction.add(peer, 0, NONE.encode(vectors[peer]))
        return bytes((await reduction.result(0)).data)

    results = {run(main(order, own)) for order in itertools.permutations((A, B, C)) for own in (None, A, B, C)}
    assert len(results) == 1
    mean = np.frombuffer(results.pop(), "<f4")
    exact = sum(vectors[p].astype(np.float64) * weights[p] for p in weights) / 21
    assert np.allclose(mean, exact, rtol=1e-5, atol=1e-6)


def test_a_part_is_finished_as_soon_as_its_last_contribution_is_there() -> None:
    async def main() -> None:
        length = 2 * PART_ELEMENTS + 3
        reduction = make_reduction(length, {A: 1.0, B: 1.0}, own={A: np.ones(length, np.float32)})
        assert reduction.num_parts == 3
        waiting = [asyncio.ensure_future(reduction.result(index)) for index in range(3)]
        reduction.add(B, 1, NONE.encode(np.full(PART_ELEMENTS, 3, np.float32)))
        await asyncio.sleep(0.01)
        assert [task.done() for task in waiting] == [False, True, False]
        reduction.add(B, 2, NONE.encode(vector(5, 5, 5)))
        reduction.add(B, 0, NONE.encode(np.full(PART_ELEMENTS, -1, np.float32)))
        results = [bytes((await task).data) for task in waiting]
        expected = np.concatenate([np.zeros(PART_ELEMENTS), np.full(PART_ELEMENTS, 2.0), [3, 3, 3]])
        assert b"".join(results) == expected.astype("<f4").tobytes()
        await reduction.finished()

    run(main())


def test_own_parts_are_asked_for_once_and_only_when_the_last_remote_part_has_come() -> None:
    async def main() -> None:
        asked: list[tuple[int, int]] = []

        def own_part(start: int, stop: int) -> Vector:
            asked.append((start, stop))
            return np.zeros(stop - start, np.float32)

        work = Work(
            num_elements=PART_ELEMENTS + 1,
            part_elements=PART_ELEMENTS,
            weights={A: 1.0, B: 1.0, C: 1.0},
            codecs={B: NONE, C: NONE},
            own_part=own_part,
            encode=lambda start, mean: NONE.encode(mean),
            readers=2,
        )
        reduction = Reduction(work)
        reduction.add(B, 1, NONE.encode(vector(1)))
        reduction.add(B, 0, NONE.encode(np.ones(PART_ELEMENTS, np.float32)))
        assert asked == []
        reduction.add(C, 1, NONE.encode(vector(1)))
        assert asked == [(PART_ELEMENTS, PART_ELEMENTS + 1)]
        reduction.add(C, 0, NONE.encode(np.ones(PART_ELEMENTS, np.float32)))
        assert asked == [(PART_ELEMENTS, PART_ELEMENTS + 1), (0, PART_ELEMENTS)]
        assert reduction.missing() == []

    run(main())


def test_a_reducer_that_contributes_alone_is_finished_at_once() -> None:
    async def main() -> None:
        values = np.arange(PART_ELEMENTS + 5, dtype=np.float32)
        reduction = make_reduction(len(values), {A: 2.0}, own={A: values})
        await reduction.finished()
        results = [bytes((await reduction.result(index)).data) for index in range(2)]
        assert b"".join(results) == values.astype("<f4").tobytes()

    run(main())


def test_the_reducer_learns_of_the_encoding_that_the_others_get() -> None:
    async def main() -> None:
        encoded: list[tuple[int, Buffer]] = []

        def encode(start: int, mean: Vector) -> Buffer:
            encoded.append((start, HALF.encode(mean)))
            return encoded[-1][1]

        values = vector(0.1, 1 / 3, 1e-9)
        reduction = Reduction(
            Work(
                num_elements=3,
                part_elements=PART_ELEMENTS,
                weights={A: 1.0, B: 2.0},
                codecs={B: HALF},
                own_part=lambda start, stop: values[start:stop],
                encode=encode,
                readers=1,
            )
        )
        reduction.add(B, 0, HALF.encode(values))
        assert encoded == [(0, (await reduction.result(0)).data)]

    run(main())


def test_contributors_of_one_round_may_encode_differently() -> None:
    async def main() -> Vector:
        codecs = {A: codec_by_name("int8"), B: codec_by_name("none"), C: codec_by_name("bfloat16")}
        reduction = Reduction(
            Work(
                num_elements=4,
                part_elements=PART_ELEMENTS,
                weights={A: 1.0, B: 1.0, C: 2.0},
                codecs=codecs,
                own_part=lambda start, stop: vector(),
                encode=lambda start, mean: NONE.encode(mean),
                readers=1,
            )
        )
        for peer, codec in codecs.items():
            reduction.add(peer, 0, codec.encode(vector(1, -1, 1, 1)))
        return await mean_of(reduction)

    assert run(main()) == pytest.approx(vector(1, -1, 1, 1), abs=1e-6)


def test_a_result_is_forgotten_when_every_reader_has_taken_it() -> None:
    async def main() -> None:
        reduction = make_reduction(1, {A: 1.0}, readers=2)
        reduction.add(A, 0, NONE.encode(vector(7)))
        for _ in range(2):
            assert np.frombuffer((await reduction.result(0)).data, "<f4") == 7
        with pytest.raises(BadPart, match="given away"):
            await reduction.result(0)
        await reduction.finished()

    run(main())


def test_who_is_missing_is_said_of_the_first_part_that_is_not_finished() -> None:
    async def main() -> None:
        reduction = make_reduction(PART_ELEMENTS + 1, {A: 1.0, B: 1.0, C: 1.0})
        assert reduction.missing() == [A, B, C]
        reduction.add(B, 0, NONE.encode(np.ones(PART_ELEMENTS, np.float32)))
        reduction.add(A, 1, NONE.encode(vector(1)))
        assert reduction.missing() == [A, C]
        assert reduction.num_of.total() == 2

    run(main())


def test_large_finite_contributions_have_a_finite_mean_in_half_precision() -> None:
    async def main() -> Vector:
        reduction = make_reduction(2, {A: 1.0, B: 1.0}, codec=HALF, own={A: vector(3e38, -3e38)})
        reduction.add(B, 0, HALF.encode(vector(3e38, -3e38)))
        return await mean_of(reduction, HALF)

    assert np.array_equal(run(main()), vector(65504, -65504))
