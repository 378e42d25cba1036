"""A backbone's way to the Hub: when it tries, when it waits, and what a person hears of it."""

import asyncio
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from collab.checkpoints.base import Order
from collab.checkpoints.hub_publisher import HubPublisher, OnHub
from collab.checkpoints.hub_repository import HubPlace, HubRepository
from collab.checkpoints.local_publisher import LocalPublisher
from collab.errors import CheckpointFailed, CollabError, Fenced, HubBusy, HubDenied
from collab.metrics.records import CheckpointOnHub, Notice
from collab.metrics.store import MetricsStore
from collab.swarm.backbone_records import Publication
from collab.swarm.lease import Tenure
from collab.types import Lineage, PeerId
from peers.hub_desk import DENIED_S, FIRST_WAIT_S, LONG_S, LONGEST_WAIT_S, SPREAD, HubDesk, HubPlan
from peers.hub_service import has_told
from tests.checkpoints.test_hub_publisher import NAME, Shop, epochs
from tests.checkpoints.test_local import snapshot
from tests.checkpoints.test_local_publisher import FILES, order
from tests.fakes import FakeCompute, FakeNetwork, FakeObserver, make_ports, run
from tests.hub.client import hub
from tests.hub.standin import HubStandIn

__all__ = ["hub"]
A, B = PeerId("a"), PeerId("b")
Answer = Exception | None


class Disk:
    """A shelf with one checkpoint after the other."""

    def __init__(self, root: Path = Path("/shelf")) -> None:
        self.root = root
        self.publication: Publication | None = None
        self.era = ""

    def put(self, epoch: int, era: str = "") -> None:
        self.era = era
        self.publication = Publication(
            epoch=epoch, lineage=Lineage("l"), digest=f"{era}{epoch:064d}", term=1, holder=A
        )


class Desk:
    """A desk in virtual time, and a Hub that answers as it is told: an error, or None for a commit."""

    def __init__(
        self,
        *answers: Answer,
        publish: Callable[[Path, Order], OnHub] | None = None,
        every_s: float = 0.0,
        until: int | None = None,
    ) -> None:
        self.answers = list(answers)
        self.disk, self.tenure = Disk(), Tenure(1, A)
        self.held: Tenure | None = self.tenure
        self.attempts: list[tuple[float, int, Tenure]] = []
        self.ports = make_ports(FakeNetwork().join("a"))
        self.plan = HubPlan(
            place=NAME,
            publish=publish or self.publish,
            worker=FakeCompute(),
            every_s=every_s,
            is_last=lambda epoch: epoch == until,
        )
        self.desk = HubDesk(self.ports, self.disk, lambda: self.held, self.plan)

    def hold(self, tenure: Tenure | None) -> None:
        self.held = tenure

    def publish(self, path: Path, wanted: Order) -> OnHub:
        epoch = wanted.publication.epoch
        assert path == self.disk.root / f"epoch-{epoch:08d}"
        self.attempts.append((self.ports.clock.monotonic(), epoch, wanted.authority))
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer
        return OnHub(commit="c" * 40, epoch=epoch, num_bytes=10, is_new=True)

    def events(self, kind: type) -> list[Any]:
        assert isinstance(self.ports.observer, FakeObserver)
        return [event for event in self.ports.observer.events if isinstance(event, kind)]

    def live(self, seconds: float, *changes: tuple[float, Callable[[], None]]) -> None:
        """Run for a while; ``changes`` happen at their times."""

        async def main() -> None:
            loop = asyncio.get_running_loop()
            for at_s, change in changes:
                loop.call_at(at_s, change)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.desk.run()

        run(main())

    @property
    def times_s(self) -> list[float]:
        return [at_s for at_s, _, _ in self.attempts]


def test_each_checkpoint_is_published_once() -> None:
    desk = Desk()
    desk.disk.put(10)
    desk.live(60.0, (30.0, lambda: desk.disk.put(20)))
    assert [(epoch, tenure) for _, epoch, tenure in desk.attempts] == [(10, Tenure(1, A)), (20, Tenure(1, A))]
    assert [(e.epoch, e.place, e.num_bytes) for e in desk.events(CheckpointOnHub)] == [(10, NAME, 10), (20, NAME, 10)]
    assert desk.events(Notice) == []


def test_who_does_not_hold_the_lease_publishes_nothing_and_a_new_lease_looks_again() -> None:
    desk = Desk()
    desk.disk.put(10)
    desk.held = None
    desk.live(60.0, (30.0, lambda: setattr(desk, "held", Tenure(4, A))))
    assert [(epoch, tenure) for _, epoch, tenure in desk.attempts] == [(10, Tenure(4, A))]
    assert desk.times_s[0] >= 30.0


def test_waits_grow_up_to_a_quarter_of_an_hour_and_people_hear_of_it_once() -> None:
    desk = Desk(*[HubBusy("the Hub answered 503") for _ in range(12)])
    desk.disk.put(10)
    desk.live(3 * 3600.0)
    waits_s = [later - before for before, later in pairwise(desk.times_s)]
    for number, wait_s in enumerate(waits_s):
        expected_s = min(FIRST_WAIT_S * 2**number, LONGEST_WAIT_S)
        assert expected_s <= wait_s <= expected_s * (1 + SPREAD) + 1.0
    assert len(desk.attempts) == 13
    problem, again = desk.events(Notice)
    assert problem.is_problem
    assert "stay on this disk" in problem.hint
    assert (again.text, again.settles) == (f"{NAME} takes checkpoints again", problem.text)


def test_a_single_failure_is_nobodys_business() -> None:
    desk = Desk(HubBusy("the Hub answered 500"))
    desk.disk.put(10)
    desk.live(60.0)
    assert len(desk.attempts) == 2
    assert desk.events(Notice) == []


def test_the_hub_is_not_asked_before_the_time_that_it_has_named() -> None:
    desk = Desk(HubBusy("the Hub answered 429", retry_after_s=600.0))
    desk.disk.put(10)
    desk.live(900.0)
    assert desk.times_s[1] >= desk.times_s[0] + 600.0
    assert len(desk.attempts) == 2


def test_after_a_failure_the_newest_checkpoint_is_tried() -> None:
    desk = Desk(HubBusy("no"), CheckpointFailed("it was deleted"))
    desk.disk.put(10)
    desk.live(60.0, (2.0, lambda: desk.disk.put(20)), (8.0, lambda: desk.disk.put(30)))
    assert [epoch for _, epoch, _ in desk.attempts] == [10, 20, 30]


NEVER = Fenced("a later term has published there", hint="start this one again with --from")
FOR_NOW = Fenced("it holds epoch 40, which is later")


@pytest.mark.parametrize("error", [NEVER, FOR_NOW])
def test_what_will_not_work_is_said_once_and_tried_again_with_the_next_checkpoint_only(error: CollabError) -> None:
    desk = Desk(error, error.again())
    desk.disk.put(10)
    desk.live(4000.0, (1000.0, lambda: desk.disk.put(20)), (2000.0, lambda: desk.disk.put(30)))
    assert [epoch for _, epoch, _ in desk.attempts] == [10, 20, 30]
    first, again = desk.events(Notice)
    assert (first.text, first.hint) == (error.message, error.hint)
    assert first.is_problem is (error is not FOR_NOW), "a problem asks for action"
    assert again.text == f"{NAME} takes checkpoints again"


DENIED = HubDenied("it answered 403", hint="make a token")


def test_what_was_refused_is_tried_again_each_quarter_of_an_hour_and_said_once() -> None:
    """Somebody mends the token, or makes room, and need not start the backbone again."""
    desk = Desk(*[DENIED.again() for _ in range(4)])
    desk.disk.put(10)
    desk.live(5 * DENIED_S, (2.5 * DENIED_S, lambda: desk.disk.put(20)))
    assert [epoch for _, epoch, _ in desk.attempts] == [10, 10, 10, 20, 20]
    for before, later in ((0, 1), (1, 2), (3, 4)):
        assert DENIED_S <= desk.times_s[later] - desk.times_s[before] <= DENIED_S + 1.0
    first, again = desk.events(Notice)
    assert (first.text, first.hint, first.is_problem) == (DENIED.message, DENIED.hint, True)
    assert again.text == f"{NAME} takes checkpoints again"


def test_what_is_on_the_hub_is_not_asked_about_again_after_a_refusal_of_before() -> None:
    desk = Desk(DENIED.again())
    desk.disk.put(10)
    desk.live(5 * DENIED_S)
    assert [epoch for _, epoch, _ in desk.attempts] == [10, 10]


# -- how often ---------------------------------------------------------------------------------------------------------


def test_after_a_commit_the_next_one_waits_and_is_of_the_newest_checkpoint_then() -> None:
    desk = Desk(every_s=3600.0)
    puts = [(at_s, lambda epoch=epoch: desk.disk.put(epoch)) for epoch, at_s in ((10, 5.0), (20, 600.0), (30, 3000.0))]
    desk.live(3 * 3600.0, *puts, (4500.0, lambda: desk.disk.put(40)))
    assert [epoch for _, epoch, _ in desk.attempts] == [10, 30, 40]
    waits_s = [later - before for before, later in pairwise(desk.times_s)]
    assert all(3600.0 <= wait_s <= 3601.0 for wait_s in waits_s)


def test_a_failed_attempt_is_no_commit_and_what_fails_is_tried_again_as_ever() -> None:
    desk = Desk(HubBusy("no"), every_s=3600.0)
    desk.disk.put(10)
    desk.live(60.0)
    assert len(desk.attempts) == 2


def test_the_last_checkpoint_of_the_run_waits_for_nothing() -> None:
    desk = Desk(every_s=3600.0, until=30)
    desk.disk.put(10)
    desk.live(60.0, (10.0, lambda: desk.disk.put(20)), (20.0, lambda: desk.disk.put(30)))
    assert [epoch for _, epoch, _ in desk.attempts] == [10, 30]


@pytest.mark.parametrize("epoch", [10, 20, 30])
def test_after_a_rollback_the_repository_has_the_new_history_at_once(epoch: int) -> None:
    """Also where the run had gone on since the last commit: from another history nobody can go on any more."""
    desk = Desk(every_s=3600.0)
    desk.disk.put(20)
    puts = [(at_s, lambda to=to: desk.disk.put(to, "a mark")) for at_s, to in ((10.0, epoch), (20.0, epoch + 10))]
    desk.live(60.0, *puts)
    assert [epoch for _, epoch, _ in desk.attempts] == [20, epoch]


def test_a_run_that_has_lost_its_last_steps_is_on_the_hub_as_it_is_now_at_once() -> None:
    desk = Desk(every_s=3600.0)
    desk.disk.put(20)
    desk.live(60.0, (10.0, lambda: desk.disk.put(10)))
    assert [epoch for _, epoch, _ in desk.attempts] == [20, 10]


def leave(desk: Desk, after_s: float, limit_s: float) -> float:
    """Have it live, and then finish; how long that took."""

    async def main() -> float:
        task = asyncio.create_task(desk.desk.run())
        await asyncio.sleep(after_s)
        began_s = desk.ports.clock.monotonic()
        await desk.desk.finish(limit_s)
        took_s = desk.ports.clock.monotonic() - began_s
        await asyncio.sleep(10.0)
        task.cancel()
        await asyncio.wait([task])
        return took_s

    return run(main())


def test_a_backbone_that_leaves_has_its_newest_checkpoint_sent_however_short_ago_the_last_one_was() -> None:
    desk = Desk(every_s=3600.0)
    desk.disk.put(10)
    desk.live(10.0)
    desk.disk.put(20)
    assert leave(desk, 5.0, 2.5) == 0.0
    assert [epoch for _, epoch, _ in desk.attempts] == [10, 20]
    assert desk.desk.under_way is None


def test_a_backbone_that_leaves_waits_for_the_hub_no_longer_than_it_can() -> None:
    class SlowCompute(FakeCompute):
        async def run(self, work: Callable[[], Any], *, samples: float = 0.0) -> Any:
            await asyncio.sleep(3600.0)

    desk = Desk(every_s=3600.0)
    desk.desk = HubDesk(desk.ports, desk.disk, lambda: desk.held, replace(desk.plan, worker=SlowCompute()))
    assert leave(desk, 5.0, 2.5) == 0.0, "there is nothing to send"
    desk.desk = HubDesk(desk.ports, desk.disk, lambda: desk.held, replace(desk.plan, worker=SlowCompute()))
    desk.disk.put(10)
    assert leave(desk, 5.0, 2.5) == 2.5
    assert desk.desk.under_way == 10, "so that it can be told"


def test_an_upload_that_hangs_is_told_after_an_hour() -> None:
    desk = Desk()

    class SlowCompute(FakeCompute):
        async def run(self, work: Callable[[], Any], *, samples: float = 0.0) -> Any:
            await asyncio.sleep(3 * LONG_S)
            return work()

    desk.desk = HubDesk(desk.ports, desk.disk, lambda: desk.held, replace(desk.plan, worker=SlowCompute()))
    desk.disk.put(10)
    told: list[tuple[str, str]] = []

    def look() -> None:
        told.append((desk.desk.standing, desk.desk.next_step))

    desk.live(4 * LONG_S, *((at_s, look) for at_s in (10.0, LONG_S - 10.0, LONG_S + 10.0, 3 * LONG_S + 10.0)))
    assert told[0] == told[1] == told[3] == ("", "")
    assert told[2][0].startswith("epoch 10 is not on the Hub yet: it has been on its way since ")
    assert "uplink" in told[2][1]


def test_what_of_the_repository_was_of_no_use_is_said() -> None:
    there = OnHub(commit="c" * 40, epoch=10, num_bytes=10, is_new=True, remark="its history is garbled")
    desk = Desk(publish=lambda *_: there)
    desk.disk.put(10)
    desk.live(10.0)
    assert [(one.text, one.is_problem) for one in desk.events(Notice)] == [("its history is garbled", False)]


# -- what people hear --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [DENIED, NEVER])
def test_where_publishing_stands_is_in_words_until_it_is_well_again(error: CollabError) -> None:
    desk = Desk(error, error.again(), error.again())
    desk.disk.put(10)
    told: list[tuple[str, str]] = []

    def look() -> None:
        told.append((desk.desk.standing, desk.desk.next_step))

    look()
    desk.live(500.0, (10.0, look), (100.0, lambda: desk.disk.put(20)), (200.0, look), (201.0, lambda: desk.hold(None)),
              (202.0, look), (203.0, lambda: desk.hold(Tenure(2, A))), (300.0, look),
              (400.0, lambda: desk.disk.put(30)), (450.0, look))  # fmt: skip
    since = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(desk.events(Notice)[0].at_s))
    expected = ["", *(f"epoch {n} is not on the Hub yet: {error.message} (since {since})" for n in (10, 20)), ""]
    expected += [expected[2], ""]
    assert told == [(text, error.hint if text else "") for text in expected]


def test_a_hub_that_stumbles_once_does_not_count_and_one_that_stays_away_does() -> None:
    desk = Desk(*[HubBusy("the Hub answered 503") for _ in range(3)])
    desk.disk.put(10)
    told: list[str] = []
    desk.live(120.0, (3.0, lambda: told.append(desk.desk.standing)), (12.0, lambda: told.append(desk.desk.standing)))
    assert told[0] == ""
    assert "epoch 10 is not on the Hub yet: the Hub answered 503 (since " in told[1]
    assert desk.desk.standing == ""


def test_a_place_that_is_another_ones_by_now_is_no_problem_of_ours() -> None:
    """We stood still, the lease went on, and its holder has published."""
    desk = Desk()

    def publish(path: Path, wanted: Order) -> OnHub:
        desk.held = None
        raise NEVER

    desk.desk = HubDesk(desk.ports, desk.disk, lambda: desk.held, replace(desk.plan, publish=publish))
    desk.disk.put(10)
    desk.live(60.0)
    assert [one.is_problem for one in desk.events(Notice)] == [False]
    assert desk.desk.standing == ""


def test_a_disk_that_is_full_is_told_with_what_to_do_about_it() -> None:
    desk = Desk(*[CheckpointFailed("/run could not be written", hint="free some space") for _ in range(2)])
    desk.disk.put(10)
    desk.live(60.0)
    assert [one.hint for one in desk.events(Notice) if one.is_problem] == ["free some space"]


def test_whatever_else_goes_wrong_the_backbone_goes_on() -> None:
    desk = Desk(KeyError("a bug"), ZeroDivisionError())
    desk.disk.put(10)
    desk.live(60.0)
    assert len(desk.attempts) == 3
    assert "see the log" in desk.events(Notice)[0].text


def test_a_desk_that_is_closed_in_the_middle_knows_what_it_leaves_behind() -> None:
    desk = Desk()
    desk.disk.put(10)

    async def main() -> None:
        never = asyncio.Event()

        class SlowCompute(FakeCompute):
            async def run(self, work: Callable[[], Any], *, samples: float = 0.0) -> Any:
                await never.wait()

        plan = HubPlan(place=NAME, publish=desk.publish, worker=SlowCompute())
        slow = HubDesk(desk.ports, desk.disk, lambda: desk.held, plan)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10.0):
                await slow.run()
        assert slow.under_way == 10

    run(main())
    desk.live(10.0)
    assert desk.desk.under_way is None


def test_with_the_real_client_a_server_that_asks_for_two_minutes_gets_them(hub: HubStandIn, tmp_path: Path) -> None:
    shop = Shop(tmp_path / "ours", hub)
    path, wanted = shop.save(10, Tenure(1, A))
    times_s: list[float] = []

    def publish(path: Path, wanted: Order) -> OnHub:
        times_s.append(desk.ports.clock.monotonic())
        return shop.hub.publish(path, wanted)

    desk = Desk(publish=publish)
    desk.disk.root, desk.disk.publication = path.parent, wanted.publication
    hub.fault("PUT /large/.*", 503, headers={"Retry-After": "120"})
    hub.fault("POST .*/commit/main", 0)
    desk.live(300.0)
    waits_s = [later - before for before, later in pairwise(times_s)]
    assert len(waits_s) == 2
    assert 120.0 <= waits_s[0] < 122.0
    assert 2 * FIRST_WAIT_S <= waits_s[1] < 2 * FIRST_WAIT_S * (1 + SPREAD) + 1.0
    assert epochs(hub) == [10]
    assert [event.epoch for event in desk.events(CheckpointOnHub)] == [10]


def test_a_commit_whose_answer_was_lost_is_told_once_it_is_found(hub: HubStandIn, tmp_path: Path) -> None:
    shop = Shop(tmp_path / "ours", hub)
    path, wanted = shop.save(10, Tenure(1, A))
    desk = Desk(publish=shop.hub.publish)
    desk.disk.root, desk.disk.publication = path.parent, wanted.publication
    hub.fault("POST .*/commit/main", 0, after=True)
    desk.live(300.0, (200.0, lambda: desk.hold(Tenure(2, A))))
    assert epochs(hub) == [10]
    told = desk.events(CheckpointOnHub)
    assert [(one.epoch, one.commit) for one in told] == [(10, hub.repositories[NAME].head.id)], "and only once"
    assert told[0].num_bytes == sum(file.stat().st_size for file in path.iterdir())


@pytest.mark.parametrize("was_told", [True, False])
def test_a_commit_of_an_earlier_life_is_told_unless_that_life_has_told_of_it(was_told: bool) -> None:
    asked: list[OnHub] = []
    there = OnHub(commit="c" * 40, epoch=10, num_bytes=10, is_new=False)

    def is_told(done: OnHub) -> bool:
        asked.append(done)
        return was_told

    desk = Desk()
    desk.desk = HubDesk(desk.ports, desk.disk, lambda: desk.held, replace(
        desk.plan, publish=lambda *_: there, is_told=is_told
    ))  # fmt: skip
    desk.disk.put(10)
    desk.live(60.0)
    assert asked == [there]
    assert len(desk.events(CheckpointOnHub)) == (0 if was_told else 1)


def test_what_an_earlier_life_has_told_is_in_its_metrics() -> None:
    done = OnHub(commit="c" * 40, epoch=10, num_bytes=10, is_new=False)
    with closing(MetricsStore.in_memory()) as store:
        assert not has_told(store, NAME, done)
        event = CheckpointOnHub(at_s=0.0, epoch=10, place=NAME, commit=done.commit, num_bytes=10, seconds=1.0)
        store.write([event])
        assert has_told(store, NAME, done)
        assert not has_told(store, "org/other", done)
        assert not has_told(store, NAME, replace(done, commit="d" * 40, epoch=20))


def test_two_backbones_that_take_turns_never_interleave_on_the_hub(hub: HubStandIn, tmp_path: Path) -> None:
    """Each publishes all that is on its own disk whenever it holds the lease; terms only go up."""
    names, owners = (A, B), []
    desks = []
    for name in names:
        shop = Shop(tmp_path / name, hub)
        desk = Desk(publish=shop.hub.publish)
        desk.disk.root, desk.held = shop.root, None
        desks.append((desk, shop))
    for turn, epoch in enumerate(range(10, 90, 10)):
        desk, shop = desks[turn % 2]
        tenure = Tenure(turn + 1, names[turn % 2])
        for other, (one, place) in enumerate(desks):
            copied = order(epoch, tenure)
            place.disk.publish(snapshot(epoch), copied)
            one.disk.publication = copied.publication
            one.held = tenure if other == turn % 2 else one.held  # the one before has not heard that it has lost it
        for one, _ in desks:
            one.live(10.0)
        owners.append(tenure.holder)
    assert epochs(hub) == list(range(10, 90, 10))
    assert owners == [A, B] * 4


def test_a_publisher_that_was_killed_in_the_middle_goes_on_in_its_next_life(hub: HubStandIn, tmp_path: Path) -> None:
    """The process ends after the large files, before the commit; a file of its is left in the outbox."""

    class KilledError(BaseException):
        pass

    shop = Shop(tmp_path / "ours", hub)
    path, wanted = shop.save(10, Tenure(1, A))

    def kill() -> bool:
        raise KilledError

    with pytest.raises(KilledError):
        shop.hub.publish(path, replace(wanted, may_finish=kill))
    assert epochs(hub) == []
    assert (shop.root / "outbox").exists()
    again = Shop(tmp_path / "ours", hub)
    again.disk = LocalPublisher(again.root, "f", lambda: FILES, keep=3)
    again.hub = HubPublisher(HubRepository(HubPlace(NAME), endpoint=hub.url), again.root / "outbox", again.beside)
    sent = hub.sent_bytes
    assert again.hub.publish(path, replace(wanted, authority=Tenure(2, A))).is_new
    assert hub.sent_bytes == sent
    assert epochs(hub) == [10]
    assert not (shop.root / "outbox").exists()
