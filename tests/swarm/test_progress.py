"""Everybody's records read together."""

import itertools
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from collab.answers import ENOUGH
from collab.net.base import Entry
from collab.net.lookups import FIRST_S, SHORTEST_S
from collab.swarm.board import ProgressBoard
from collab.swarm.progress import RECORD_LIFE_S, TERM_EPOCHS, SwarmView
from collab.swarm.records import PeerRecord, PeerState, pack_record
from collab.types import Lineage, Role
from tests.fakes import NOW, FakeClock, FakeDirectory, FakeNetwork, make_ports, run
from tests.swarm.people import PEOPLE, backbone, record

F, L, M = "f" * 64, Lineage("l"), Lineage("m")
KEY = f"{F[:32]}.peers"


def view(*records: PeerRecord, at_s: float = NOW) -> SwarmView:
    return SwarmView(tuple(records), at_s)


# -- the view ----------------------------------------------------------------------------------------------------------


def test_only_trainers_of_the_very_same_history_count_towards_its_step() -> None:
    swarm = view(
        record(0, samples=10),
        record(1, samples=20),
        record(2, samples=40, epoch=4),
        record(3, samples=80, lineage=M),
        record(4, samples=160, state=PeerState.SYNCING),
        backbone(5, samples=320),
    )
    assert swarm.samples(3, L) == 30
    assert [r.name for r in swarm.trainers(3, L)] == ["person-0", "person-1"]
    assert len(swarm.all_trainers()) == 4
    assert [r.name for r in swarm.helpers()] == ["person-5"]


def test_a_record_from_a_clock_that_is_ahead_does_not_lose_samples() -> None:
    ahead = view(record(0), record(1, samples=10, samples_per_s=2.0, said_at=NOW + 5))
    assert ahead.expected_samples(record(0), NOW, since_s=NOW) == 10.0


def test_the_consensus_is_what_most_trainers_hold() -> None:
    assert view().consensus() is None
    assert view(backbone(0)).consensus() is None
    assert view(record(0, epoch=1), record(1, epoch=9)).consensus() == (9, L)
    assert view(record(0, epoch=1), record(1, epoch=1), record(2, epoch=10**6)).consensus() == (1, L)
    assert view(record(0, epoch=1, state=PeerState.SYNCING), record(1, epoch=0)).consensus() == (0, L)


def test_a_step_is_due_when_trainers_that_compute_on_as_they_say_have_their_batch() -> None:
    swarm = view(
        record(0, samples=40, samples_per_s=6.0, said_at=NOW - 5.0),
        record(1, samples=10, samples_per_s=2.0),
        record(2, samples=500, samples_per_s=900.0, epoch=2),
        backbone(3, samples=500),
    )
    assert swarm.step_ahead(120, NOW) == (5.0, 15.0)
    assert swarm.step_ahead(120, NOW + 2.0) == (3.0, 15.0)
    assert swarm.step_ahead(60, NOW) == (0.0, 7.5)
    assert view(record(0, samples=40)).step_ahead(120, NOW) == (math.inf, math.inf)
    assert view(backbone(0)).step_ahead(120, NOW) == (math.inf, math.inf)


def test_who_boasts_of_its_speed_makes_no_step_due_sooner_than_its_share_may_weigh() -> None:
    honest = tuple(record(person, samples_per_s=2.0) for person in range(3))
    boaster = record(3, samples_per_s=2.0**53)
    swarm = SwarmView((*honest, boaster), NOW, max_share=0.25)
    assert swarm.step_ahead(80, NOW) == (10.0, 10.0), "it counts as one of four"
    assert replace(swarm, max_share=1.0).step_ahead(80, NOW)[1] < 1e-12, "where one peer may be all of a batch, it is"


def test_the_consensus_of_a_tie_does_not_depend_on_the_order() -> None:
    records = (record(0), record(1, lineage=M), record(2, lineage=Lineage("k")))
    assert {view(*order).consensus() for order in itertools.permutations(records)} == {(3, M)}


def test_the_run_is_over_when_most_say_so_and_not_when_one_does() -> None:
    done, liar = record(1, epoch=9), record(2, epoch=10**6)
    assert not view(record(0), record(3)).is_over(9)
    assert not view(record(0), liar).is_over(9)
    assert not SwarmView((record(0), record(3)), NOW, {liar.peer: 10**6}).is_over(9)
    assert view(done).is_over(9)
    assert view(record(0, epoch=8), done, record(3, epoch=9)).is_over(9)
    assert SwarmView((backbone(5, epoch=9),), NOW, {done.peer: 9}).is_over(9)
    assert not view(backbone(5, epoch=9)).is_over(9)
    assert not view().is_over(9)


def test_backbones_lead_first_and_all_peers_agree_on_the_rest() -> None:
    records = [backbone(6), backbone(7, epoch=1, lineage=Lineage("")), *(record(n) for n in range(6))]
    orders = {tuple(view(*order).leaders(3, L)) for order in (records, records[::-1], records[3:] + records[:3])}
    assert len(orders) == 1
    order = orders.pop()
    assert set(order[:2]) == {PEOPLE[6].peer_id, PEOPLE[7].peer_id}
    assert set(order[2:]) == {PEOPLE[n].peer_id for n in range(6)}


def test_who_came_to_a_history_later_leads_after_those_who_made_it_be_it_a_backbone() -> None:
    swarm, everybody = view(*(record(n) for n in range(6)), backbone(6)), [PEOPLE[n].peer_id for n in range(7)]
    for late in range(7):
        makers = [peer for peer in everybody if peer != everybody[late]]
        order = swarm.leaders(3, L, makers)
        assert order[-1] == everybody[late]
        assert late == 6 or order[0] == everybody[6], "a backbone that was there leads"
        unseen = view(*(r for r in swarm.records if r.peer != everybody[late]))
        assert order[:-1] == unseen.leaders(3, L, makers), "as those see it who do not know of the late one"


def test_who_made_a_history_leads_wherever_its_last_word_says_that_it_is() -> None:
    makers = [PEOPLE[n].peer_id for n in (3, 1, 2)]
    said = view(*(record(n) for n in range(5)))
    astray = record(1, epoch=2, lineage=M), record(2, state=PeerState.SYNCING), record(3, epoch=4)
    old = view(record(0), *astray, record(4))
    assert old.leaders(3, L, makers) == said.leaders(3, L, makers)
    left = view(record(1), record(2), record(3, state=PeerState.LEFT))
    assert makers[0] not in left.leaders(3, L, makers)


def test_a_trainer_leads_for_its_term_and_another_one_in_the_next() -> None:
    people = [PEOPLE[n].peer_id for n in range(6)]
    terms = []
    for term in range(8):
        leader = people[0]
        leads = []
        for epoch in range(term * TERM_EPOCHS, (term + 1) * TERM_EPOCHS):
            made = [leader, *(peer for peer in people if peer != leader)]
            leader = view(*(record(n, epoch=epoch) for n in range(6))).leaders(epoch, L, made)[0]
            leads.append(leader)
        assert len(set(leads)) == 1
        terms.append(leads[0])
    assert len(set(terms)) > 2


def test_who_cannot_be_dialled_or_holds_another_state_does_not_lead() -> None:
    swarm = view(
        record(0, can_be_dialled=False),
        record(1, epoch=4),
        record(2, lineage=M),
        record(3, state=PeerState.SYNCING),
        backbone(4, state=PeerState.SYNCING),
        record(5),
        record(6, role=Role.AUXILIARY, state=PeerState.SERVING, epoch=0),
    )
    assert set(swarm.leaders(3, L)) == {PEOPLE[5].peer_id, PEOPLE[6].peer_id}


# -- the board ---------------------------------------------------------------------------------------------------------


def with_board(test: Callable[[ProgressBoard, FakeDirectory, FakeClock], Awaitable[None]]) -> None:
    """Person 0's board over a directory that the test fills."""

    async def main() -> None:
        async with FakeNetwork() as network:
            directory = FakeDirectory()
            ports = make_ports(network.join(PEOPLE[0].peer_id), directory)
            assert isinstance(ports.clock, FakeClock)
            await test(ProgressBoard(ports, PEOPLE[0], F), directory, ports.clock)

    run(main())


def put(directory: FakeDirectory, person: int, **changes: Any) -> None:
    directory.table.setdefault(KEY, {})[PEOPLE[person].peer_id] = Entry(
        pack_record(record(person, **changes), PEOPLE[person]), NOW + 100
    )


def names(swarm: SwarmView) -> list[str]:
    return [r.name for r in swarm.records]


def test_what_one_peer_publishes_another_reads() -> None:
    async def test(board: ProgressBoard, directory: FakeDirectory, clock: FakeClock) -> None:
        put(directory, 2)
        put(directory, 1)
        await board.publish(record(0, samples=5))
        assert names(await board.refresh()) == ["person-0", "person-1", "person-2"]
        assert board.view.at_s == clock.now()
        stored = directory.table[KEY][PEOPLE[0].peer_id]
        assert stored.value == pack_record(record(0, samples=5), PEOPLE[0])
        assert stored.expires_at == pytest.approx(NOW + RECORD_LIFE_S)

    with_board(test)


def test_our_own_newest_word_counts_before_the_directory_has_it() -> None:
    async def test(board: ProgressBoard, directory: FakeDirectory, clock: FakeClock) -> None:
        directory.is_silent = True
        await board.publish(record(0, samples=5))
        assert (await board.refresh()).samples(3, L) == 5
        directory.is_silent = False
        put(directory, 0, samples=1)
        assert (await board.refresh()).samples(3, L) == 5

    with_board(test)


@pytest.mark.parametrize("error_s", [-RECORD_LIFE_S - 0.1, RECORD_LIFE_S + 0.1, -3600.0, 1e9])
def test_stale_records_and_records_from_the_future_are_left_out(error_s: float) -> None:
    async def test(board: ProgressBoard, directory: FakeDirectory, clock: FakeClock) -> None:
        put(directory, 1, said_at=max(0.0, NOW + error_s))
        put(directory, 2, said_at=NOW - RECORD_LIFE_S / 2)
        assert names(await board.refresh()) == ["person-2"]

    with_board(test)


def test_a_peer_that_said_goodbye_is_gone() -> None:
    async def test(board: ProgressBoard, directory: FakeDirectory, clock: FakeClock) -> None:
        put(directory, 1)
        assert names(await board.refresh()) == ["person-1"]
        put(directory, 1, state=PeerState.LEFT, epoch=7)
        gone = await board.refresh()
        assert (names(gone), gone.left) == ([], {PEOPLE[1].peer_id: 7})
        put(directory, 1)
        back = await board.refresh()
        assert (names(back), back.left) == (["person-1"], {})
        put(directory, 1, state=PeerState.LEFT)
        await board.publish(record(0))
        assert names(await board.refresh()) == ["person-0"]
        await board.publish(record(0, state=PeerState.LEFT))
        assert names(await board.refresh()) == []

    with_board(test)


def test_records_of_another_run_are_left_out() -> None:
    async def test(board: ProgressBoard, directory: FakeDirectory, clock: FakeClock) -> None:
        put(directory, 1, fingerprint="g" * 64)
        put(directory, 2, fingerprint=F[:32])
        put(directory, 3)
        assert names(await board.refresh()) == ["person-3"]

    with_board(test)


@pytest.mark.parametrize("value", [b"", b"garbage", b"\xc1", bytes(5000), pack_record(record(2), PEOPLE[2])])
def test_garbage_in_the_directory_hides_nobody_else(value: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def test(board: ProgressBoard, directory: FakeDirectory, clock: FakeClock) -> None:
        put(directory, 1)
        directory.table[KEY]["not a peer id"] = Entry(value, NOW + 100)
        directory.table[KEY][PEOPLE[3].peer_id] = Entry(value, NOW + 100)
        with caplog.at_level(logging.DEBUG, logger="collab.swarm.board"):
            assert names(await board.refresh()) == ["person-1"]
        assert caplog.text.count("record refused") == 2

    with_board(test)


def test_a_directory_that_does_not_answer_leaves_the_last_view_until_its_records_are_stale() -> None:
    async def test(board: ProgressBoard, directory: FakeDirectory, clock: FakeClock) -> None:
        put(directory, 1)
        put(directory, 2, said_at=NOW + 10)
        await board.refresh()
        directory.is_silent = True
        clock.at = NOW + 10
        assert names(await board.refresh()) == ["person-1", "person-2"]
        clock.at = NOW + RECORD_LIFE_S + 1
        assert names(await board.refresh()) == ["person-2"]

    with_board(test)


def test_a_slow_directory_is_read_though_it_takes_longer_than_the_first_limit() -> None:
    async def test(board: ProgressBoard, directory: FakeDirectory, clock: FakeClock) -> None:
        put(directory, 1)
        directory.answers_after_s = FIRST_S + 0.5
        assert names(await board.refresh()) == []
        assert names(await board.refresh()) == ["person-1"]

    with_board(test)


def test_a_directory_that_was_quick_and_is_dead_does_not_hold_up_its_reader_for_the_first_limit() -> None:
    async def test(board: ProgressBoard, directory: FakeDirectory, clock: FakeClock) -> None:
        put(directory, 1, said_at=NOW + 10)
        directory.answers_after_s = 0.1
        for _ in range(ENOUGH):
            await board.refresh()
        directory.answers_after_s = math.inf
        began_s = clock.monotonic()
        assert names(await board.refresh()) == ["person-1"]
        assert clock.monotonic() - began_s == pytest.approx(SHORTEST_S)

    with_board(test)


def test_one_lost_answer_does_not_forget_the_last_peer_and_a_peer_that_left_stays_gone() -> None:
    async def test(board: ProgressBoard, directory: FakeDirectory, clock: FakeClock) -> None:
        put(directory, 1)
        await board.refresh()
        directory.table.clear()
        assert names(await board.refresh()) == ["person-1"]

    with_board(test)


def test_a_word_that_no_keeper_took_is_known_as_not_heard() -> None:
    async def test(board: ProgressBoard, directory: FakeDirectory, clock: FakeClock) -> None:
        directory.is_silent = True
        await board.publish(record(0))
        assert not board.is_heard
        directory.is_silent = False
        await board.publish(record(0))
        assert board.is_heard

    with_board(test)
