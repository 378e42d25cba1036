"""One reducer's arithmetic and what it refuses."""

import asyncio
import hashlib
import itertools
import math

import numpy as np
import pytest

from collab.averaging.plan import PART_ELEMENTS
from collab.averaging.reduction import Reduction, SenderFailed, Work, part_edges
from collab.compression.base import Buffer, Codec, codec_by_name
from collab.errors import BadPart
from collab.types import PeerId, Vector
from tests.fakes import run

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")
NONE, HALF = codec_by_name("none"), codec_by_name("float16")


def vector(*values: float) -> Vector:
    return np.array(values, np.float32)


def make_reduction(
    num_elements: int,
    weights: dict[PeerId, float],
    *,
    codec: Codec = NONE,
    own: dict[PeerId, Vector] | None = None,
    readers: int = 1,
) -> Reduction:
    """The work of a reducer that contributes ``own``, if anything, itself; all encodings are by ``codec``."""
    own = own or {}

    def own_part(start: int, stop: int) -> Vector:
        return next(iter(own.values()))[start:stop]

    return Reduction(
        Work(
            num_elements=num_elements,
            part_elements=PART_ELEMENTS,
            weights=weights,
            codecs={peer: codec for peer in weights if peer not in own},
            own_part=own_part,
            encode=lambda start, mean: codec.encode(mean),
            readers=readers,
        )
    )


async def mean_of(reduction: Reduction, codec: Codec = NONE) -> Vector:
    """The only part of a short span, as a receiver decodes it."""
    await reduction.finished()
    assert reduction.num_parts == 1
    data = await reduction.result(0)
    return codec.decode(data, memoryview(data).nbytes // codec.encoded_bytes(1))


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
        return bytes(await reduction.result(0))

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
        results = [bytes(await task) for task in waiting]
        expected = np.concatenate([np.zeros(PART_ELEMENTS), np.full(PART_ELEMENTS, 2.0), [3, 3, 3]])
        assert b"".join(results) == expected.astype("<f4").tobytes()
        await reduction.finished()
        hashes = b"".join(hashlib.sha256(result).digest() for result in results)
        assert reduction.digest() == hashlib.sha256(hashes).hexdigest()

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
        assert b"".join([bytes(await reduction.result(index)) for index in range(2)]) == values.astype("<f4").tobytes()

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
        assert encoded == [(0, await reduction.result(0))]

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
        digest = reduction.digest()
        for _ in range(2):
            assert np.frombuffer(await reduction.result(0), "<f4") == 7
        with pytest.raises(BadPart, match="given away"):
            await reduction.result(0)
        await reduction.finished()
        assert reduction.digest() == digest

    run(main())


def test_an_own_part_that_is_not_finite_fails_the_round_and_names_the_reducer_itself() -> None:
    async def main() -> None:
        reduction = make_reduction(2, {A: 1.0, B: 1.0}, own={A: vector(1, math.nan)})
        reduction.add(B, 0, NONE.encode(vector(1, 1)))
        with pytest.raises(SenderFailed) as caught:
            await reduction.finished()
        assert (caught.value.culprit, caught.value.reason) == (A, "not_finite")

    run(main())


def test_who_is_missing_is_said_of_the_first_part_that_is_not_finished() -> None:
    async def main() -> None:
        reduction = make_reduction(PART_ELEMENTS + 1, {A: 1.0, B: 1.0, C: 1.0})
        assert reduction.missing() == [A, B, C]
        reduction.add(B, 0, NONE.encode(np.ones(PART_ELEMENTS, np.float32)))
        reduction.add(A, 1, NONE.encode(vector(1)))
        assert reduction.missing() == [A, C]
        assert reduction.num_added == 2

    run(main())


def test_large_finite_contributions_have_a_finite_mean_in_half_precision() -> None:
    async def main() -> Vector:
        reduction = make_reduction(2, {A: 1.0, B: 1.0}, codec=HALF, own={A: vector(3e38, -3e38)})
        reduction.add(B, 0, HALF.encode(vector(3e38, -3e38)))
        return await mean_of(reduction, HALF)

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
        reduction = make_reduction(2, {A: 1.0, B: 1.0})
        reduction.add(A, 0, NONE.encode(vector(1, 2)))
        with pytest.raises(BadPart) as caught:
            reduction.add(peer, index, NONE.encode(data))
        assert caught.value.reason == reason
        reduction.add(B, 0, NONE.encode(vector(3, 4)))
        assert np.array_equal(await mean_of(reduction), vector(2, 3))

    run(main())


def test_a_part_after_the_result_is_there_is_refused_and_leaves_the_result_alone() -> None:
    async def main() -> None:
        reduction = make_reduction(1, {A: 1.0})
        reduction.add(A, 0, NONE.encode(vector(1)))
        with pytest.raises(BadPart, match="twice"):
            reduction.add(A, 0, NONE.encode(vector(5)))
        assert np.array_equal(await mean_of(reduction), vector(1))

    run(main())


def test_a_failure_reaches_who_waits_and_who_comes_later_but_no_result_that_is_there() -> None:
    async def main() -> None:
        reduction = make_reduction(PART_ELEMENTS + 1, {A: 1.0})
        reduction.add(A, 0, NONE.encode(np.ones(PART_ELEMENTS, np.float32)))
        waiting = asyncio.ensure_future(reduction.result(1))
        await asyncio.sleep(0)
        reduction.fail(BadPart("sender_lost", "a is gone"))
        reduction.fail(BadPart("other", "a second reason does not replace the first"))
        with pytest.raises(BadPart) as first:
            await waiting
        with pytest.raises(BadPart) as later:
            await reduction.result(1)
        with pytest.raises(BadPart, match="a is gone"):
            await reduction.finished()
        assert (first.value.reason, later.value.reason) == ("sender_lost", "sender_lost")
        assert np.frombuffer(await reduction.result(0), "<f4").all()

    run(main())


def test_an_innocent_contributor_is_not_blamed_for_a_part_that_comes_after_a_failure() -> None:
    async def main() -> None:
        reduction = make_reduction(1, {A: 1.0, B: 1.0})
        reduction.fail(BadPart("not_finite", "a sent NaN"))
        reduction.add(B, 0, NONE.encode(vector(1)))
        with pytest.raises(BadPart, match="a sent NaN"):
            await reduction.result(0)

    run(main())


def test_a_waiter_that_is_cancelled_does_not_cancel_the_result() -> None:
    async def main() -> None:
        reduction = make_reduction(1, {A: 1.0})
        waiting = asyncio.ensure_future(reduction.result(0))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
        reduction.add(A, 0, NONE.encode(vector(1)))
        assert np.array_equal(await mean_of(reduction), vector(1))

    run(main())
