"""The dashboard's server, in the backbone's own event loop: decision 0033 says why."""

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from collab.metrics.records import Notice
from collab.ports import Ports
from peers.dashboard.address import hosts_of
from peers.dashboard.app import Answers, Asgi, dashboard_app
from peers.dashboard.overview import Overview
from peers.dashboard.sources import Sources
from peers.dashboard.visitors import IDLE_S, Visitor

logger = logging.getLogger(__name__)



class QuietServer(uvicorn.Server):
    """Leaves signals to the peer whose event loop it is in, and does nothing while nobody asks.

    uvicorn's looks ten times a second whether it should end.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._end = asyncio.Event()

    def end(self) -> None:
        """Cut off what is under way."""
        self.should_exit = self.force_exit = True
        self._end.set()

    async def main_loop(self) -> None:
        """Until told to end."""
        await self.on_tick(0)
        await self._end.wait()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve_dashboard(listening: socket.socket, sources: Sources, ports: Ports) -> None:
    """Answer whoever comes, until cancelled; the socket is closed at the end. Without the page the run goes on."""
    with listening:
        try:
            answers = await ports.compute.beside(lambda: Answers(Overview(sources), ports.compute))
            await serve_app(listening, dashboard_app(answers, hosts=hosts_of(listening)))
        except Exception:  # whatever is wrong with a page, training has nothing to do with it
            logger.exception("the dashboard has ended")
            text, hint = "the dashboard has ended: see the log", "the run goes on; start the backbone again to see it"
            ports.observer.observe(Notice(at_s=ports.clock.now(), text=text, hint=hint, is_problem=True))


async def serve_app(listening: socket.socket, app: Asgi) -> None:
    """Until cancelled; what is under way then is cut off."""
    config = uvicorn.Config(
        app,
        http=Visitor,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=int(IDLE_S),
        timeout_graceful_shutdown=1,
    )
    server = QuietServer(config)
    serving = asyncio.ensure_future(server.serve(sockets=[listening]))
    try:
        await asyncio.shield(serving)
    finally:
        server.end()
        await serving
