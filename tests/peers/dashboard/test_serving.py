"""The dashboard's server, in the peer's event loop."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from peers.dashboard.address import listen, url_of
from peers.dashboard.serving import QuietServer, serve_app, serve_dashboard
from scripts.dashboard_swarm import InventedSwarm
from tests.fakes import FakeNetwork, make_ports

LOOKS_S = 0.1
"""How often uvicorn's own server looks whether it should end."""


async def app(_: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"well"})


def test_it_answers_ends_when_told_and_does_nothing_else_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks, on_tick = list[int](), QuietServer.on_tick

    async def counted(server: QuietServer, counter: int) -> bool:
        ticks.append(counter)
        return await on_tick(server, counter)

    monkeypatch.setattr(QuietServer, "on_tick", counted)

    async def main() -> None:
        listening = listen("127.0.0.1:0")
        assert listening is not None
        url = url_of(listening)
        with listening:
            serving = asyncio.create_task(serve_app(listening, app))
            await asyncio.sleep(4 * LOOKS_S)
            async with httpx.AsyncClient(trust_env=False) as client:
                assert (await client.get(url)).text == "well"
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving
            async with httpx.AsyncClient(trust_env=False) as client:
                with pytest.raises(httpx.ConnectError):
                    await client.get(url)

    asyncio.run(main())
    assert ticks == [0]


@pytest.mark.parametrize("place", ["127.0.0.2:0", "127.0.0.1:0", "0"])
def test_one_for_this_machine_answers_at_the_address_that_it_prints_and_under_no_strange_name(
    tmp_path: Path, place: str
) -> None:
    swarm = InventedSwarm(tmp_path, 1)

    async def main() -> None:
        listening = listen(place)
        assert listening is not None
        url = url_of(listening)
        ports = make_ports(FakeNetwork().join("backbone"))
        serving = asyncio.create_task(serve_dashboard(listening, swarm.sources, ports))
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(f"{url}healthz")).status_code == 200
            assert (await client.get(f"{url}healthz", headers={"host": "evil.example"})).status_code == 421
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving

    asyncio.run(main())
    swarm.close()
