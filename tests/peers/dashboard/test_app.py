"""What the dashboard answers, over HTTP: page, JSON, Prometheus, and to whom."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from collab.metrics.names import BY_EPOCH
from collab.types import PeerId
from peers.dashboard.address import LOCAL_HOSTS
from peers.dashboard.app import PAGE, Answers, dashboard_app
from peers.dashboard.overview import Overview
from scripts.dashboard_swarm import InventedSwarm
from tests.averaging.records import make_record

Ask = Callable[[httpx.AsyncClient], Awaitable[None]]
MAX_PAGE_BYTES = 150_000
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[InventedSwarm]:
    made = InventedSwarm(tmp_path, 3)
    for _ in range(12):
        made.step()
    made.recorder.write()
    yield made
    made.close()


def ask(swarm: InventedSwarm, questions: Ask, *, is_local: bool = True, host: str = "localhost:8470") -> None:
    app = dashboard_app(Answers(Overview(swarm.sources), swarm.compute), hosts=LOCAL_HOSTS if is_local else ())

    async def main() -> None:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
            await questions(client)

    asyncio.run(main())


def test_the_page_is_small_and_runs_nothing_that_is_not_its_own(swarm: InventedSwarm) -> None:
    async def questions(client: httpx.AsyncClient) -> None:
        page = await client.get("/")
        assert page.status_code == 200
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert not re.search(r"<style|style=|\son\w+=|<script(?![^>]*\ssrc=)", page.text), "nothing inline"
        named = set(re.findall(r'(?:src|href)="(page/[^"]+)"', page.text))
        assert named <= {f"page/{name}" for name in PAGE}
        total = len(page.content)
        for name in PAGE:
            answer = await client.get(f"/page/{name}")
            assert answer.status_code == 200, name
            total += len(answer.content) * (name != "index.html")
            again = await client.get(f"/page/{name}", headers={"if-none-match": answer.headers["etag"]})
            assert again.status_code == 304
            assert not again.content
        assert total < MAX_PAGE_BYTES
        for wrong in ("/page/secrets.txt", "/page/..%2fapp.py", "/page/uplot.license", "/elsewhere"):
            assert (await client.get(wrong)).status_code == 404
        assert (await client.post("/api/v1/state")).status_code == 405

    ask(swarm, questions)


def test_every_answer_has_the_headers_that_keep_others_out(swarm: InventedSwarm) -> None:
    async def questions(client: httpx.AsyncClient) -> None:
        for path in ("/", "/api/v1/state", "/api/v1/curves", "/metrics", "/healthz", "/readyz", "/nowhere"):
            headers = (await client.get(path)).headers
            assert headers["x-content-type-options"] == "nosniff", path
            assert "content-security-policy" in headers, path
            assert "access-control-allow-origin" not in headers, path
            assert "server" not in headers, path

    ask(swarm, questions)


def test_the_state_is_put_together_once_a_second_however_many_look(swarm: InventedSwarm) -> None:
    async def questions(client: httpx.AsyncClient) -> None:
        first = await client.get("/api/v1/state")
        swarm.step()
        second = await client.get("/api/v1/state")
        assert first.content == second.content
        assert first.headers["cache-control"] == "no-store"
        assert first.json()["now"]["epoch"] == 12
        assert first.json()["run"]["id"] == "invented"

    ask(swarm, questions)


def test_curves_come_whole_or_from_an_epoch_on(swarm: InventedSwarm) -> None:
    async def questions(client: httpx.AsyncClient) -> None:
        everything = (await client.get("/api/v1/curves")).json()
        assert set(everything) == {metric.name for metric in BY_EPOCH}
        assert everything["loss"]["epochs"] == list(range(1, 13))
        assert everything["eval_loss"]["epochs"] == [0, 10]
        some = (await client.get("/api/v1/curves", params={"loss": 10, "eval_loss": -1})).json()
        assert some["loss"]["epochs"] == [11, 12]
        assert set(some) == {"loss", "eval_loss"}
        for wrong in ({"secrets": 1}, {"loss": "x"}, {"loss": "1; DROP TABLE figures"}):
            assert (await client.get("/api/v1/curves", params=wrong)).status_code == 400
        assert (await client.get("/api/v1/curves", params={"loss": 10**30})).status_code == 503

    ask(swarm, questions)


def test_metrics_are_in_prometheus_format_and_name_no_peer(swarm: InventedSwarm) -> None:
    async def questions(client: httpx.AsyncClient) -> None:
        answer = await client.get("/metrics")
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        lines = answer.text.splitlines()
        sample = re.compile(r'^[a-z_][a-z0-9_]*(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? -?[0-9.e+-]+$')
        assert all(sample.match(line) for line in lines if not line.startswith("#"))
        names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
        assert len(set(names)) == len(names)
        assert "collab_epoch 12" in lines
        assert "collab_rounds_committed_total 12" in lines
        assert int(next(line for line in lines if line.startswith("collab_tasks ")).split()[1]) >= 1
        assert 'collab_peers{role="trainer",state="training"} 3' in lines
        assert not any(peer in answer.text for peer in swarm.names)
        assert "trainer-1" not in answer.text

    ask(swarm, questions)


def test_a_stranger_s_claim_is_over_no_metric(swarm: InventedSwarm) -> None:
    swarm.rounds = [make_record(contributors=tuple((peer, 8.0) for peer in swarm.names), epoch=11)]
    ahead = next(record for record in swarm.view().records if record.peer in swarm.names)
    ahead = replace(ahead, peer=PeerId("stranger"), epoch=2**53, samples_per_s=1e9)
    seen = swarm.view
    del swarm.names[min(swarm.names)], swarm.names[max(swarm.names)]
    swarm.sources = replace(swarm.sources, view=lambda: replace(seen(), records=(*seen().records, ahead)))

    async def questions(client: httpx.AsyncClient) -> None:
        lines = (await client.get("/metrics")).text.splitlines()
        assert {"collab_epoch 12", "collab_trainers 1", "collab_samples_per_second 4"} <= set(lines)

    ask(swarm, questions)


def test_metrics_go_on_while_the_disk_takes_none(swarm: InventedSwarm) -> None:
    async def questions(client: httpx.AsyncClient) -> None:
        swarm.step()
        lines = (await client.get("/metrics")).text.splitlines()
        assert swarm.store.counters()["rounds_committed_total"] == 12, "it was not written"
        assert "collab_rounds_committed_total 13" in lines
        assert f"collab_loss {swarm.loss:.16g}" in lines

    ask(swarm, questions)


def test_health_is_of_the_process_and_readiness_of_its_work(swarm: InventedSwarm) -> None:
    async def questions(client: httpx.AsyncClient) -> None:
        assert (await client.get("/readyz")).text == "ready\n"
        swarm.problem = "the disk takes no checkpoints"
        unready = await client.get("/readyz")
        assert unready.status_code == 503
        assert unready.text == "not ready: the disk takes no checkpoints\n"
        swarm.problem = f"{swarm.sources.home}/checkpoints takes nothing"
        assert (await client.get("/readyz")).text == "not ready: DATA_DIR/checkpoints takes nothing\n"
        assert (await client.get("/healthz")).status_code == 200

    ask(swarm, questions)


@pytest.mark.parametrize("host", ["localhost:8470", "127.0.0.1:8470", "[::1]:8470", "localhost"])
def test_who_asks_for_this_machine_is_answered(swarm: InventedSwarm, host: str) -> None:
    async def questions(client: httpx.AsyncClient) -> None:
        assert (await client.get("/healthz")).status_code == 200

    ask(swarm, questions, host=host)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8470", "localhost.evil.example", "127.0.0.1.example"])
def test_a_page_from_elsewhere_that_points_its_name_here_reads_nothing(swarm: InventedSwarm, host: str) -> None:
    async def questions(client: httpx.AsyncClient) -> None:
        answer = await client.get("/api/v1/state")
        assert answer.status_code == 421
        assert "invented" not in answer.text

    ask(swarm, questions, host=host)


def test_one_that_is_there_for_everybody_answers_under_any_name(swarm: InventedSwarm) -> None:
    async def questions(client: httpx.AsyncClient) -> None:
        assert (await client.get("/api/v1/state")).status_code == 200

    ask(swarm, questions, host="run.example", is_local=False)


def test_hostile_names_are_data(swarm: InventedSwarm) -> None:
    async def questions(client: httpx.AsyncClient) -> None:
        swarm.names[min(swarm.names)] = HOSTILE
        answer = await client.get("/api/v1/state")
        assert answer.headers["content-type"] == "application/json"
        assert HOSTILE in {peer["name"] for peer in json.loads(answer.text)["peers"]}

    ask(swarm, questions)
    folder = Path(__file__).parents[3] / "peers/dashboard/page"
    sources = [(folder / name).read_text() for name in PAGE if "uplot" not in name]
    assert not [text for text in sources if re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", text)]
