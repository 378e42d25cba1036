"""For how long states of another model are put up with, and who says to hold one and gives none."""

import asyncio
from contextlib import nullcontext

import pytest

from collab.errors import NoDonor, ShapeMismatch, StateError
from collab.training.pursuit import MISFITS_S, VAIN_S, Pursuit
from tests.fakes import FakeClock, run
from tests.training.toy import replica

MISFIT = ShapeMismatch("tensor more is missing here")


def pursuit() -> Pursuit:
    return Pursuit(FakeClock(), replica(), lambda: 1)


def test_misfits_count_in_a_row_only_and_not_over_all_that_a_trainer_has_ever_fetched() -> None:
    """In between it catches up through rounds."""

    async def main() -> None:
        one = pursuit()

        async def gather(_: bool) -> None:
            one.failed(MISFIT)
            await asyncio.sleep(MISFITS_S - 1.0)
            one.failed(MISFIT)

        for _ in range(5):
            await one.run(gather)
            await asyncio.sleep(7 * 86400.0)

    run(main())


@pytest.mark.parametrize("between", [MISFIT, NoDonor("nobody is here")])
def test_after_a_minute_of_nothing_else_they_end_it(between: StateError) -> None:
    async def main() -> None:
        one = pursuit()
        one.failed(MISFIT)
        await asyncio.sleep(MISFITS_S / 2)
        one.failed(between)
        await asyncio.sleep(MISFITS_S / 2)
        one.failed(MISFIT)

    with pytest.raises(ShapeMismatch) if between is MISFIT else nullcontext():
        run(main())


def test_it_is_in_vain_when_nobody_withholds_it_any_more_counted_anew_each_time() -> None:
    async def main() -> None:
        one = pursuit()

        async def gather(_: bool) -> None:
            assert not one.is_vain
            one.failed(NoDonor("nobody is here"))
            await asyncio.sleep(VAIN_S - 1.0)
            one.failed(NoDonor("nobody is here"))
            assert not one.is_vain
            await asyncio.sleep(1.0)
            assert one.is_vain

        for _ in range(2):
            await one.run(gather)

    run(main())


def test_who_is_hurried_begins_anew_and_has_no_more_patience_for_it() -> None:
    async def main() -> None:
        one = pursuit()

        async def gather(is_awaited: bool) -> None:
            one.failed(MISFIT)
            await asyncio.sleep(MISFITS_S)
            one.failed(MISFIT)

        gathering = asyncio.create_task(one.run(gather))
        await asyncio.sleep(MISFITS_S / 2)
        one._hurried.set()
        await asyncio.sleep(MISFITS_S / 2 + 1.0)
        one._hurried.set()
        await asyncio.sleep(1.0)
        with pytest.raises(ShapeMismatch):
            await gathering

    run(main())
