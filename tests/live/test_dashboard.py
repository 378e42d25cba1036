"""The dashboard over real sockets: the page of a real swarm in a real browser, and visitors of an invented one."""

import asyncio
import json
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from collab.errors import ConfigError, PortTaken
from collab.metrics.backbone_events import RolledBack
from collab.metrics.records import CheckpointOnHub, Notice
from peers.dashboard import visitors
from peers.dashboard.address import HERE, LOCAL_HOSTS, hosts_of, is_for_this_machine, listen, url_of
from peers.dashboard.app import Answers, dashboard_app
from peers.dashboard.overview import Overview
from peers.dashboard.serving import serve_app
from scripts.chromium import Browser, browser
from scripts.dashboard_swarm import InventedSwarm
from tests.live.processes import LIMIT_S, live_swarm, wait_until
from tests.live.test_swarm_life import digits

BENCHMARK = Path(__file__).resolve().parents[2] / "scripts" / "bench_dashboard.py"
HOSTILE = "<img src=x onerror=alert(1)>"
NAMES = "[...document.querySelectorAll('#peers tbody tr')].map((row) => row.cells[0].textContent)"
LOSS = "document.querySelectorAll('#figures dd')[1].textContent"
LEVEL = "document.querySelector('#health').dataset.level"
LEGEND = "document.querySelector('#chart-loss .u-legend').textContent"
HEALTH = "document.querySelector('#health-text').textContent"
SELECT = "getSelection().selectAllChildren(document.querySelector('#notices li'))"
FITS = "document.documentElement.scrollWidth <= innerWidth"


class Served:
    """A dashboard in a thread of its own."""

    def __init__(self, directory: Path, trainers: int) -> None:
        listening = listen(f"{HERE}:0")
        assert listening is not None
        self.url = url_of(listening)
        self._loop, self._has_ended = asyncio.new_event_loop(), threading.Event()
        self.swarm = InventedSwarm(directory, trainers)
        app = dashboard_app(Answers(Overview(self.swarm.sources), self.swarm.compute), hosts=LOCAL_HOSTS)

        async def serve() -> None:
            recording = asyncio.create_task(self.swarm.recorder.run())
            self._serving = asyncio.create_task(serve_app(listening, app))
            await asyncio.gather(self._serving, return_exceptions=True)
            recording.cancel()

        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(serve()))
        self._thread.start()

    def do(self, change: Callable[[], Any]) -> None:
        """Change something about the swarm, where nobody looks at it meanwhile."""
        self._loop.call_soon_threadsafe(change)

    def end(self) -> None:
        """As when the backbone ends."""
        if self._thread.is_alive():
            self.do(self._serving.cancel)
            self._thread.join(LIMIT_S)
            self._loop.close()
            self.swarm.close()


@contextmanager
def served(directory: Path, trainers: int = 4, steps: int = 30) -> Iterator[Served]:
    dashboard = Served(directory, trainers)
    for _ in range(steps):
        dashboard.do(dashboard.swarm.step)
    try:
        yield dashboard
    finally:
        dashboard.end()


def test_the_page_of_a_live_swarm_moves_sorts_its_peers_and_sees_a_killed_one_leave(tmp_path: Path) -> None:
    with live_swarm(tmp_path / "run", digits(until=100000, every=1000)) as swarm, browser(tmp_path) as page:
        backbone = swarm.backbone("--dashboard", f"{HERE}:0")
        killed, _ = swarm.join("killed", "--name", HOSTILE), swarm.join("stays")
        wait_until(lambda: bool(backbone.all("DashboardServed")), "its dashboard", backbone)
        page.look(width=1280, height=1300)
        url = backbone.all("DashboardServed")[-1]["url"]
        before = _collections(url)
        page.open(url)
        page.wait_for(f"{NAMES}.length === 3", "all peers in the table")
        page.wait_for("document.querySelectorAll('#chart-loss canvas').length === 1", "the curve")
        _moves(page)
        page.wait_for(f"{LEVEL} === 'good'", "all to be well")
        _sorts(page)
        assert HOSTILE in page.value(NAMES), "as text"
        shown = page.value(NAMES.replace("cells[0]", "lastElementChild"))
        assert sorted(shown) == sorted(f"…{peer['id'][-6:]}" for peer in swarm.status()["peers"])
        assert page.value("document.querySelectorAll('td img, td b, td script').length") == 0
        killed.kill()
        page.wait_for(f"{NAMES}.length === 2", "the one that was killed to leave the table")
        assert "stays" in page.value(NAMES)
        assert HOSTILE not in page.value(NAMES)
        for width, is_phone in ((1280, False), (390, True)):
            page.look(width=width, height=844, is_phone=is_phone, is_dark=is_phone)
            assert page.value(FITS), "nothing sticks out"
        assert page.complaints == []
        wait_until(lambda: _looks_for_rings(before, _collections(url)), "dead rings to be looked for", backbone)
        backbone.kill()
        page.wait_for(f"{HEALTH}.includes('has not answered')", "the page to say that nobody answers")


def _collections(url: str) -> list[int]:
    """Searches for rings of dead objects in the backbone so far, by generation."""
    answer = httpx.get(f"{url}metrics", timeout=LIMIT_S, trust_env=False).text
    return [int(number) for number in re.findall(r"^python_gc_collections_total\{.*\} (\d+)$", answer, re.MULTILINE)]


def _looks_for_rings(before: list[int], now: list[int]) -> bool:
    """Whether it does so more often than Python, which looks at all after ten looks at what is young."""
    _, young, everything = (b - a for a, b in zip(before, now, strict=True))
    return everything > young / 5 + 1


def _moves(page: Browser) -> None:
    """Without a reload: the figure, the curve, the last rounds."""
    page.wait_for(f"Number.parseFloat({LOSS}) > 0", "a loss")
    loss, legend = page.value(LOSS), page.value(LEGEND)
    page.wait_for(f"{LOSS} !== {json.dumps(loss)}", "the loss to move")
    page.wait_for(f"{LEGEND} !== {json.dumps(legend)}", "the curve to follow")
    page.wait_for("document.querySelectorAll('#rounds tbody tr').length >= 3", "the last rounds")


def _sorts(page: Browser) -> None:
    click = "document.querySelector('#peers th button').click()"
    page.value(click)
    names = page.value(NAMES)
    assert names == sorted(names, key=str.casefold)
    page.value(click)
    assert page.value(NAMES) == names[::-1]


def test_the_page_draws_what_rounds_took_beside_what_the_links_allow(tmp_path: Path) -> None:
    with served(tmp_path) as dashboard, browser(tmp_path) as page:
        page.open(dashboard.url)
        legend = "document.querySelector('#chart-links .u-legend').textContent"
        page.wait_for("document.querySelectorAll('#chart-links canvas').length === 1", "the curves")
        page.wait_for(f"{legend}.includes('links allow0.35')", "what the links allow")
        assert "took0.38" in page.value(legend)
        for step in range(31, 36):  # the page may look before the step is in the store
            dashboard.do(dashboard.swarm.step)
            page.wait_for(f"{legend}.startsWith('step{step}')", "the next round")
        assert page.complaints == []


def test_what_stays_the_same_stays_in_the_readers_hand_while_the_page_goes_on(tmp_path: Path) -> None:
    """A link keeps the focus, and what was told can be selected, however often the page asks."""
    hint = "run: collab-peer status my-run"
    with served(tmp_path, steps=5) as dashboard, browser(tmp_path) as page:
        now_s, observe = time.time(), dashboard.swarm.sink.observe
        on_hub = CheckpointOnHub(at_s=now_s, epoch=5, place="org/name", commit="c0ffee", num_bytes=7, seconds=1.0)
        told = Notice(at_s=now_s, text="something is amiss", hint=hint, is_problem=True)
        dashboard.do(lambda: (observe(on_hub), observe(told)))
        page.open(dashboard.url)
        page.wait_for("document.querySelectorAll('#checkpoints a, #notices li').length === 2", "both")
        page.value("window.link = document.querySelector('#checkpoints a'); link.focus()")
        page.value(f"window.meter = document.querySelector('#contributors meter'); {SELECT}")
        when = "document.querySelector('#notices li span').textContent"
        for _ in range(2):
            before = page.value(when)
            page.wait_for(f"{when} !== {json.dumps(before)}", "the page to ask again")
        assert page.value("document.activeElement === link && link.isConnected")
        assert page.value("meter.isConnected")
        assert hint in page.value("getSelection().toString()")
        later = replace(on_hub, at_s=now_s + 1.0, epoch=6, commit="beef")
        dashboard.do(lambda: (observe(later), observe(replace(told, text="and again"))))
        page.wait_for("document.querySelectorAll('#checkpoints a').length === 2", "another checkpoint above it")
        page.wait_for("document.querySelectorAll('#notices li').length === 2", "another notice above it")
        assert page.value("document.activeElement === link")
        assert hint in page.value("getSelection().toString()")
        assert page.value("document.querySelector('#notices li').textContent.includes('and again')"), "newest first"
        assert page.complaints == []


def test_a_page_that_slept_through_a_rollback_draws_the_curve_anew(tmp_path: Path) -> None:
    with served(tmp_path, steps=30) as dashboard, browser(tmp_path) as page:
        page.open(dashboard.url)
        page.wait_for("document.querySelectorAll('#chart-loss canvas').length === 1", "the curve")
        page.wait_for(f"{LEGEND}.startsWith('step30')", "all of it")
        sleeps = "window.awake = window.fetch; window.fetch = () => Promise.reject(new Error('asleep')); 0"
        page.value(sleeps)
        page.wait_for(f"{HEALTH}.includes('has not answered')", "the page to miss something")

        def go_back_and_on() -> None:
            swarm = dashboard.swarm
            swarm.sink.observe(RolledBack(at_s=time.time(), epoch=10, era="back"))
            swarm.epoch = 10
            for _ in range(25):
                swarm.step()

        dashboard.do(go_back_and_on)
        whole = "performance.getEntriesByType('resource').filter((one) => /curves.*[?&]loss=-1/.test(one.name)).length"
        before = page.value(whole)
        page.value("window.fetch = window.awake; 0")
        page.wait_for(f"{LEGEND}.startsWith('step35')", "the new curve")
        page.wait_for(f"{whole} > {before}", "all of it to be asked for")


def test_the_axis_of_steps_has_whole_numbers_only(tmp_path: Path) -> None:
    note = """window.below = []; const draw = CanvasRenderingContext2D.prototype.fillText;
        CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {
          if (this.textBaseline === "top") window.below.push(text);
          return draw.call(this, text, ...at);
        };"""
    with served(tmp_path, steps=25) as dashboard, browser(tmp_path) as page:
        page.call("Page.addScriptToEvaluateOnNewDocument", source=note)
        page.look(width=1280, height=1300)
        page.open(dashboard.url)
        page.wait_for("window.below.includes('20')", "the axes")
        assert [text for text in page.value("window.below") if not text.isdecimal()] == []


def test_on_a_phone_a_wide_table_moves_in_its_box_and_its_first_column_stays(tmp_path: Path) -> None:
    box = "document.querySelector('#peers').closest('.wide')"
    left = "getBoundingClientRect().left"
    with served(tmp_path) as dashboard, browser(tmp_path) as page:
        page.look(width=390, height=844, is_phone=True)
        page.open(dashboard.url)
        page.wait_for(f"{NAMES}.length === 5", "all peers in the table")
        assert page.value(FITS), "nothing sticks out"
        page.value(f"{box}.scrollLeft = 300")
        name, role = (f"{box}.querySelector('tbody td:nth-child({at})').{left}" for at in (1, 2))
        assert abs(page.value(f"{name} - {box}.{left}")) < 1.0, "whose row it is"
        assert page.value(f"{role} < {box}.{left}"), "the others move"
        assert page.complaints == []


def test_many_visitors_get_the_same_and_one_that_says_nothing_holds_up_nobody(tmp_path: Path) -> None:
    with served(tmp_path, steps=3) as dashboard, socket.create_connection(_place(dashboard.url)) as silent:
        silent.sendall(b"GET /api/v1/state HTTP/1.1\r\n")
        found = [_state(dashboard.url) for _ in range(20)]
        assert {told["run"]["id"] for told in found} == {"invented"}
        assert len({told["at_s"] for told in found}) < 20, "not put together anew for each"


def test_a_connection_that_is_only_held_open_is_cut_off_and_so_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visitors, "IDLE_S", 0.2)
    monkeypatch.setattr(visitors, "MOST_AT_ONCE", 20)
    with served(tmp_path, steps=1) as dashboard, ExitStack() as stack:
        place = _place(dashboard.url)
        held = [stack.enter_context(socket.create_connection(place, timeout=LIMIT_S)) for _ in range(40)]
        held[1].sendall(b"GET /api/v1/state HTTP/1.1\r\nhost: localh")  # and never more
        held[2].sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")  # and nothing after that
        for connection in held:
            _until_closed(connection)
        monkeypatch.setattr(visitors, "IDLE_S", 15.0)
        assert _state(dashboard.url)["run"]["id"] == "invented"


def _until_closed(connection: socket.socket) -> None:
    with suppress(ConnectionResetError):
        while connection.recv(1 << 16):
            continue


def _place(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").rstrip("/").rpartition(":")
    return host, int(port)


def _state(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}api/v1/state", timeout=LIMIT_S) as answer:
        return dict(json.loads(answer.read()))


def test_the_benchmark_tells_what_pages_cost_and_when_one_is_first_seen() -> None:
    words = ["--peers", "4", "--pages", "1", "--seconds", "1", "--paints", "2"]
    done = subprocess.run([sys.executable, str(BENCHMARK), *words], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert 0 < told["first_paint_s"] <= told["slowest_paint_s"]
    assert told["share_without_pages"] > 0
    assert told["share_with_pages"] > 0


# -- where it listens ------------------------------------------------------------------------------------------------


def test_without_a_word_it_is_for_this_machine_only_and_a_taken_port_is_no_trouble() -> None:
    first, second = listen(""), listen("")
    assert first is not None
    assert second is not None
    with first, second:
        assert is_for_this_machine(first)
        assert is_for_this_machine(second)
        assert url_of(first) != url_of(second)


def test_a_place_that_a_person_named_is_taken_at_its_word() -> None:
    assert listen("none") is None
    with socket.create_server((HERE, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortTaken, match=f"127.0.0.1:{port}"):
            listen(f"{HERE}:{port}")
    everywhere = listen("0.0.0.0:0")
    assert everywhere is not None
    with everywhere:
        assert not is_for_this_machine(everywhere)
        assert not hosts_of(everywhere)
        assert url_of(everywhere).startswith("http://127.0.0.1:")
    elsewhere = listen("127.0.0.2:0")
    assert elsewhere is not None
    with elsewhere:
        assert "127.0.0.2" in hosts_of(elsewhere), "at the address that is shown"
        assert url_of(elsewhere).startswith("http://127.0.0.2:")
    alone = listen("0")
    assert alone is not None
    with alone:
        assert is_for_this_machine(alone), "a port alone is one of this machine"
    for wrong in ("localhost", "localhost:http", "localhost:99999", "no-such-host.invalid:80"):
        with pytest.raises(ConfigError, match="--dashboard"):
            listen(wrong)


def test_a_server_that_is_cancelled_lets_go_of_its_port_at_once(tmp_path: Path) -> None:
    with served(tmp_path, steps=1) as dashboard, httpx.Client() as visitor:
        assert visitor.get(f"{dashboard.url}healthz").text == "ok\n"
        dashboard.end()  # while a browser holds its connection
        again = listen("{}:{}".format(*_place(dashboard.url)))
        assert again is not None
        again.close()
