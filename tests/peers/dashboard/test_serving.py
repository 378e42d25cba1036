"""The dashboard's server, in the peer's event loop."""

import asyncio
from typing import Any

import httpx
import pytest

from peers.dashboard.address import listen, url_of
from peers.dashboard.serving import QuietServer, serve_app

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
