#!/usr/bin/env python3
"""What the dashboard costs a backbone: processor time of its process while pages are open, as a share of one core.

The swarm is invented (``dashboard_swarm.py``): its peers step once in ``--step-s``, and each page asks for the state
once a second and for new points of the curves after each step, as the real page does. Pages are another process, whose
time does not count. What the swarm itself costs a backbone, ``bench_backbone.py`` measures.

Before that the page is opened in Chromium, ``--paints`` times with nothing kept of it, and the browser is asked when
something was first to be seen (*first contentful paint*), in seconds since it asked for the page. Prints one JSON line.

    python scripts/bench_dashboard.py [--peers 64] [--pages 1] [--step-s 1.0] [--seconds 20] [--paints 5]
"""

import argparse
import asyncio
import json
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from chromium import Browser, browser
from dashboard_swarm import InventedSwarm

from peers.dashboard.address import HERE, hosts_of, listen, url_of
from peers.dashboard.app import Answers, dashboard_app
from peers.dashboard.overview import Overview
from peers.dashboard.serving import serve_app

EARLIER_STEPS = 2_000
"""Taken before it begins: their curves are there."""
PAINTED_MS = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is measured."""

    peers: int
    pages: int
    step_s: float
    seconds: float
    paints: int


def cpu_s() -> float:
    """Of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def measure(setup: Setup) -> dict[str, float]:
    """One swarm, first in a browser, then without a page, then with all of them."""
    with tempfile.TemporaryDirectory(prefix="collab-dashboard-") as directory:
        swarm = InventedSwarm(Path(directory), setup.peers)
        for _ in range(EARLIER_STEPS):
            swarm.step()
        swarm.recorder.write()
        listening = listen(f"{HERE}:0")
        if listening is None:
            raise RuntimeError("the dashboard listens nowhere")
        app = dashboard_app(Answers(Overview(swarm.sources), swarm.compute), hosts=hosts_of(listening))
        tasks = [
            asyncio.create_task(serve_app(listening, app)),
            asyncio.create_task(swarm.recorder.run()),
            asyncio.create_task(_step(swarm, setup.step_s)),
        ]
        try:
            paints_s = await asyncio.to_thread(first_paints_s, url_of(listening), Path(directory), setup.paints)
            alone = await _share(setup.seconds)
            pages = await asyncio.create_subprocess_exec(
                sys.executable, __file__, "--visit", url_of(listening), "--pages", str(setup.pages)
            )
            await asyncio.sleep(2.0)  # pages begin with everything there is
            watched = await _share(setup.seconds)
            pages.terminate()
            await pages.wait()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            swarm.close()
        figures = {"share_without_pages": round(alone, 5), "share_with_pages": round(watched, 5)}
        if paints_s:
            figures["first_paint_s"] = round(statistics.median(paints_s), 3)
            figures["slowest_paint_s"] = round(max(paints_s), 3)
        return figures


def first_paints_s(url: str, directory: Path, times: int) -> list[float]:
    """From asking for the page until something is seen. Blocks.

    Raises:
        BrowserFailed: there is no browser, or it shows nothing.
    """
    if not times:
        return []
    with browser(directory) as page:
        page.look(width=1280, height=900)
        page.call("Network.enable")
        page.call("Network.setCacheDisabled", cacheDisabled=True)
        return [_first_paint_s(page, url) for _ in range(times)]


def _first_paint_s(page: Browser, url: str) -> float:
    page.open("about:blank")
    page.open(url)
    return float(page.wait_for(f"location.href !== 'about:blank' && {PAINTED_MS}", "the first paint")) / 1e3


async def _step(swarm: InventedSwarm, step_s: float) -> None:
    while True:
        await asyncio.sleep(step_s)
        swarm.step()


async def _share(seconds: float) -> float:
    began_s, used_s = time.monotonic(), cpu_s()
    await asyncio.sleep(seconds)
    return (cpu_s() - used_s) / (time.monotonic() - began_s)


async def visit(url: str, pages: int) -> None:
    """Be so many pages, until killed."""
    import httpx

    async def page(client: httpx.AsyncClient) -> None:
        drawn = -1
        while True:
            state = (await client.get(f"{url}api/v1/state")).json()
            if (epoch := state["now"]["epoch"]) != drawn:
                wanted = dict.fromkeys(("loss", "eval_loss", "samples_per_s", "learning_rate"), drawn)
                await client.get(f"{url}api/v1/curves", params=wanted)
                drawn = epoch
            await asyncio.sleep(1.0)

    async with httpx.AsyncClient() as client, asyncio.TaskGroup() as tasks:
        for _ in range(pages):
            tasks.create_task(page(client))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=int, default=64)
    parser.add_argument("--pages", type=int, default=1)
    parser.add_argument("--step-s", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--paints", type=int, default=5, help="0: without a browser")
    parser.add_argument("--visit", default="", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.visit:
        uvloop.run(visit(chosen.visit, chosen.pages))
        return
    setup = Setup(
        peers=chosen.peers, pages=chosen.pages, step_s=chosen.step_s, seconds=chosen.seconds, paints=chosen.paints
    )
    print(json.dumps({"bench": "dashboard", **asdict(setup), **uvloop.run(measure(setup))}))


if __name__ == "__main__":
    main()
