"""How far downloads and encoding are: about once a second, from any thread, in words, in bars and in JSON."""

import asyncio
import io
import json
import math
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from collab.clock import SystemClock
from collab.concurrency import Background
from collab.config import parse_run
from collab.metrics.guest_records import Paused, Progress, Resumed, StepAwaited
from collab.metrics.records import Event, Notice, Phase, PhaseReached
from collab.metrics.sinks import Fanout, Sink
from collab.net.pieces import PIECE_BYTES
from collab.simulation.virtual_time import VirtualClock, VirtualLoop
from collab.swarm.bundle import Bundle
from collab.swarm.download import Download
from collab.swarm.snapshots import Snapshot, pack
from collab.types import Lineage, PeerId, Role
from peers.event_words import duration_words, eta_words, words
from peers.machine import count_elements
from peers.panel import LivePanel, Watched
from peers.progress import Ahead, ProgressTeller, StepTeller
from peers.screen import JsonScreen, LineScreen, Style, choose_screen


def progress(done: float, whole: float, what: str = "fetching") -> Progress:
    return Progress(at_s=0.0, what=what, done_bytes=int(done * 1e6), whole_bytes=int(whole * 1e6))


def test_it_is_told_once_a_second_and_at_its_end_and_not_at_all_when_it_takes_no_time() -> None:
    loop, told = VirtualLoop(), list[Progress]()

    def observe(event: Event) -> None:
        assert isinstance(event, Progress)
        told.append(event)

    async def life() -> None:
        teller = ProgressTeller(observe, VirtualClock(loop))
        teller.tell("short", 5, 5)
        for number in range(41):
            teller.tell("long", number, 40)
            await asyncio.sleep(0.1)

    loop.run_until_complete(life())
    loop.close()
    assert {event.what for event in told} == {"long"}
    assert len(told) == 4
    assert told[-1].done_bytes == 40


def test_an_end_is_told_once_and_again_when_it_has_begun_anew() -> None:
    loop, told = VirtualLoop(), list[Event]()

    async def life() -> None:
        teller = ProgressTeller(told.append, VirtualClock(loop))
        for done in (1, 2, 2, 2, 1, 2, 2):
            teller.tell("long", done, 2)
            await asyncio.sleep(1.1)

    loop.run_until_complete(life())
    loop.close()
    assert [event.done_bytes for event in told if isinstance(event, Progress)] == [2, 1, 2]


def test_another_thread_may_tell_and_one_that_comes_too_late_is_not_heard() -> None:
    told: list[Event] = []

    async def life() -> ProgressTeller:
        loop = asyncio.get_running_loop()

        class Clock:
            def now(self) -> float:
                return 0.0

            def monotonic(self) -> float:
                return asyncio.get_running_loop().time()  # as the real one: in the loop only

        teller = ProgressTeller(told.append, Clock())
        for done in (1, 2):
            worker = threading.Thread(target=teller.tell, args=("long", done, 2))
            worker.start()
            await loop.run_in_executor(None, worker.join)
        return teller

    teller = asyncio.run(life())
    assert len(told) == 1
    teller.tell("long", 2, 2)


def test_a_thread_that_waits_for_another_peer_of_the_same_user_has_that_told(tmp_path: Path) -> None:
    told: list[Event] = []

    async def life() -> None:
        teller = ProgressTeller(told.append, SystemClock())
        await asyncio.to_thread(teller.tell_wait, tmp_path / "tokens.lock")
        await asyncio.sleep(0)

    asyncio.run(life())
    (notice,) = told
    assert isinstance(notice, Notice)
    assert "another peer of yours is encoding this text" in notice.text
    assert str(tmp_path / "tokens.lock") in notice.hint
    assert not notice.is_problem


def test_a_download_knows_how_much_is_here() -> None:
    import numpy as np

    state = Snapshot(epoch=3, lineage=Lineage("a"), tensors={"model.w": np.zeros(600_000, np.float32)}, scalars={})
    packed = pack(state, fingerprint="f")
    download, donor = Download(packed.manifest), PeerId("donor")
    download.restore(0, bytes(packed.chunk(0)))
    seen = [download.here_bytes]
    while (index := download.next_for(donor)) is not None:
        chunk = packed.chunk(index)
        for start in range(0, len(chunk), PIECE_BYTES):
            download.take(donor, index, start, chunk[start : start + PIECE_BYTES])
        seen.append(download.here_bytes)
    assert seen == sorted(seen)
    assert seen[0] == len(packed.chunk(0))
    assert seen[-1] == packed.manifest.num_bytes


def test_a_bar_has_its_share_and_what_has_no_end_has_none() -> None:
    assert words(progress(30, 120)) == "fetching: [######..................]  25 % of 120.0 MB"
    assert words(progress(120, 120)).count("#") == 24
    assert words(progress(12, 0)) == "fetching: 12.0 MB so far"


def test_lines_come_every_ten_seconds_and_at_the_end() -> None:
    out, now = io.StringIO(), [0.0]
    screen = LineScreen(out, Watched(title="t"), clock=lambda: now[0])
    for second in range(25):
        now[0] = float(second)
        screen.observe(progress(second, 24))
    lines = out.getvalue().splitlines()
    assert len(lines) == 4
    assert "100 %" in lines[-1]
    assert "\r" not in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_programs_get_it_as_json() -> None:
    out = io.StringIO()
    JsonScreen(out).observe(progress(1, 2))
    told = json.loads(out.getvalue())
    assert (told["event"], told["done_bytes"], told["whole_bytes"]) == ("Progress", 1_000_000, 2_000_000)


def shown(panel: LivePanel, **environment: str) -> str:
    console = Console(
        file=io.StringIO(), force_terminal=True, width=100, color_system="truecolor", _environ=environment
    )
    console.print(panel.render())
    out = console.file
    assert isinstance(out, io.StringIO)
    return out.getvalue()


def test_the_panel_says_first_what_it_is_busy_with_then_that_all_is_well() -> None:
    panel = LivePanel(Watched(title="run", ahead=lambda: Ahead(epoch=1, until_epoch=None, next_s=12.0, step_s=30.0)))
    panel.observe(progress(30, 120))
    assert panel.lines()[0].startswith("fetching: [######")
    assert "in about 12 s" in shown(panel)
    panel.observe(progress(120, 120))
    assert panel.lines()[0].startswith("training: waiting for the first step")
    panel.observe(Paused(at_s=0.0, reason="the machine runs on battery", seconds=0.4, samples=48))
    assert panel.lines()[0].startswith("paused: the machine runs on battery; the device is free after 0.4 s")


def test_without_colours_the_panel_has_none() -> None:
    panel = LivePanel(Watched(title="run"))
    panel.observe(progress(30, 120))
    assert "\x1b[3" not in shown(panel, NO_COLOR="1")


def test_a_pause_and_its_end_are_told_in_words() -> None:
    assert "48 samples go into the swarm's next step" in words(Paused(at_s=0.0, reason="r", seconds=0.4, samples=48))
    assert "next step" not in words(Paused(at_s=0.0, reason="r", seconds=0.4, samples=0))
    assert words(Resumed(at_s=0.0, paused_s=2.4)) == "works again after 2.4 s"
    assert words(Resumed(at_s=0.0, paused_s=180.0)) == "works again after 3 min"


def test_a_quiet_screen_tells_of_problems_only() -> None:
    out = io.StringIO()
    screen = LineScreen(out, Watched(title="t"), problems_only=True)
    screen.observe(progress(1, 1))
    screen.observe(Notice(at_s=0.0, text="hello"))
    screen.observe(Notice(at_s=0.0, text="the disk is full", hint="make room", is_problem=True))
    assert out.getvalue().count("\n") == 2
    assert "-> make room" in out.getvalue()


def test_a_terminal_that_cannot_draw_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)

    def kind(style: Style) -> type[object]:
        return type(choose_screen(Watched(title="t"), as_json=False, style=style))

    monkeypatch.setenv("TERM", "xterm")
    assert kind(Style.AUTO) is LivePanel
    assert kind(Style.PLAIN) is LineScreen
    assert kind(Style.QUIET) is LineScreen
    monkeypatch.setenv("TERM", "dumb")
    assert kind(Style.AUTO) is LineScreen


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0.4 s"), (119, "119 s"), (180, "3 min"), (7300, "2 h"), (200_000, "2 days")]
)
def test_durations_are_told_in_the_largest_unit_that_fits(seconds: float, text: str) -> None:
    assert duration_words(seconds) == text


def test_when_the_next_step_is_due_is_told_if_anybody_knows() -> None:
    assert eta_words(12.0, 30.0, None) == "in about 12 s, one takes 30 s"
    assert eta_words(12.0, 30.0, 240) == "in about 12 s, one takes 30 s; the run ends in about 2 h"
    assert eta_words(float("inf"), float("inf"), 240) == ""
    assert eta_words(0.0, 30.0, None) == "averaging now, one takes 30 s"


def test_how_far_the_next_step_is_is_told_when_nothing_else_was_for_a_minute() -> None:
    loop, out = VirtualLoop(), io.StringIO()
    sinks: list[Sink] = [LineScreen(out, Watched(title="t"), clock=loop.time)]

    def observe(event: Event) -> None:
        Fanout(*sinks).observe(event)

    def ahead() -> Ahead:
        at_s = loop.time()
        return Ahead(epoch=12, until_epoch=None, next_s=600.0 - at_s, step_s=600.0, share=at_s / 600.0)

    async def life() -> None:
        steps = StepTeller(observe, VirtualClock(loop), ahead)
        sinks.append(steps)
        async with Background() as tasks:
            tasks.create_task(steps.run())
            await asyncio.sleep(90.0)
            observe(Notice(at_s=0.0, text="hello"))
            await asyncio.sleep(121.0)
            observe(PhaseReached(at_s=0.0, phase=Phase.REDUCE, epoch=12))
            await asyncio.sleep(50.0)

    loop.run_until_complete(life())
    loop.close()
    assert [line.split("  ", 1)[1] for line in out.getvalue().splitlines()] == [
        "epoch 12: 10 % of the batch is there, the next step in about 9 min",
        "hello",
        "epoch 12: 25 % of the batch is there, the next step in about 8 min",
        "epoch 12: 35 % of the batch is there, the next step in about 6 min",
    ]


def test_nothing_is_told_of_the_next_step_where_there_is_nothing_to_say() -> None:
    nobody_knows = Ahead(epoch=12, until_epoch=None, next_s=math.inf, step_s=math.inf)
    assert Watched(title="t").awaited() is None, "it is not in the swarm yet"
    assert Watched(title="t", ahead=lambda: nobody_knows).awaited() is nobody_knows
    assert Watched(title="t", role=Role.BACKBONE, ahead=lambda: nobody_knows).awaited() is None
    assert Watched(title="t", role=Role.AUXILIARY, ahead=lambda: nobody_knows).awaited() is None
    out = io.StringIO()
    LineScreen(out, Watched(title="t"), problems_only=True).observe(awaited(0.5, 30.0))
    assert not out.getvalue()


def awaited(share: float, next_s: float) -> StepAwaited:
    return StepAwaited(at_s=0.0, epoch=12, share=share, next_s=next_s, step_s=60.0)


def test_the_batch_may_be_there_and_nobody_may_know() -> None:
    assert words(awaited(1.0, 0.0)) == "epoch 12: the whole batch is there, the next step is on its way"
    assert "99 % of the batch" in words(awaited(0.999, 0.06))
    assert words(awaited(1.0, 45.0)) == "epoch 12: the whole batch is there, the next step in about 45 s"
    assert "when the next one comes nobody can say" in words(awaited(math.nan, math.inf))
    out = io.StringIO()
    JsonScreen(out).observe(awaited(math.nan, math.inf))
    told = json.loads(out.getvalue())
    step = {"event": "StepAwaited", "at_s": 0.0, "epoch": 12, "share": None, "next_s": None, "step_s": 60.0}
    assert told == {**step, "unit_share": None, "unit_left_s": None}


@pytest.mark.parametrize(
    ("share", "left_s", "told"),
    [
        (0.0, math.inf, "0 % is computed"),
        (0.25, 180.0, "25 % is computed, the rest takes about 3 min"),
        (0.999, 0.2, "99 % is computed, the rest takes about 0.2 s"),
        (1.0, 0.0, "all is computed"),
    ],
)
def test_where_pushes_of_units_are_steps_it_is_told_how_far_the_unit_is(share: float, left_s: float, told: str) -> None:
    event = replace(awaited(math.nan, math.inf), unit_share=share, unit_left_s=left_s)
    assert words(event) == f"epoch 12: of this machine's unit of work {told}"


def test_a_models_vector_is_counted_without_its_memory() -> None:
    digits = parse_run("{run_id: run, task: {name: image_classification, hidden_sizes: [32]}}", origin="the test")
    assert count_elements(Bundle(digits, {}), ()) == 64 * 32 + 32 + 32 * 10 + 10
