"""A large swarm in few words: what a backbone tells, who is believed, and where records are."""

import math
import random
from collections.abc import Mapping
from dataclasses import replace

import msgpack
import pytest

from collab.config import parse_run
from collab.errors import BadMessage
from collab.net.base import Entry
from collab.swarm.access import Grant, Papers, pack_grant
from collab.swarm.board import ProgressBoard
from collab.swarm.bundle import Bundle
from collab.swarm.crowd import (
    CROWD_BELOW,
    CROWD_FROM,
    HEARTBEAT_S,
    HELPERS,
    LONGEST_HEARTBEAT_S,
    MAX_BYTES,
    MAX_LEVEL,
    PAGE_RECORDS,
    PURPOSE,
    SAMPLE,
    Crowd,
    copy_key,
    copy_keys,
    heartbeat_s,
    idle_s,
    level_for,
    pack_crowd,
    page_key,
    page_keys,
    unpack_crowd,
)
from collab.swarm.identity import Identity
from collab.swarm.page import CROWD_SUBKEY, MAX_ENTRIES, Known, looked_at
from collab.swarm.progress import SwarmView
from collab.swarm.records import PeerRecord, PeerState, pack_record
from collab.swarm.statutes import Statutes
from collab.swarm.summing_up import sum_up
from collab.types import Lineage, PeerId, Role
from tests.fakes import NOW, FakeDirectory, FakeNetwork, make_ports, run

RUN = """\
run_id: many
task: {name: image_classification, hidden_sizes: [16]}
strategy: {name: dedloc, target_batch_size: 1000}
"""
OWNER, BACKBONE = Identity.from_seed(b"o" * 32), Identity.from_seed(b"b" * 32)
BUNDLE = Bundle(parse_run(RUN, origin="the test"), {}, OWNER.peer_id)
F = BUNDLE.fingerprint
L, M = Lineage("l" * 64), Lineage("m" * 64)
MANY = [Identity.from_seed(bytes([n // 256, n % 256]) * 16) for n in range(1, 41)]
"""Trainers."""


def word(who: Identity, **changes: object) -> PeerRecord:
    plain = PeerRecord(
        peer=who.peer_id, fingerprint=F, name="somebody", role=Role.TRAINER, state=PeerState.TRAINING, said_at=NOW,
        can_be_dialled=True, epoch=5, lineage=L, samples=10, samples_per_s=2.0,
    )  # fmt: skip
    return replace(plain, **changes)  # type: ignore[arg-type]


def helper(**changes: object) -> PeerRecord:
    return word(BACKBONE, role=Role.BACKBONE, state=PeerState.SERVING, samples=0, samples_per_s=0.0, **changes)


def view_of(*records: PeerRecord, max_share: float = 1.0) -> SwarmView:
    return SwarmView(tuple(sorted(records, key=lambda r: r.peer)), NOW, max_share=max_share)


def summed_up(view: SwarmView) -> Crowd:
    keys = {who.peer_id: who for who in (*MANY, BACKBONE)}
    raw = {record.peer: pack_record(record, keys[record.peer]) for record in view.records}
    return sum_up(view, raw, fingerprint=F, now=NOW, life_s=20.0)


# -- when one looks ----------------------------------------------------------------------------------------------------


def test_among_few_there_may_be_news_at_any_time_and_in_a_crowd_one_sleeps_until_something_is_due() -> None:
    crowd = summed_up(view_of(*(word(who) for who in MANY), helper()))
    assert idle_s(None, NOW, 7.9, step_s=0.5) == 0.5
    assert idle_s(crowd, NOW, 7.9, step_s=0.5) == 8.0
    for overdue_s in (-3.0, -math.inf):
        assert idle_s(crowd, NOW, overdue_s, step_s=0.5) == 0.5
    assert idle_s(crowd, NOW + 18.1, 7.9, step_s=0.5) == 2.0, "its word is too old by then"


# -- what is told ------------------------------------------------------------------------------------------------------


def test_a_summary_says_of_all_what_their_records_say() -> None:
    records = [word(who, epoch=5 + (n > 30), lineage=M if n > 30 else L, samples=n) for n, who in enumerate(MANY)]
    view = view_of(*records, helper())
    told = SwarmView((), NOW, crowd=summed_up(view))
    for history in ((5, L), (6, M), (9, L)):
        assert told.number_at(*history) == view.number_at(*history)
        assert told.samples(*history) == view.samples(*history)
    assert told.num_peers == view.num_peers == 41
    assert told.num_trainers == view.num_trainers == 40
    assert told.samples_per_s == view.samples_per_s
    assert told.consensus() == view.consensus() == (5, L)
    assert told.newest() == view.newest() == (6, M)
    assert told.is_at_rest() == view.is_at_rest() is False


@pytest.mark.parametrize("seed", range(5))
def test_whether_the_run_is_over_is_told_as_it_is(seed: int) -> None:
    rng = random.Random(seed)
    records = [word(who, epoch=rng.choice([8, 9, 10])) for who in MANY[:20]]
    left = {who.peer_id: rng.choice([9, 10]) for who in MANY[20:30]}
    view = replace(view_of(*records), left=left)
    told = SwarmView((), NOW, crowd=summed_up(view))
    for until in (8, 9, 10, 11):
        assert told.is_over(until) == view.is_over(until)


def test_everybody_reads_the_same_few_records_whoever_sums_up_and_wherever_their_last_words_were() -> None:
    first = summed_up(view_of(*(word(who) for who in MANY), helper()))
    later = summed_up(view_of(*(word(who, epoch=5 + n % 2, lineage=M) for n, who in enumerate(MANY)), helper()))
    assert [peer for peer, _ in first.sample] == [peer for peer, _ in later.sample]
    assert first.sample[0][0] == BACKBONE.peer_id
    assert len(first.sample) == SAMPLE + 1 <= SAMPLE + HELPERS
    next_ones = summed_up(view_of(*(word(who, epoch=100) for who in MANY), helper()))
    assert {peer for peer, _ in next_ones.sample} != {peer for peer, _ in first.sample}, "the work goes round"


def test_nobody_is_told_of_whom_nobody_can_dial() -> None:
    crowd = summed_up(view_of(*(word(who, can_be_dialled=n < 3) for n, who in enumerate(MANY))))
    assert {peer for peer, _ in crowd.sample} == {who.peer_id for who in MANY[:3]}


def test_one_liar_does_not_fill_the_batch() -> None:
    honest = [word(who, samples=10, samples_per_s=1.0) for who in MANY[:9]]
    liar = word(MANY[9], samples=10**9, samples_per_s=1e9)
    view = view_of(*honest, liar, max_share=0.15)
    assert 90 < view.samples(5, L) <= 90 / (1 - 0.15) + 1
    assert summed_up(view).at(5, L).samples == int(view.samples(5, L))
    assert 9.0 < summed_up(view).samples_per_s <= 9.0 / (1 - 0.15) + 0.1
    assert view_of(*honest, liar).samples(5, L) > 10**9, "where a run lets one peer be all of a batch, it is"


# -- how it travels ----------------------------------------------------------------------------------------------------


def test_a_summary_is_read_as_it_was_written_and_is_small() -> None:
    crowd = summed_up(view_of(*(word(who, credential=b"c" * 250) for who in MANY), helper()))
    data = pack_crowd(crowd, BACKBONE)
    assert unpack_crowd(data, BACKBONE.peer_id) == crowd
    assert len(data) < MAX_BYTES / 4


def test_a_changed_or_foreign_summary_is_refused() -> None:
    data = pack_crowd(summed_up(view_of(*(word(who) for who in MANY[:9]))), BACKBONE)
    with pytest.raises(BadMessage, match="not signed"):
        unpack_crowd(data, OWNER.peer_id)
    for place in range(0, len(data), 7):
        changed = bytearray(data)
        changed[place] ^= 4
        with pytest.raises(BadMessage):
            unpack_crowd(bytes(changed), BACKBONE.peer_id)
    with pytest.raises(BadMessage, match="over the limit"):
        unpack_crowd(bytes(MAX_BYTES + 1), BACKBONE.peer_id)


FIELDS = [F, 1.0, 1.0, 1, 2, [[5, L, 2, 2, 10, 2.0]], [[5, 1]], []]


@pytest.mark.parametrize(
    ("number", "value"),
    [
        (0, None), (1, -1.0), (1, float("nan")), (2, float("inf")), (2, "long"), (3, 0), (3, MAX_LEVEL + 1), (3, -1),
        (4, -1), (5, [[5, L, 2, 2, -1, 2.0]]), (5, [[5, L, 2]]), (5, [[1, L, 1, 1, 1, 1.0]] * 17), (5, 3),
        (6, [[1, 1]] * 17), (6, [[1]]), (7, [["peer", b"record"]] * (SAMPLE + HELPERS + 1)), (7, [[1, 2, 3]]),
        (1, "1.0"), (3, math.inf), (4, "9" * 4000), (4, True), (5, [[5, 7, 2, 2, 1, 2.0]]), (6, [[1, 1.5]]),
        (7, [["peer", 1 << 20]]), (7, [[5, b"record"]]),
    ],
)  # fmt: skip
def test_impossible_values_are_refused(number: int, value: object) -> None:
    values = [*FIELDS[:number], value, *FIELDS[number + 1 :]]
    body: bytes = msgpack.packb(values)
    data = msgpack.packb([body, BACKBONE.sign(PURPOSE + body)])
    with pytest.raises(BadMessage):
        unpack_crowd(data, BACKBONE.peer_id)


# -- where it is -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trainers", [CROWD_FROM, PAGE_RECORDS, PAGE_RECORDS + 1, 1000, 16_000, 10**7])
def test_every_trainer_has_one_page_and_one_copy_and_they_are_few_to_each(trainers: int) -> None:
    level = level_for(trainers)
    pages, copies = page_keys("run", level), copy_keys("run", level)
    assert 1 <= level <= MAX_LEVEL
    assert trainers / len(pages) <= PAGE_RECORDS or level == MAX_LEVEL
    names = [PeerId(f"peer {number}") for number in range(500)]
    assert {page_key("run", level, name) for name in names} <= set(pages)
    assert {copy_key("run", level, name) for name in names} <= set(copies)
    assert len(set(pages) | set(copies) | {"run"}) == len(pages) + len(copies) + 1
    assert HEARTBEAT_S <= heartbeat_s(trainers) <= LONGEST_HEARTBEAT_S


def test_a_small_swarm_has_one_page() -> None:
    assert page_key("run", 0, PeerId("anybody")) == "run"
    assert page_keys("run", 0) == copy_keys("run", 0) == []


# -- the board ---------------------------------------------------------------------------------------------------------


class Place:
    """A directory, and boards of one run around it."""

    def __init__(self, network: FakeNetwork) -> None:
        self.directory: FakeDirectory = FakeDirectory()
        self._network = network

    def board(self, who: Identity, *, is_named: bool = False) -> ProgressBoard:
        ports = make_ports(self._network.join(who.peer_id), self.directory)
        if is_named:
            grant = Grant(
                fingerprint=F, key=who.peer_id, person="b", devices=1, expires_at=NOW + 1e9, role=Role.BACKBONE
            )
            papers = Papers(grant=pack_grant(grant, OWNER), key=who)
            ports.entrance.credential = papers.credentials(who.peer_id, ports.clock.now).current
        return ProgressBoard(ports, who, F, Statutes(ports, BUNDLE))


async def crowded(place: Place, number: int) -> tuple[ProgressBoard, list[ProgressBoard]]:
    """A backbone that has told of so many trainers, once they have all spoken."""
    trainers = [place.board(who) for who in MANY[:number]]
    backbone = place.board(BACKBONE, is_named=True)
    await backbone.publish(helper())
    for who, board in zip(MANY, trainers, strict=False):
        await board.publish(word(who))
    await backbone.refresh()
    await backbone.sum_up()
    return backbone, trainers


@pytest.mark.parametrize("number", [CROWD_BELOW - 1, CROWD_FROM - 1, CROWD_FROM, 40])
def test_a_swarm_of_a_few_is_read_whole_and_a_crowd_in_brief(number: int) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            _, trainers = await crowded(Place(network), number)
            view = await trainers[0].refresh(brief=True)
            assert view.num_trainers == number
            assert (view.crowd is not None) == (number >= CROWD_FROM)
            assert len(view.records) <= 1 + SAMPLE + HELPERS
            assert len((await trainers[0].refresh()).records) == number + 1, "who asks for all gets all"

    run(main())


def test_trainers_of_a_crowd_write_to_pages_and_are_found_there() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            place = Place(network)
            backbone, trainers = await crowded(place, 40)
            front = next(key for key in place.directory.table if key.endswith(".peers"))
            for who, board in zip(MANY, trainers, strict=True):
                await board.refresh(brief=True)
                await board.publish(word(who, said_at=NOW + 1.0, epoch=6))
            for who in MANY:
                place.directory.table[front].pop(who.peer_id)
            view = await backbone.refresh()
            assert {record.epoch for record in view.all_trainers()} == {6}
            assert len(view.all_trainers()) == 40

    run(main())


class OfNewcomers(FakeDirectory):
    """Whose first keeper has only what was said since it came."""

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[str, dict[str, Entry]] = {}

    def newcomer(self) -> None:
        """Another one comes, and is first from now on."""
        self._before = {key: dict(entries) for key, entries in self.table.items()}

    async def get(self, key: str, *, timeout_s: float, fresh_until: float | None = None) -> Mapping[str, Entry]:
        all_of_it = await super().get(key, timeout_s=timeout_s)
        before = self._before.get(key, {})
        first = {name: entry for name, entry in all_of_it.items() if before.get(name) != entry}
        is_enough = fresh_until is not None and any(entry.expires_at > fresh_until for entry in first.values())
        return first if is_enough else all_of_it


def test_who_judges_hears_a_goodbye_from_before_the_first_keeper_came() -> None:
    """Else it refuses each round without the one who left, as it has heard of it not long ago."""

    async def main() -> None:
        async with FakeNetwork() as network:
            place = Place(network)
            place.directory = directory = OfNewcomers()
            backbone, trainers = await crowded(place, CROWD_FROM)
            for who, board in zip(MANY, trainers, strict=False):
                await board.refresh(brief=True)
                await board.publish(word(who, said_at=NOW + 1.0))
            await trainers[1].publish(word(MANY[1], said_at=NOW + 2.0, state=PeerState.LEFT))
            directory.newcomer()
            await backbone.publish(helper(said_at=NOW + 3.0))
            await trainers[0].publish(word(MANY[0], said_at=NOW + 3.0))
            for reader in (trainers[0], backbone):
                view = await reader.refresh()
                assert MANY[1].peer_id in view.left
                assert len(view.all_trainers()) == CROWD_FROM - 1

    run(main())


def test_a_backbone_that_the_owner_has_not_named_is_not_believed() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            place = Place(network)
            await crowded(place, 20)
            liar = Identity.from_seed(b"l" * 32)
            await place.board(liar).publish(replace(helper(), peer=liar.peer_id))
            lie = replace(summed_up(view_of(*(word(who, epoch=10**6) for who in MANY))), said_at=NOW + 5.0)
            front = next(key for key in place.directory.table if key.endswith(".peers"))
            for key in (front, *copy_keys(front, 1)):
                name = f"crowd:{liar.peer_id}"
                await place.directory.store(key, name, pack_crowd(lie, liar), expires_at=NOW + 50, timeout_s=1)
            view = await place.board(MANY[30]).refresh(brief=True)
            assert view.consensus() == (5, L)
            assert view.crowd is not None
            assert view.crowd.trainers == 20

    run(main())


def test_nobody_s_nonsense_keeps_others_from_reading() -> None:
    """A summary is read before it is known whether its author may tell of all."""

    async def main() -> None:
        async with FakeNetwork() as network:
            place = Place(network)
            await crowded(place, 20)
            stranger = Identity.from_seed(b"l" * 32)
            body = msgpack.packb([F, NOW, 60.0, math.inf, 20, [], [], []])
            data = msgpack.packb([body, stranger.sign(PURPOSE + body)])
            front = next(key for key in place.directory.table if key.endswith(".peers"))
            name = f"crowd:{stranger.peer_id}"
            await place.directory.store(front, name, data, expires_at=NOW + 50, timeout_s=1)
            view = await place.board(MANY[30]).refresh(brief=True)
            assert view.num_trainers == 20

    run(main())


async def fill(place: Place, front: str, number: int) -> None:
    """Words that come before all others by name, as when so many come at once, or somebody makes them up."""
    for n in range(number):
        await place.directory.store(front, f"!{n}", b"?", expires_at=NOW + 50, timeout_s=1)


def test_a_page_that_is_too_long_hides_neither_summary_nor_backbone_from_a_newcomer() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            place = Place(network)
            await crowded(place, 20)
            front = next(key for key in place.directory.table if key.endswith(".peers"))
            await fill(place, front, 700)
            for n in range(40):
                await place.directory.store(front, f"crowd:!{n}", b"?", expires_at=NOW + 50, timeout_s=1)
            board = place.board(MANY[30])
            for _ in range(12):  # two in five of the summaries are looked at each time
                view = await board.refresh(brief=True)
            assert view.num_trainers == 20
            assert view.crowd is not None
            assert BACKBONE.peer_id in {record.peer for record in view.records}

    run(main())


def test_a_backbone_behind_thousands_of_words_is_found_after_some_looks() -> None:
    """Nobody tells of all yet: more have come at once than anybody looks at."""

    async def main() -> None:
        async with FakeNetwork() as network:
            place = Place(network)
            await place.board(BACKBONE, is_named=True).publish(helper())
            front = next(key for key in place.directory.table if key.endswith(".peers"))
            await fill(place, front, 2000)
            board = place.board(MANY[30])
            found = [BACKBONE.peer_id in {one.peer for one in (await board.refresh()).records} for _ in range(30)]
            assert any(found)
            assert all(found[found.index(True) :]), "whom we know is looked at each time"

    run(main())


def test_known_trainers_fill_no_page_and_known_helpers_are_read_each_time() -> None:
    page = {f"trainer {n}" for n in range(600)} | {"helper", "newcomer"}
    known = Known(peers=page - {"newcomer"}, backbones={"helper", "gone"}, helpers=page - {"newcomer"}, authors=set())
    rng = random.Random(1)
    chosen = [looked_at(page, known, rng) for _ in range(20)]
    assert all("helper" in names and "newcomer" in names for names in chosen)
    assert all(len(set(names)) == len(names) == MAX_ENTRIES for names in chosen)
    assert set().union(*chosen) == page, "each is looked at sometimes"


def test_a_backbone_that_is_not_named_tells_nothing() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            place = Place(network)
            for who in MANY:
                await place.board(who).publish(word(who))
            board = place.board(BACKBONE)
            await board.publish(helper())
            await board.refresh()
            await board.sum_up()
            assert not [name for page in place.directory.table.values() for name in page if name.startswith("crowd:")]

    run(main())


def test_a_helper_that_is_started_again_in_a_crowd_is_heard_as_soon_as_it_has_read_what_it_said_before() -> None:
    """What it said in the life before ends later than the first words of this one, which knows nothing of a crowd."""

    async def main() -> None:
        async with FakeNetwork() as network:
            place = Place(network)
            backbone, trainers = await crowded(place, 40)
            await backbone.publish(helper(said_at=NOW + 1.0, epoch=6))  # of a crowd's long life
            again = place.board(BACKBONE)
            await again.publish(helper(said_at=NOW + 2.0, epoch=7))
            view = await trainers[0].refresh()
            assert [record.epoch for record in view.helpers()] == [6], "the directory keeps what ends later"
            await again.refresh()
            await again.publish(helper(said_at=NOW + 3.0, epoch=8))
            view = await trainers[0].refresh()
            assert [record.epoch for record in view.helpers()] == [8]

    run(main())


def test_a_summary_takes_the_place_of_one_of_an_earlier_life_that_would_have_lasted_longer() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            place = Place(network)
            for who in MANY:
                await place.board(who).publish(word(who))
            board = place.board(BACKBONE, is_named=True)
            await board.publish(helper())
            page, name = place.directory.table[f"{F[:32]}.peers"], f"{CROWD_SUBKEY}{BACKBONE.peer_id}"
            page[name] = Entry(b"of another version", NOW + 1000.0)
            await board.refresh()
            await board.sum_up()
            assert unpack_crowd(page[name].value, BACKBONE.peer_id).trainers == len(MANY)

    run(main())
