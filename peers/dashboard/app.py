"""What the dashboard answers: its page, the JSON behind it, Prometheus' metrics, and whether the backbone is well."""

import hashlib
import json
import sqlite3
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from collab.metrics.names import BY_EPOCH, EPOCH, SAMPLES_PER_S, TRAINERS
from collab.ports import Compute
from peers.dashboard.overview import Overview
from peers.dashboard.plain import shown
from peers.dashboard.prometheus import CONTENT_TYPE, exposition

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

PAGE = {
    "index.html": "text/html; charset=utf-8",
    "dashboard.css": "text/css; charset=utf-8",
    "dashboard.js": "text/javascript; charset=utf-8",
    "charts.js": "text/javascript; charset=utf-8",
    "tables.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "uplot.min.css": "text/css; charset=utf-8",
    "uplot.min.js": "text/javascript; charset=utf-8",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
SHOWN_POINTS = 1_000
"""Of each curve: more than a screen has columns."""
STATE_LIFE_S = 0.9
"""However many pages are open, the state is put together once a second."""


@dataclass(frozen=True, slots=True)
class Page:
    """One file of the page."""

    content: bytes
    kind: str
    tag: str


class Answers:
    """To everything that a browser or a program asks."""

    def __init__(self, overview: Overview, compute: Compute) -> None:
        self._overview, self._compute = overview, compute
        folder = resources.files("peers.dashboard") / "page"
        self._pages = {
            name: Page(content, kind, f'"{hashlib.sha256(content).hexdigest()[:16]}"')
            for name, kind in PAGE.items()
            for content in [(folder / name).read_bytes()]
        }
        self._state, self._state_at_s = b"", float("-inf")

    def routes(self) -> list[Route]:
        """By their paths."""
        return [
            Route("/", self.page),
            Route("/page/{name}", self.page),
            Route("/api/v1/state", self.state),
            Route("/api/v1/curves", self.curves),
            Route("/metrics", self.metrics),
            Route("/healthz", self.healthz),
            Route("/readyz", self.readyz),
        ]

    async def page(self, request: Request) -> Response:
        page = self._pages.get(request.path_params.get("name", "index.html"))
        if page is None:
            return PlainTextResponse("there is no such page\n", status_code=404)
        headers = {"etag": page.tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == page.tag:
            return Response(status_code=304, headers=headers)
        return Response(page.content, headers=headers | {"content-type": page.kind})

    async def state(self, _: Request) -> Response:
        now_s = self._overview.sources.clock.monotonic()
        if now_s - self._state_at_s >= STATE_LIFE_S:
            self._state, self._state_at_s = json.dumps(self._overview.state(), allow_nan=False).encode(), now_s
        return Response(self._state, headers={"content-type": "application/json", "cache-control": "no-store"})

    async def curves(self, request: Request) -> Response:
        """Each parameter is a metric and the epoch after which its points are wanted; none: all of all."""
        known = [metric.name for metric in BY_EPOCH]
        try:
            wanted = {name: int(epoch) for name, epoch in request.query_params.items()} or dict.fromkeys(known, -1)
        except ValueError:
            return JSONResponse({"error": "expected METRIC=EPOCH"}, status_code=400)
        if not wanted.keys() <= set(known):
            return JSONResponse({"error": "unknown metric", "metrics": known}, status_code=400)
        store = self._overview.sources.store

        def read() -> dict[str, Any]:
            curves = {name: store.curve(name, after_epoch=after, most=SHOWN_POINTS) for name, after in wanted.items()}
            return {name: {"epochs": curve.epochs, "values": curve.values} for name, curve in curves.items()}

        try:
            return JSONResponse(await self._compute.beside(read), headers={"cache-control": "no-store"})
        except (sqlite3.Error, OverflowError) as error:
            return JSONResponse({"error": f"the metrics cannot be read: {error}"}, status_code=503)

    async def metrics(self, _: Request) -> Response:
        now, recent = self._overview.figures_now(), self._overview.sources.recent
        present = {name: now[name] for name in (EPOCH.name, SAMPLES_PER_S.name, TRAINERS.name)}
        text = exposition(recent.figures | present, recent.counters, self._overview.peers_by_role_and_state())
        return Response(text, headers={"content-type": CONTENT_TYPE, "cache-control": "no-store"})

    async def healthz(self, _: Request) -> Response:
        return PlainTextResponse("ok\n", headers={"cache-control": "no-store"})

    async def readyz(self, _: Request) -> Response:
        sources = self._overview.sources
        problem = shown(sources.problem(), sources.home)
        text, code = (f"not ready: {problem}\n", 503) if problem else ("ready\n", 200)
        return PlainTextResponse(text, status_code=code, headers={"cache-control": "no-store"})


def dashboard_app(answers: Answers, *, hosts: Collection[str] = ()) -> Asgi:
    """The application.

    Args:
        hosts: it answers only to who asks for one of these, if there are any: a page from elsewhere that a browser on
            this machine shows can have any name point here, and would read what it gets.
    """
    app = Starlette(routes=answers.routes())  # type: ignore[arg-type,unused-ignore]

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *own]}
            await send(message)

        if scope["type"] == "http" and hosts and _host_of(scope) not in hosts:
            hint = "this dashboard answers to localhost only; a proxy before it asks for 'Host: localhost'\n"
            await PlainTextResponse(hint, status_code=421)(scope, receive, with_headers)
            return
        await app(scope, receive, with_headers)

    return guarded


def _host_of(scope: Mapping[str, Any]) -> str:
    """The name that the browser asked for, without its port."""
    host = str(dict(scope["headers"]).get(b"host", b"").decode("latin-1"))
    return host if host.endswith("]") else host.rpartition(":")[0] or host
