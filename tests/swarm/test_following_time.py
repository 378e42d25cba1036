"""After joining, a peer stays with the swarm's time: through drift, and through stops that its clocks do not notice."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

import pytest

from collab.clock import SystemClock
from collab.net.base import Barred
from collab.ports import Entrance
from collab.swarm.time_sync import (
    LOOK_S,
    MEASURE_S,
    SLEW_S,
    SURE,
    Correction,
    Measured,
    Nearby,
    follow_time,
    serve_time,
)
from collab.types import PeerId
from tests.fakes import NOW, FakeNetwork, run

JUMP_S = 600.0


def at(offset_s: float, time_s: float = 0.0) -> Measured:
    return Measured(time_s, offset_s)


class Machine:
    """Its clocks go on with the loop, but for what the test does to them."""

    def __init__(self, *, fast: float = 0.0) -> None:
        """
        Args:
            fast: seconds that its clocks gain each second.
        """
        self.set_by_s = self.stopped_s = 0.0
        self._fast = fast
        self.clock = SystemClock(wall=lambda: NOW + self._passed_s() + self.set_by_s, elapsed=self._passed_s)

    def _passed_s(self) -> float:
        return asyncio.get_running_loop().time() * (1 + self._fast) - self.stopped_s

    def error_s(self) -> float:
        return self.clock.now() - (NOW + asyncio.get_running_loop().time())


def connected_to(peers: Sequence[str]) -> Callable[[], Awaitable[list[PeerId]]]:
    async def connected() -> list[PeerId]:
        return [PeerId(peer) for peer in peers]

    return connected


async def joined(
    network: FakeNetwork, name: str, machine: Machine, peers: Sequence[str], *, near: Sequence[str] = (),
    seen: Sequence[str] = (), is_measured: bool = True,
) -> None:  # fmt: skip
    transport = network.join(name)
    await serve_time(transport, machine.clock)
    asked = [PeerId(peer) for peer in peers]

    entrance = Entrance(contributors=lambda: [PeerId(peer) for peer in seen])
    nearby = Nearby(connected_to(near), entrance, random.Random(0))
    network.run(follow_time(transport, machine.clock, asked, nearby, is_measured=is_measured))


def test_nobody_notices_that_the_clock_of_a_first_backbone_or_of_a_trainer_is_set() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            first, trainer = Machine(), Machine()
            await joined(network, "first", first, [], near=["trainer"])
            await joined(network, "trainer", trainer, ["first"])
            for machine in (first, trainer):
                machine.set_by_s = JUMP_S
                for _ in range(6):
                    await asyncio.sleep(MEASURE_S)
                    assert abs(first.error_s()) < 0.01
                    assert abs(trainer.error_s()) < 0.01

    run(main())


def test_a_clock_that_drifts_is_kept_with_the_swarms_in_small_steps() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            drifting = Machine(fast=100e-6)
            await joined(network, "right", Machine(), [])
            await joined(network, "drifting", drifting, ["right"])
            for _ in range(24 * 12):
                await asyncio.sleep(MEASURE_S)
                assert abs(drifting.error_s()) < SLEW_S

    run(main())


@pytest.mark.parametrize("is_first", [True, False])
def test_who_was_stopped_is_back_as_soon_as_its_machine_is_and_its_peers_stay(*, is_first: bool) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            stopped, other = Machine(), Machine()
            await joined(network, "other", other, ["stopped"])
            await joined(network, "stopped", stopped, [] if is_first else ["other"], near=["other"])
            await asyncio.sleep(MEASURE_S - 20.0)
            stopped.stopped_s = JUMP_S  # and so is its wall clock, until NTP sets it
            await asyncio.sleep(40.0)
            assert abs(stopped.error_s() + JUMP_S) < 0.01
            stopped.set_by_s = JUMP_S
            await asyncio.sleep(LOOK_S + 1.0)
            for _ in range(5):
                assert abs(other.error_s()) < 0.01
                assert abs(stopped.error_s()) < 0.01
                await asyncio.sleep(MEASURE_S)

    run(main())


def test_a_first_backbone_is_moved_by_nobody_else() -> None:
    correction = Correction(is_first=True, is_measured=False)
    assert [correction.of(at(offset_s), 0.0) for offset_s in (JUMP_S, JUMP_S, JUMP_S, 2.0, -2.0)] == [0.0] * 5
    assert correction.of(at(JUMP_S), JUMP_S) == JUMP_S


def test_strangers_do_not_keep_from_a_first_backbone_that_it_stood_still() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            first, liar = Machine(), Machine()
            strangers, trainers = [f"0 stranger {i}" for i in range(5)], ["trainer 1", "trainer 2"]
            for name in strangers:
                await serve_time(network.join(name), liar.clock)
            for name in trainers:
                await serve_time(network.join(name), Machine().clock)
            await joined(network, "first", first, [], near=[*strangers, *trainers], seen=trainers)
            await asyncio.sleep(10.0)
            first.stopped_s = liar.stopped_s = JUMP_S
            first.set_by_s = JUMP_S
            await asyncio.sleep(2 * LOOK_S)
            assert abs(first.error_s()) < 0.01

    run(main())


def test_that_its_clock_was_set_while_it_went_on_is_not_told_a_first_backbone_by_one_answer() -> None:
    correction = Correction(is_first=True, is_measured=False)
    assert [correction.of(at(0.0), JUMP_S) for _ in range(SURE - 1)] == [0.0] * (SURE - 1)
    assert correction.of(at(JUMP_S), JUMP_S) == JUMP_S, "others say that it stood still"
    assert [correction.of(at(0.0), 0.0) for _ in range(SURE)] == [0.0] * SURE
    assert correction.of(at(-JUMP_S), 0.0) == 0.0, "most have said that it went on"


def test_where_nobody_was_seen_in_a_round_any_that_may_come_in_are_asked() -> None:
    class NotForA:
        is_closed = False

        def barred(self, peer: PeerId, credential: bytes) -> Barred | None:
            return Barred("banned", "") if peer == "a" else None

    nearby = Nearby(connected_to("abcdefghi"), Entrance(door=NotForA()), random.Random(0))
    asked = [run(nearby.chosen()) for _ in range(20)]
    assert {peer for peers in asked for peer in peers} == set("bcdefghi")
    assert {len(peers) for peers in asked} == {5}


def test_of_two_that_differ_the_one_that_agrees_with_us_is_right() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            stopped, ours = Machine(), Machine()
            stopped.stopped_s = -JUMP_S
            await joined(network, "stopped", stopped, [])
            await joined(network, "right", Machine(), [])
            await joined(network, "ours", ours, ["stopped", "right"])
            await asyncio.sleep(10 * MEASURE_S + 1.0)
            assert abs(ours.error_s()) < 0.01

    run(main())


def test_whom_nobody_told_the_time_at_joining_believes_the_first_who_does() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            ours = Machine()
            ours.stopped_s = JUMP_S
            await joined(network, "ours", ours, ["late"], is_measured=False)
            await asyncio.sleep(MEASURE_S + 1.0)
            await joined(network, "late", Machine(), [])
            await asyncio.sleep(MEASURE_S + 1.0)
            assert abs(ours.clock.now() - NOW - asyncio.get_running_loop().time()) < 0.01

    run(main())


def test_peers_that_stay_elsewhere_are_followed_within_a_quarter_of_an_hour_and_not_before() -> None:
    correction = Correction(is_measured=True)
    assert [correction.of(at(offset_s), 0.0) for offset_s in (JUMP_S, JUMP_S + 1.0)] == [0.0, 0.0]
    assert correction.of(at(JUMP_S), 0.0) == JUMP_S
    assert correction.of(at(-JUMP_S), 0.0) == 0.0, "it begins anew"
    assert correction.of(at(JUMP_S), 0.0) == 0.0, "they do not agree"


@pytest.mark.parametrize("is_theirs", [True, False])
def test_a_stop_that_ntp_makes_up_for_by_slewing_leaves_nobody_apart_for_longer(*, is_theirs: bool) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            first, trainers = Machine(), {name: Machine() for name in ("early", "late")}
            await joined(network, "first", first, [], near=list(trainers), seen=list(trainers))
            for name, trainer in trainers.items():
                await joined(network, name, trainer, ["first"])
                await asyncio.sleep(MEASURE_S / 3)
            stopped = first if is_theirs else trainers["early"]
            stopped.stopped_s = JUMP_S
            for second in range(3 * 3600):
                await asyncio.sleep(1.0)
                stopped.stopped_s = max(0.0, stopped.stopped_s - 0.0833)
                if second > SURE * MEASURE_S:
                    assert all(abs(one.error_s() - first.error_s()) < 1.0 for one in trainers.values()), second
            assert abs(first.error_s()) < 0.01

    run(main())


def test_while_an_offset_drifts_it_is_measured_more_often() -> None:
    correction = Correction(is_measured=True)
    offsets = [at(JUMP_S - 0.08 * time_s, time_s) for time_s in (0.0, MEASURE_S, 2 * MEASURE_S)]
    assert [correction.of(one, 0.0) for one in offsets] == [0.0, 0.0, offsets[-1].offset_s]
    now_s = offsets[-1].at_s
    for _ in range(200):
        assert correction.rest_s(now_s) == LOOK_S
        now_s += LOOK_S
        assert correction.of(at(0.4, now_s), 0.0) == 0.4
    assert correction.rest_s(now_s + MEASURE_S) == MEASURE_S, "it does not drift any more"
    assert correction.of(at(JUMP_S, now_s), 0.0) == 0.0
    assert correction.rest_s(now_s) == MEASURE_S, "that is something else: they are given time"


@pytest.mark.parametrize("offset_s", [-JUMP_S, -4.0, 0.0, JUMP_S - 0.11 * MEASURE_S])
def test_no_slewing_explains_another_sign_or_a_faster_clock(offset_s: float) -> None:
    assert not at(offset_s, MEASURE_S).agrees_with(at(JUMP_S, 0.0))
    assert at(JUMP_S - 0.09 * MEASURE_S, MEASURE_S).agrees_with(at(JUMP_S, 0.0))


def test_a_clock_that_was_set_while_peers_agreed_is_no_witness_later() -> None:
    correction = Correction(is_measured=True)
    assert correction.of(at(0.0), JUMP_S) == 0.0
    assert correction.of(at(JUMP_S), JUMP_S) == 0.0
    assert correction.of(at(-JUMP_S), 0.0) == -JUMP_S, "and what was set since is one"


@pytest.mark.parametrize("offset_s", [-2.9, -0.4, -0.05, 0.05, 0.4, 2.9])
def test_a_small_offset_is_taken_at_once_by_half_a_second_at_most(offset_s: float) -> None:
    believed_s = Correction(is_measured=True).of(at(offset_s), 0.0)
    expected_s = 0.0 if abs(offset_s) < 0.1 else min(abs(offset_s), SLEW_S)
    assert abs(believed_s) == expected_s
    assert believed_s * offset_s >= 0
