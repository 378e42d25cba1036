"""One reducer's arithmetic and what it refuses."""

import asyncio
import hashlib
import itertools
import math

import numpy as np
import pytest

from collab.averaging.reduction import PART_ELEMENTS, Reduction, part_edges
from collab.compression.base import codec_by_name
from collab.errors import BadPart
from collab.types import PeerId, Vector
from tests.fakes import run

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")
NONE, HALF = codec_by_name("none"), codec_by_name("float16")


def vector(*values: float) -> Vector:
    return np.array(values, np.float32)


def test_parts_cut_a_span_at_fixed_places_and_the_last_one_may_be_short() -> None:
    assert part_edges(1) == [(0, 1)]
    assert part_edges(PART_ELEMENTS) == [(0, PART_ELEMENTS)]
    assert part_edges(PART_ELEMENTS + 1) == [(0, PART_ELEMENTS), (PART_ELEMENTS, PART_ELEMENTS + 1)]
    assert part_edges(0) == []


def test_the_mean_is_weighted_by_samples() -> None:
    async def main() -> Vector:
        reduction = Reduction(2, {A: 1.0, B: 3.0}, NONE)
        reduction.add(A, 0, NONE.encode(vector(8, -4)))
        reduction.add(B, 0, NONE.encode(vector(0, 4)))
        return await reduction.finished_span()

    assert np.array_equal(run(main()), vector(2, 2))


def test_the_order_of_arrival_never_changes_the_bytes() -> None:
    generator = np.random.default_rng(1)
    vectors = {peer: generator.normal(size=100).astype(np.float32) * 10**i for i, peer in enumerate((A, B, C))}
    weights = {A: 3.0, B: 7.0, C: 11.0}

    async def main(order: tuple[PeerId, ...], own: PeerId | None) -> bytes:
        reduction = Reduction(100, weights, NONE)
        for peer in order:
            if peer == own:
                reduction.add_own(peer, vectors[peer])
            else:
                reduction.add(peer, 0, NONE.encode(vectors[peer]))
        return bytes(await reduction.result(0))

    results = {run(main(order, own)) for order in itertools.permutations((A, B, C)) for own in (None, A, B, C)}
    assert len(results) == 1
    mean = np.frombuffer(results.pop(), "<f4")
    exact = sum(vectors[p].astype(np.float64) * weights[p] for p in weights) / 21
    assert np.allclose(mean, exact, rtol=1e-5, atol=1e-6)


def test_a_part_is_finished_as_soon_as_its_last_contribution_is_there() -> None:
    async def main() -> None:
        length = 2 * PART_ELEMENTS + 3
        reduction = Reduction(length, {A: 1.0, B: 1.0}, NONE)
        assert reduction.num_parts == 3
        reduction.add_own(A, np.ones(length, np.float32))
        waiting = [asyncio.ensure_future(reduction.result(index)) for index in range(3)]
        reduction.add(B, 1, NONE.encode(np.full(PART_ELEMENTS, 3, np.float32)))
        await asyncio.sleep(0.01)
        assert [task.done() for task in waiting] == [False, True, False]
        reduction.add(B, 2, NONE.encode(vector(5, 5, 5)))
        reduction.add(B, 0, NONE.encode(np.full(PART_ELEMENTS, -1, np.float32)))
        span = await reduction.finished_span()
        expected = np.concatenate([np.zeros(PART_ELEMENTS), np.full(PART_ELEMENTS, 2.0), [3, 3, 3]])
        assert np.array_equal(span, expected.astype(np.float32))
        encoded = b"".join([bytes(await task) for task in waiting])
        assert await reduction.digest() == hashlib.sha256(encoded).hexdigest()

    run(main())


def test_the_reducer_itself_holds_the_decoding_of_what_the_others_get() -> None:
    async def main() -> None:
        values = vector(0.1, 1 / 3, 1e-9)
        reduction = Reduction(3, {A: 1.0, B: 2.0}, HALF)
        reduction.add_own(A, values)
        reduction.add(B, 0, HALF.encode(values))
        span = await reduction.finished_span()
        assert span.tobytes() == HALF.decode(await reduction.result(0), 3).tobytes()

    run(main())


def test_large_finite_contributions_have_a_finite_mean_in_half_precision() -> None:
    async def main() -> Vector:
        reduction = Reduction(2, {A: 1.0, B: 1.0}, HALF)
        reduction.add_own(A, vector(3e38, -3e38))
        reduction.add(B, 0, HALF.encode(vector(3e38, -3e38)))
        return await reduction.finished_span()

    assert np.array_equal(run(main()), vector(65504, -65504))


@pytest.mark.parametrize(
    ("peer", "index", "data", "reason"),
    [
        (B, 0, vector(math.nan, 1), "not_finite"),
        (B, 0, vector(1, math.inf), "not_finite"),
        (B, 0, vector(-math.inf, 1), "not_finite"),
        (A, 0, vector(1, 1), "twice"),
        (C, 0, vector(1, 1), "not_a_contributor"),
        (B, 1, vector(1, 1), "no_such_part"),
        (B, -1, vector(1, 1), "no_such_part"),
        (B, 2**62, vector(1, 1), "no_such_part"),
        (B, 0, vector(1), "wrong_length"),
        (B, 0, vector(1, 1, 1), "wrong_length"),
        (B, 0, vector(), "wrong_length"),
    ],
)
def test_a_part_that_cannot_be_used_is_refused_and_changes_nothing(
    peer: PeerId, index: int, data: Vector, reason: str
) -> None:
    async def main() -> None:
        reduction = Reduction(2, {A: 1.0, B: 1.0}, NONE)
        reduction.add(A, 0, NONE.encode(vector(1, 2)))
        with pytest.raises(BadPart) as caught:
            reduction.add(peer, index, NONE.encode(data))
        assert caught.value.reason == reason
        reduction.add(B, 0, NONE.encode(vector(3, 4)))
        assert np.array_equal(await reduction.finished_span(), vector(2, 3))

    run(main())


def test_a_part_after_the_result_is_there_is_refused_and_leaves_the_result_alone() -> None:
    async def main() -> None:
        reduction = Reduction(1, {A: 1.0}, NONE)
        reduction.add(A, 0, NONE.encode(vector(1)))
        with pytest.raises(BadPart, match="twice"):
            reduction.add(A, 0, NONE.encode(vector(5)))
        assert np.array_equal(await reduction.finished_span(), vector(1))

    run(main())


def test_a_failure_reaches_who_waits_and_who_comes_later_but_no_result_that_is_there() -> None:
    async def main() -> None:
        reduction = Reduction(PART_ELEMENTS + 1, {A: 1.0}, NONE)
        reduction.add(A, 0, NONE.encode(np.ones(PART_ELEMENTS, np.float32)))
        waiting = asyncio.ensure_future(reduction.result(1))
        await asyncio.sleep(0)
        reduction.fail(BadPart("sender_lost", "a is gone"))
        reduction.fail(BadPart("other", "a second reason does not replace the first"))
        with pytest.raises(BadPart) as first:
            await waiting
        with pytest.raises(BadPart) as later:
            await reduction.result(1)
        with pytest.raises(BadPart):
            await reduction.finished_span()
        with pytest.raises(BadPart):
            await reduction.digest()
        assert (first.value.reason, later.value.reason) == ("sender_lost", "sender_lost")
        assert np.frombuffer(await reduction.result(0), "<f4").all()

    run(main())


def test_an_innocent_contributor_is_not_blamed_for_a_part_that_comes_after_a_failure() -> None:
    async def main() -> None:
        reduction = Reduction(1, {A: 1.0, B: 1.0}, NONE)
        reduction.fail(BadPart("not_finite", "a sent NaN"))
        reduction.add(B, 0, NONE.encode(vector(1)))
        with pytest.raises(BadPart, match="a sent NaN"):
            await reduction.result(0)

    run(main())


def test_a_waiter_that_is_cancelled_does_not_cancel_the_result() -> None:
    async def main() -> None:
        reduction = Reduction(1, {A: 1.0}, NONE)
        waiting = asyncio.ensure_future(reduction.result(0))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
        reduction.add(A, 0, NONE.encode(vector(1)))
        assert np.array_equal(await reduction.finished_span(), vector(1))

    run(main())
