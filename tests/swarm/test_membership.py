"""Where a peer stands in the swarm, and when it speaks."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from collab.averaging.deadlines import ENOUGH, FLOOR_S
from collab.net.base import Entry
from collab.net.lookups import SHORTEST_S
from collab.swarm import board
from collab.swarm.board import ProgressBoard
from collab.swarm.membership import FRESH_S, REPORT_S, Membership
from collab.swarm.progress import HEARTBEAT_S
from collab.swarm.records import PeerRecord, PeerState, pack_record
from collab.types import Lineage, Reachability, Role
from tests.averaging.records import make_record
from tests.fakes import NOW, FakeClock, FakeDirectory, FakeNetwork, make_ports, run
from tests.swarm.people import PEOPLE, backbone, record

F, L, M = "f" * 64, Lineage("l"), Lineage("m")
KEY = f"{F[:32]}.peers"


class Us:
    """Person 0, whose record the test sets."""

    def __init__(self, network: FakeNetwork, ours: PeerRecord, others: tuple[PeerRecord, ...]) -> None:
        self.directory = FakeDirectory()
        ports = make_ports(network.join(PEOPLE[0].peer_id), self.directory)
        assert isinstance(ports.clock, FakeClock)
        self.clock, self.record = ports.clock, ours
        self.board = ProgressBoard(ports, PEOPLE[0], F)
        self.membership = Membership(self.board, ports.clock, lambda: replace(self.record, said_at=self.clock.now()))
        self.hear(*others)

    def hear(self, *others: PeerRecord) -> None:
        identities = {person.peer_id: person for person in PEOPLE}
        for other in others:
            entry = Entry(pack_record(other, identities[other.peer]), NOW + 100)
            self.directory.table.setdefault(KEY, {})[other.peer] = entry


def among(ours: PeerRecord, *others: PeerRecord, test: Callable[[Us], Awaitable[None]]) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            us = Us(network, ours, others)
            await us.membership.report()
            network.run(us.membership.keep_alive())
            await test(us)

    run(main())


def is_out_of_step(ours: PeerRecord, *others: PeerRecord) -> bool:
    verdict: list[bool] = []

    async def look(us: Us) -> None:
        verdict.append(us.membership.is_out_of_step())

    among(ours, *others, test=look)
    return verdict[0]


# -- out of step -------------------------------------------------------------------------------------------------------


def test_a_peer_that_is_alone_or_with_its_like_is_in_step() -> None:
    assert not is_out_of_step(record(0))
    assert not is_out_of_step(record(0), backbone(7, epoch=9))
    assert not is_out_of_step(record(0), record(1), record(2))


def test_who_only_has_companions_and_a_backbone_that_is_ahead_goes_by_it_when_nothing_else_goes_on() -> None:
    companions = record(1), record(2)
    ahead = backbone(7, epoch=4, lineage=M, checkpoint_epoch=4)

    async def look(us: Us) -> None:
        place = us.membership
        assert not place.is_out_of_step()
        assert not place.keepers()
        place.is_stuck = lambda: True
        assert place.is_out_of_step()
        assert place.keepers() == [PEOPLE[7].peer_id]
        place.trusts = lambda _: False
        assert not place.is_out_of_step(), "it may say what it likes"
        place.trusts = lambda _: True
        place.doubt()
        assert not place.is_out_of_step(), "it did not have what it said"
        place.ask()
        assert not place.is_out_of_step()
        place.ask(anew=True)
        assert place.is_out_of_step(), "who has come to a standstill tries again"

    among(record(0), *companions, ahead, test=look)


def test_who_knows_that_its_history_was_continued_goes_by_a_backbone_at_once() -> None:
    step = make_record(epoch=3, lineage=L)

    async def look(us: Us) -> None:
        us.membership.known_records = lambda: [step]
        assert us.membership.keepers() == [PEOPLE[7].peer_id]

    among(record(0), record(1), backbone(7, epoch=4, lineage=M, checkpoint_epoch=4), test=look)


def test_while_a_trainer_is_here_that_has_gone_on_nobody_goes_by_a_backbone() -> None:
    async def look(us: Us) -> None:
        us.membership.is_stuck = lambda: True
        assert us.membership.keepers() == []

    later = {"epoch": 4, "lineage": M}
    among(record(0), record(1), record(2), record(3, **later), backbone(7, checkpoint_epoch=4, **later), test=look)


def test_a_backbone_that_leaves_or_holds_nothing_newer_is_nobody_to_go_by() -> None:
    async def look(us: Us) -> None:
        us.membership.is_stuck = lambda: True
        assert us.membership.keepers() == []

    leaving = backbone(6, checkpoint_epoch=9, state=PeerState.LEAVING)
    among(record(0), record(1), backbone(7, checkpoint_epoch=3), leaving, test=look)


def test_a_peer_behind_the_majority_is_out_of_step() -> None:
    assert is_out_of_step(record(0, epoch=2), record(1), record(2))
    assert is_out_of_step(record(0, epoch=2), record(1, epoch=2), record(2), record(3))
    assert is_out_of_step(record(0, epoch=2), record(1))


def test_a_peer_ahead_of_the_majority_waits_for_it() -> None:
    assert not is_out_of_step(record(0, epoch=4, lineage=M), record(1), record(2))


def test_one_liar_about_its_epoch_makes_no_companion_step_out() -> None:
    assert not is_out_of_step(record(0), record(1), record(2), record(3, epoch=10**6, lineage=M))


def test_a_trainer_that_is_still_fetching_its_state_has_no_voice() -> None:
    assert not is_out_of_step(record(0), record(1, epoch=9, state=PeerState.SYNCING))


def test_at_one_epoch_the_minority_yields_and_the_majority_does_not() -> None:
    minority, majority = [record(0, lineage=M)], [record(n) for n in (1, 2, 3)]
    assert is_out_of_step(minority[0], *majority)
    ours, others = record(0), [record(1), record(2), record(3, lineage=M)]
    assert not is_out_of_step(ours, *others)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_of_two_equal_halves_exactly_one_yields_as_a_whole(size: int) -> None:
    halves = {lineage: [(size * side + n, lineage) for n in range(size)] for side, lineage in enumerate((L, M))}
    everybody = halves[L] + halves[M]
    yielding = {}
    for lineage, half in halves.items():
        verdicts = set()
        for person, _ in half:
            # person 0 carries the key of the board, so the person who looks swaps places with person 0
            place = {person: 0, 0: person}
            others = [record(place.get(p, p), lineage=li) for p, li in everybody if p != person]
            verdicts.add(is_out_of_step(record(0, lineage=lineage), *others))
        assert len(verdicts) == 1
        yielding[lineage] = verdicts.pop()
    assert sorted(yielding.values()) == [False, True]


def test_of_three_histories_at_one_epoch_exactly_one_stays() -> None:
    lineages = [L, M, Lineage("k")]
    staying = [
        lineage
        for lineage in lineages
        if not is_out_of_step(
            record(0, lineage=lineage), *(record(n, lineage=li) for n, li in enumerate(lineages, 1) if li != lineage)
        )
    ]
    assert len(staying) == 1


# -- whom to ask -------------------------------------------------------------------------------------------------------


def test_donors_are_the_majority_s_trainers_and_then_the_backbones_never_ourselves() -> None:
    async def look(us: Us) -> None:
        assert us.membership.donors() == [PEOPLE[n].peer_id for n in (1, 2, 5)]

    others = (record(1), record(2), record(3, lineage=M), record(4, state=PeerState.SYNCING), backbone(5))
    among(record(0), *others, test=look)


def test_donors_that_can_be_dialled_come_before_those_behind_a_relay() -> None:
    async def look(us: Us) -> None:
        assert us.membership.donors() == [PEOPLE[n].peer_id for n in (2, 4, 1, 3, 5)]

    hidden = (record(n, can_be_dialled=False, reach=Reachability.RELAYED) for n in (1, 3))
    among(record(0), *hidden, record(2), record(4), backbone(5), test=look)


def test_without_other_trainers_the_backbones_are_the_donors() -> None:
    async def look(us: Us) -> None:
        assert us.membership.donors() == [PEOPLE[5].peer_id]
        assert us.membership.is_last_trainer()
        assert [r.peer for r in us.membership.backbones()] == [PEOPLE[5].peer_id]

    among(record(0), backbone(5), test=look)


def test_trainers_ahead_are_listed_nearest_first() -> None:
    async def look(us: Us) -> None:
        assert us.membership.trainers_ahead(3)[:2] == [PEOPLE[n].peer_id for n in (1, 2)]
        assert set(us.membership.trainers_ahead(3)[2:]) < {PEOPLE[n].peer_id for n in (4, 5, 6)}
        assert len(us.membership.trainers_ahead(3)) == 4, "some that are level, whose records may be older than they"
        assert not us.membership.is_last_trainer()

    level = [record(n) for n in (4, 5, 6)]
    among(record(0), record(1, epoch=5), record(2, epoch=9), record(3, epoch=2), *level, test=look)


def test_the_roster_counts_trainers_one_epoch_behind_and_all_ahead() -> None:
    async def look(us: Us) -> None:
        expected = await us.membership.roster(3, L)
        assert expected.trainers == {PEOPLE[n].peer_id for n in (0, 1, 2)}
        assert expected.behind == {PEOPLE[3].peer_id}
        assert expected.helpers == {PEOPLE[n].peer_id for n in (4, 5)}

    others = (
        record(1, epoch=2),
        record(2, epoch=7),
        record(3, epoch=1),
        backbone(4),
        record(5, role=Role.AUXILIARY, state=PeerState.SERVING),
    )
    among(record(0), *others, test=look)


def test_words_that_were_just_read_are_not_read_again_for_a_group_and_older_ones_are() -> None:
    async def look(us: Us) -> None:
        us.directory.answers_after_s = 0.1
        await us.membership.look()
        us.hear(record(2))
        assert (await us.membership.roster(3, L)).trainers == {PEOPLE[n].peer_id for n in (0, 1)}
        await asyncio.sleep(FRESH_S - 0.05)  # since reading began, not since it ended
        assert (await us.membership.roster(3, L)).trainers == {PEOPLE[n].peer_id for n in (0, 1, 2)}

    among(record(0), record(1), test=look)


def test_who_wants_words_of_now_is_not_answered_by_a_reading_that_was_under_way() -> None:
    async def look(us: Us) -> None:
        us.directory.answers_after_s = 0.05
        await us.membership.look()
        us.membership.ask()
        await asyncio.sleep(0.04)
        us.hear(replace(record(1), state=PeerState.LEFT, said_at=us.clock.now()))
        expected = await us.membership.roster(3, L, since_s=us.clock.monotonic())
        assert PEOPLE[1].peer_id not in expected.present
        assert expected.left == {PEOPLE[1].peer_id: 3}

    among(record(0), record(1), test=look)


def test_a_leader_that_has_read_nothing_for_long_because_the_directory_was_silent_reads_again() -> None:
    async def look(us: Us) -> None:
        us.directory.is_silent = True
        await asyncio.sleep(1.1 * FRESH_S)
        await us.membership.look()
        us.directory.is_silent = False
        us.hear(record(2))
        assert PEOPLE[2].peer_id in (await us.membership.roster(3, L)).trainers

    among(record(0), record(1), test=look)


def test_a_directory_that_takes_longer_than_usual_does_not_hold_up_a_leader() -> None:
    async def look(us: Us) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(ENOUGH):
            await us.membership.look()
        us.hear(record(2))
        us.directory.answers_after_s = SHORTEST_S / 2
        await asyncio.sleep(1.1 * FRESH_S)
        began_s = loop.time()
        expected = await us.membership.roster(3, L)
        assert loop.time() - began_s == pytest.approx(FLOOR_S)
        assert expected.trainers == {PEOPLE[n].peer_id for n in (0, 1)}, "as it was last seen"
        await asyncio.sleep(SHORTEST_S)
        assert us.membership.view.trainers(3, L), "the reading went on"
        assert PEOPLE[2].peer_id in {one.peer for one in us.membership.view.all_trainers()}

    among(record(0), record(1), test=look)


# -- when we speak -----------------------------------------------------------------------------------------------------


def test_far_from_the_target_a_peer_speaks_at_most_every_half_second() -> None:
    async def look(us: Us) -> None:
        spoken = us.directory.stores
        for _ in range(100):
            assert not await us.membership.has_reached(1000)
            await asyncio.sleep(0.05)
        assert 5.0 / REPORT_S - 2 <= us.directory.stores - spoken <= 5.0 / REPORT_S + 1

    among(record(0, samples=1), record(1, samples=2), test=look)


def test_with_the_target_in_sight_the_newest_word_of_all_decides() -> None:
    async def look(us: Us) -> None:
        us.record = replace(us.record, samples=60)
        assert not await us.membership.has_reached(100)
        us.record = replace(us.record, samples=80)
        assert await us.membership.has_reached(100)
        spoken = pack_record(replace(us.record, said_at=us.clock.now()), PEOPLE[0])
        assert us.directory.table[KEY][PEOPLE[0].peer_id].value == spoken

    among(record(0, samples=1), record(1, samples=20), test=look)


@pytest.mark.parametrize(
    "ours", [record(0, epoch=4), record(0, lineage=M), record(0, state=PeerState.SYNCING), record(0, epoch=2)]
)
def test_a_call_for_another_round_than_ours_is_not_for_us(ours: PeerRecord) -> None:
    async def look(us: Us) -> None:
        assert not us.membership.is_training_at(3, L)

    among(ours, test=look)


def test_the_heartbeat_keeps_a_silent_peer_in_the_swarm() -> None:
    async def look(us: Us) -> None:
        spoken = us.directory.stores
        await asyncio.sleep(60.5)
        assert 60 / (HEARTBEAT_S + 1) <= us.directory.stores - spoken <= 60 / HEARTBEAT_S + 1

    among(record(0), test=look)


# -- who tries something each second -----------------------------------------------------------------------------------


def test_in_a_large_swarm_who_tries_each_second_reads_when_it_is_time_and_is_not_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            us = Us(network, record(0), (record(1), record(2)))
            stores, gets = [0.0], [0.0]
            stored, got = us.directory.store, us.directory.get

            async def store(*args: object, **how: object) -> None:
                stores.append(us.clock.monotonic())
                await stored(*args, **how)  # type: ignore[arg-type]

            async def get(*args: object, **how: object) -> object:
                gets.append(us.clock.monotonic())
                return await got(*args, **how)  # type: ignore[arg-type]

            monkeypatch.setattr(us.directory, "store", store)
            monkeypatch.setattr(us.directory, "get", get)
            view = await us.membership.report()
            monkeypatch.setattr(board, "ALONE_BYTES_PER_S", us.board._read_bytes / 20.0)
            del stores[:], gets[:]
            assert await us.membership.report(again=True) is view
            for _ in range(19):
                await asyncio.sleep(1.0)
                await us.membership.report(again=True)
            assert gets == []
            assert len(stores) == 4, "each heartbeat"
            await us.membership.report()
            assert len(gets) == 1, "who must know asks"

    run(main())


def test_in_a_small_swarm_who_tries_each_second_reads_each_second() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            us = Us(network, record(0), (record(1), record(2)))
            await us.membership.report()
            seen = [us.membership.view.at_s]
            for _ in range(5):
                await asyncio.sleep(1.0)
                await us.membership.report(again=True)
                seen.append(us.membership.view.at_s)
            assert [b - a for a, b in pairwise(seen)] == pytest.approx([1.0] * 5)

    run(main())
