"""What a panel says first, over hours: problems and late steps before anything else, and nothing that is long over."""

import io
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from collab.metrics.guest_records import Paused, Progress, StepAwaited
from collab.metrics.records import (
    Event,
    MicrobatchDone,
    MicrobatchSkipped,
    Notice,
    RoundEnded,
    StateFetched,
    SwarmReport,
    UnitBegun,
)
from collab.metrics.sinks import Fanout
from collab.swarm.progress import SwarmView
from collab.types import Lineage, Role
from peers.event_words import AGAIN
from peers.headline import Trouble
from peers.panel import LivePanel, Watched
from peers.progress import Ahead
from peers.tally import Tally
from tests.peers.test_screen import lost, step, trainer

ALONE = Notice(
    at_s=0.0, text="no other trainer is here any more", hint="this machine trains on alone", is_problem=True
)
BOTH = SwarmView((trainer("a"), trainer("b")), 0.0)
SOON = Ahead(epoch=7, until_epoch=None, next_s=12.0, step_s=30.0)
FETCHED = StateFetched(at_s=0.0, donors={}, epoch=6, num_bytes=1, seconds=1.0)


def report(epoch: int = 12) -> SwarmReport:
    return SwarmReport(
        at_s=0.0,
        epoch=epoch,
        lineage=Lineage("b"),
        loss=2.25,
        eval_loss=math.nan,
        eval_epoch=-1,
        eval_accuracy=math.nan,
        samples_per_s=25.0,
        trainers=2,
        peers=3,
    )


def committed() -> RoundEnded:
    return RoundEnded(
        at_s=0.0, epoch=11, round_id="r", committed=True, contributors=2, samples=64.0, seconds=1.0, reason=""
    )


class Looker:
    """Somebody in front of a panel, with a clock of their own."""

    def __init__(self, role: Role = Role.TRAINER, **watched: Any) -> None:
        self.now_s = 0.0
        self.watched = Watched(title="collab: r", role=role, **{"view": lambda: BOTH, "ahead": lambda: SOON, **watched})
        self.panel = LivePanel(self.watched, clock=lambda: self.now_s)
        self._sinks = Fanout(self.watched.tally, self.panel)

    def sees(self, *events: Event, after_s: float = 0.0) -> list[str]:
        """The first lines, so long after these events."""
        for event in events:
            self._sinks.observe(event)
        self.now_s += after_s
        return self.panel.lines()

    @property
    def all(self) -> str:
        out = io.StringIO()
        Console(file=out, width=120).print(self.panel.render())
        return out.getvalue()


def test_a_problem_is_said_first_with_what_to_do_until_the_next_step() -> None:
    looker = Looker()
    assert looker.sees(step(), ALONE, after_s=120.0) == [
        "problem: no other trainer is here any more (told 2 min ago)",
        "  -> this machine trains on alone",
    ]
    assert "healthy" not in looker.all
    assert looker.sees(step(epoch=8)) == ["healthy: averaged with 2 others 0.0 s ago"]
    assert "no other trainer is here any more" in looker.all, "with its time, among what was told lately"


def test_the_newest_problem_counts_and_a_state_that_came_or_a_pause_ends_it() -> None:
    looker, other = Looker(), Notice(at_s=0.0, text="nobody gives the state", is_problem=True)
    assert looker.sees(ALONE, other)[0].startswith("problem: nobody gives the state")
    assert looker.sees(FETCHED)[0].startswith("training")
    looker.sees(ALONE)
    paused = Paused(at_s=0.0, reason="on battery", seconds=0.1, samples=0)
    assert looker.sees(paused)[0].startswith("paused: on battery")


def test_a_problem_that_is_over_is_told_as_one_no_more() -> None:
    looker, again = Looker(), Notice(at_s=0.0, text="another trainer is here again", settles=ALONE.text)
    looker.sees(step(), ALONE)
    assert looker.sees(Notice(at_s=0.0, text="hello"))[0].startswith("problem")
    assert looker.sees(Notice(at_s=0.0, text="it is there", settles="something else"))[0].startswith("problem")
    assert looker.sees(again)[0].startswith("healthy")


def test_what_is_under_way_is_said_below_a_problem() -> None:
    looker = Looker()
    lines = looker.sees(ALONE, Progress(at_s=0.0, what="fetching", done_bytes=1, whole_bytes=4))
    assert lines[0].startswith("problem")
    assert lines[-1].startswith("fetching: [")


def test_a_step_that_is_several_times_overdue_is_no_health() -> None:
    looker = Looker()
    assert looker.sees(step(), after_s=100.0) == ["healthy: averaged with 2 others 100 s ago"]
    assert looker.sees(after_s=500.0) == [
        "no step for 10 min; one takes 30 s",
        "  -> no round has come about since",
    ]
    assert looker.sees(lost())[1] == "  -> the last round was lost: c vanished"
    assert looker.sees(step(epoch=8))[0].startswith("healthy")


def test_the_time_since_a_step_goes_on_while_the_machine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(time, "clock_gettime", lambda _: now_s)
    panel = LivePanel(Watched(title="collab: r", view=lambda: BOTH, ahead=lambda: SOON))
    panel.observe(step())
    now_s += 8 * 3_600.0
    assert panel.lines()[0] == "no step for 8 h; one takes 30 s"


def test_pushes_are_late_when_a_unit_of_work_has_run_out() -> None:
    pushes = replace(SOON, next_s=math.inf, step_s=math.inf, unit_s=300.0)
    for role, event in ((Role.TRAINER, step()), (Role.BACKBONE, report())):
        looker = Looker(role, ahead=lambda: pushes)
        assert looker.sees(event, after_s=290.0)[0].startswith("healthy")
        assert "none has come back since" in looker.sees(after_s=11.0)[1]


def test_how_far_the_own_unit_of_work_is_has_its_row() -> None:
    ahead = replace(SOON, next_s=math.inf, step_s=math.inf, unit_s=300.0)
    looker = Looker(ahead=lambda: ahead)
    assert "your unit" not in looker.all
    begun = UnitBegun(at_s=100.0, pass_number=1, shard=12, samples=40, version=3, lease_s=300.0)
    done = MicrobatchDone(at_s=130.0, epoch=3, samples=8, loss=2.0, seconds=25.0)
    looker.sees(begun)
    assert "your unit  0 % is computed" in looker.all
    looker.sees(done, MicrobatchSkipped(at_s=160.0, epoch=3, samples=8, reason="not finite"))
    assert "your unit  40 % is computed, the rest takes about 90 s" in looker.all
    seen = looker.watched.awaited()
    assert seen == replace(ahead, unit_share=0.4, unit_left_s=pytest.approx(90.0))
    looker.sees(replace(done, samples=24, at_s=250.0))
    assert "your unit  all is computed" in looker.all
    looker.sees(replace(begun, at_s=260.0))
    assert "your unit  0 % is computed" in looker.all
    looker.sees(Paused(at_s=270.0, reason="the owner wants it", seconds=0.1, samples=0))
    assert "your unit" not in looker.all
    assert looker.watched.awaited() == ahead


class GivenBack(UnitBegun):
    """A unit that the loop gives back while the panel's thread looks at it."""

    def __getattribute__(self, name: str) -> Any:
        if name == "samples" and meanwhile:
            meanwhile.pop()()
        return super().__getattribute__(name)


meanwhile: list[Callable[[], None]] = []
"""What comes in between, once."""


def test_a_unit_that_is_given_back_while_it_is_drawn_does_not_end_the_panels_thread() -> None:
    looker = Looker(ahead=lambda: replace(SOON, next_s=math.inf, step_s=math.inf, unit_s=300.0))
    paused = Paused(at_s=120.0, reason="the owner wants it", seconds=0.1, samples=0)
    looker.sees(GivenBack(at_s=100.0, pass_number=1, shard=12, samples=40, version=3, lease_s=300.0))
    for look in (lambda: looker.all, looker.watched.awaited):
        meanwhile.append(lambda: looker.watched.tally.observe(paused))
        assert look() is not None
        assert not meanwhile
        looker.sees(GivenBack(at_s=130.0, pass_number=1, shard=12, samples=40, version=3, lease_s=300.0))


def test_the_first_step_is_waited_for_as_long_as_one_takes_and_then_it_is_late() -> None:
    hour = Ahead(epoch=7, until_epoch=None, next_s=1800.0, step_s=3600.0)
    looker = Looker(ahead=lambda: hour)
    assert looker.sees(FETCHED, after_s=1800.0) == ["training: waiting for the first step (30 min)"]
    assert looker.sees(after_s=4 * 3600.0)[0] == "no step for 4 h; one takes 60 min"
    nobody_knows = replace(hour, next_s=math.inf, step_s=math.inf)
    assert Looker(ahead=lambda: nobody_knows).sees(after_s=300.0) == ["training: waiting for the first step (5 min)"]


def test_a_lost_round_says_what_happens_next() -> None:
    assert Looker().sees(step(), lost()) == [
        "the last round was lost, your work was not: c vanished",
        f"  -> {AGAIN}",
    ]


def test_who_had_nothing_in_a_step_is_not_counted_among_the_others() -> None:
    assert Looker().sees(step(own=0, contributors=3))[0].startswith("healthy: averaged with 3 others")


def test_what_was_given_before_a_pause_is_not_forgotten() -> None:
    tally = Tally()
    before = Looker(tally=tally)
    before.sees(step(own=16), step(own=16))
    after = Looker(tally=tally)
    assert "25.0 %" in after.all
    after.sees(step(own=32), step(own=0))
    assert "25.0 %" in after.all


def test_how_far_the_next_step_is_has_its_row_and_is_no_note() -> None:
    looker = Looker()
    looker.sees(StepAwaited(at_s=0.0, epoch=7, share=0.6, next_s=12.0, step_s=30.0))
    assert "in about 12 s, one takes 30 s" in looker.all
    assert "of the batch" not in looker.all


def test_a_backbone_says_that_all_is_well_with_the_run() -> None:
    looker = Looker(Role.BACKBONE)
    lines = looker.sees(report(), committed(), after_s=86_400.0)
    assert lines == ["standing still: step 12 was taken 24.0 h ago, expected every 30 s",
                     "  -> no round has come about since"]  # fmt: skip
    lines = looker.sees(report(13), after_s=5.0)
    assert lines == ["healthy: step 13 was taken 5 s ago with the samples of 2 peers"]
    assert "joining" not in looker.all
    for row in ("2 trainers, 0 helpers, 25.0 samples/s", "epoch      7", "loss       2.2500", "in about 12 s"):
        assert row in looker.all
    assert "you gave" not in looker.all


def test_a_backbone_gives_those_who_came_back_time_for_a_step() -> None:
    here_s = [20.0]
    looker = Looker(Role.BACKBONE, ahead=lambda: replace(SOON, here_s=here_s[0]))
    lines = looker.sees(report(), after_s=86_400.0)
    assert lines == ["waiting for the next step of 2 trainers: step 12 was taken 24.0 h ago"]
    here_s[0] = 121.0
    assert looker.sees()[0].startswith("standing still: step 12 was taken 24.0 h ago")


def test_a_backbone_without_trainers_waits_and_one_that_cannot_work_says_why() -> None:
    problem = [""]
    looker = Looker(Role.BACKBONE, view=lambda: SwarmView((), 0.0), problem=lambda: problem[0])
    assert looker.sees() == ["waiting: no trainer is here", "  -> whoever has an invite can join"]
    problem[0] = "the disk takes no checkpoints"
    assert looker.sees() == ["problem: the disk takes no checkpoints"]
    full = Notice(at_s=0.0, text="epoch 5 could not be written", hint="free some space", is_problem=True)
    assert looker.sees(full)[1] == "  -> free some space"
    assert looker.sees(report()) == ["problem: the disk takes no checkpoints"], "as long as it is so"


def test_before_the_first_step_a_backbone_says_who_works_on_it() -> None:
    assert Looker(Role.BACKBONE).sees(report(0), after_s=3600.0) == ["waiting for the first step of 2 trainers"]


def test_a_backbone_is_busy_beside_its_health() -> None:
    looker = Looker(Role.BACKBONE)
    lines = looker.sees(report(), Progress(at_s=0.0, what="writing a checkpoint", done_bytes=1, whole_bytes=4))
    assert lines[0].startswith("healthy")
    assert lines[1].startswith("writing a checkpoint: [")
    assert len(looker.sees(Progress(at_s=0.0, what="writing a checkpoint", done_bytes=4, whole_bytes=4))) == 1


def test_an_auxiliary_says_in_how_many_rounds_it_was_of_use() -> None:
    looker = Looker(Role.AUXILIARY)
    assert "you helped  -" in looker.all
    lines = looker.sees(committed(), lost(), committed(), report(), after_s=2.0)
    assert lines == ["healthy: step 12 was taken 2 s ago with the samples of 2 peers"]
    assert "you helped  to average 2 rounds" in looker.all
    assert "1 round" in Looker(Role.AUXILIARY, tally=Tally(rounds=1)).all


def test_a_problem_that_is_settled_while_the_panels_thread_tells_it_does_not_end_that_thread() -> None:
    """What is asked for in between is where the loop may come in."""
    meanwhile: list[Event] = []

    def clock() -> float:
        for event in meanwhile:
            trouble.observe(event)
        return 0.0

    trouble = Trouble(clock)
    trouble.observe(ALONE)
    meanwhile.append(step())
    assert trouble.lines()[1] == "  -> this machine trains on alone"
    assert trouble.lines() == []
