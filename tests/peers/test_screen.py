"""What a volunteer reads: words first, and never markup from strangers."""

import io
import json
import math
from dataclasses import replace
from typing import Any

from rich.console import Console

from collab.metrics.records import (
    CheckpointSaved,
    EpochFinished,
    EvaluationDone,
    Event,
    MicrobatchSkipped,
    Notice,
    Phase,
    PhaseReached,
    RoundEnded,
    SwarmReport,
    WindowsAveraged,
)
from collab.metrics.refusals import Refused
from collab.metrics.sinks import Fanout
from collab.swarm.progress import SwarmView
from collab.swarm.records import PeerRecord, PeerState
from collab.types import Lineage, PeerId, Role
from peers.event_words import AGAIN, words
from peers.panel import LivePanel, Watched
from peers.screen import JsonScreen, LineScreen, choose_screen


def step(epoch: int = 7, own: int = 16, contributors: int = 3, loss: float = 2.5) -> EpochFinished:
    return EpochFinished(
        at_s=0.0,
        epoch=epoch,
        lineage=Lineage("a" * 64),
        loss=loss,
        own_samples=own,
        own_weight=float(own),
        sample_ids=tuple(range(own)),
        sample_epochs=(epoch - 1,) * own,
        used_in=("r",),
        swarm_samples=64.0,
        contributors=contributors,
        learning_rate=0.1,
        seconds=2.0,
    )


def lost() -> RoundEnded:
    return RoundEnded(
        at_s=0.0, epoch=7, round_id="r", committed=False, contributors=0, samples=0.0, seconds=1.0, reason="c vanished"
    )


def pace(delay: float = 11.0) -> WindowsAveraged:
    return WindowsAveraged(at_s=0.0, epoch=1, paces=((3, 11), (4, 12)), period=3.0, delay=delay)


def trainer(name: str) -> PeerRecord:
    return PeerRecord(
        peer=PeerId(name),
        fingerprint="f",
        name=name,
        role=Role.TRAINER,
        state=PeerState.TRAINING,
        said_at=0.0,
        can_be_dialled=True,
        samples_per_s=12.5,
    )


def panel_of(**watched: Any) -> LivePanel:
    return LivePanel(Watched(title="collab: r", **watched))


def shown(panel: LivePanel) -> str:
    out = io.StringIO()
    Console(file=out, width=100).print(panel.render())
    return out.getvalue()


def test_a_step_says_loss_speed_partners_and_share() -> None:
    line = words(step())
    assert "epoch 7" in line
    assert "loss 2.5000" in line
    assert "swarm 32.0 samples/s" in line
    assert "averaged with 2 others" in line
    assert "you gave 25 %" in line


def test_a_step_whose_beginning_nobody_here_has_seen_has_no_speed() -> None:
    assert words(replace(step(), seconds=0.0)) == "epoch 7  loss 2.5000  averaged with 2 others  you gave 25 %"


def test_a_step_without_our_samples_has_no_loss_and_no_share() -> None:
    line = words(step(own=0, contributors=1, loss=math.nan))
    assert "loss -" in line
    assert "averaged with 1 other " in line
    assert "you gave 0 %" in line


def test_every_event_but_the_routine_has_words() -> None:
    events: list[Event] = [
        step(),
        lost(),
        MicrobatchSkipped(at_s=0.0, epoch=1, samples=8, reason="the loss is NaN"),
        EvaluationDone(at_s=0.0, epoch=1, loss=1.0, seconds=0.1),
        CheckpointSaved(at_s=0.0, epoch=1, path="somewhere", num_bytes=10, seconds=0.1),
        Notice(at_s=0.0, text="look here", hint="do this", is_problem=True),
        pace(),
        SwarmReport(
            at_s=0.0,
            epoch=3,
            lineage=Lineage("b"),
            loss=math.nan,
            eval_loss=math.nan,
            eval_epoch=-1,
            eval_accuracy=math.nan,
            samples_per_s=3.0,
            trainers=2,
            peers=3,
        ),
    ]
    assert all(words(event) for event in events)
    assert f"nothing of your work with it: c vanished\n  -> {AGAIN}" in words(lost())
    problem = Notice(at_s=0.0, text="look here", hint="do this", is_problem=True)
    assert words(problem) == "problem: look here\n  -> do this"
    assert words(PhaseReached(at_s=0.0, phase=Phase.COMMIT, epoch=1)) == ""


def test_the_panel_says_in_words_whether_all_is_well() -> None:
    panel = panel_of(view=lambda: SwarmView((trainer("a"), trainer("b")), 0.0))
    assert "waiting for the first step" in shown(panel)
    panel.observe(step())
    text = shown(panel)
    assert "healthy: averaged with 2 others" in text
    assert "2 trainers, 0 helpers, 25.0 samples/s" in text
    panel.observe(lost())
    assert "the last round was lost, your work was not: c vanished" in shown(panel)
    panel.observe(step(epoch=8))
    assert "healthy" in shown(panel)


def test_text_of_other_peers_is_never_markup() -> None:
    panel = LivePanel(Watched(title="collab: [red]run[/red]"))
    panel.observe(Notice(at_s=0.0, text="[bold]hello[/bold] [link=x]"))
    text = shown(panel)
    assert "[bold]hello[/bold] [link=x]" in text
    assert "[red]run[/red]" in text


def test_off_a_terminal_there_are_plain_lines_and_json_when_asked_for() -> None:
    assert isinstance(choose_screen(Watched(title="t"), as_json=False), LineScreen)
    out = io.StringIO()
    JsonScreen(out).observe(step(loss=math.nan))
    assert json.loads(out.getvalue())["loss"] is None
    lines = io.StringIO()
    LineScreen(lines, Watched(title="t")).observe(step())
    assert "epoch 7" in lines.getvalue()
    assert "\x1b" not in lines.getvalue()


def test_an_auxiliary_tells_once_a_minute_in_how_many_rounds_it_was_of_use() -> None:
    def told(role: Role, *, problems_only: bool = False) -> list[str]:
        lines, now_s = io.StringIO(), [0.0]
        watched = Watched(title="t", role=role)
        screen = LineScreen(lines, watched, problems_only=problems_only, clock=lambda: now_s[0])
        sinks = Fanout(watched.tally, screen)
        for second in range(150):
            now_s[0] = float(second)
            sinks.observe(replace(lost(), committed=True, reason=""))
        return [line.split("  ", 1)[1] for line in lines.getvalue().splitlines()]

    helped = ("1 round", "61 rounds", "121 rounds")
    assert told(Role.AUXILIARY) == [f"helped to average {rounds} so far" for rounds in helped]
    assert not told(Role.AUXILIARY, problems_only=True)
    assert not told(Role.TRAINER)
    assert not told(Role.BACKBONE)


def test_how_windows_of_own_steps_come_out_is_shown_and_told_when_it_changes() -> None:
    said = "windows of about 3 own steps, each averaged about 11 steps after its end"
    panel, lines, told = panel_of(), io.StringIO(), io.StringIO()
    assert "pace" not in shown(panel)
    panel.observe(pace())
    assert said in shown(panel)
    line_screen = LineScreen(lines, Watched(title="t"))
    for event in (pace(), pace(), pace(delay=14.0), pace(delay=14.0)):
        line_screen.observe(event)
    assert [line.split("  ", 1)[1] for line in lines.getvalue().splitlines()] == [said, said.replace("11", "14")]
    JsonScreen(told).observe(pace())
    assert {"period": 3.0, "delay": 11.0}.items() <= json.loads(told.getvalue()).items()


def test_the_panel_says_whom_we_refused_and_nothing_when_nobody_was() -> None:
    liar = Refused(peer=PeerId("12D3KooWliar"), reason="too_large", count=5, first_at_s=0.0, last_at_s=1.0)
    other = Refused(peer=PeerId("other"), reason="bad_message", count=1, first_at_s=0.0, last_at_s=1.0)
    panel = panel_of(refusals=lambda: [liar, other])
    assert "6 times, 2 peers; most: too_large of KooWliar" in shown(panel)
    assert "refused" not in shown(panel_of())
