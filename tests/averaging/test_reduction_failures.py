"""What a reducer refuses, and who learns of it when its work fails."""

import asyncio
import math

import numpy as np
import pytest

from collab.averaging.plan import PART_ELEMENTS
from collab.averaging.reduction import SenderFailed
from collab.errors import BadPart
from collab.types import PeerId, Vector
from tests.averaging.reductions import NONE, A, B, C, make_reduction, mean_of, vector
from tests.fakes import run


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
        assert np.frombuffer((await reduction.result(0)).data, "<f4").all()

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


def test_an_own_part_that_is_not_finite_fails_the_round_and_names_the_reducer_itself() -> None:
    async def main() -> None:
        reduction = make_reduction(2, {A: 1.0, B: 1.0}, own={A: vector(1, math.nan)})
        reduction.add(B, 0, NONE.encode(vector(1, 1)))
        with pytest.raises(SenderFailed) as caught:
            await reduction.finished()
        assert (caught.value.culprit, caught.value.reason) == (A, "not_finite")

    run(main())
