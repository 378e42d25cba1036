"""Connections of visitors: not more than a few hundred, and none that is only held open."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_AT_ONCE = 200
"""A browser has up to six. More are cut off at once: each takes a file descriptor, and the swarm needs some, too."""
IDLE_S = 15.0
"""In which a visitor must have asked for something new, and have taken the answer to what it asked before; it is looked
at so often, so it may take up to twice as long. The page asks every second, one that nobody looks at every ten."""


class Visitor(H11Protocol):
    """One connection, by HTTP/1.1."""

    _watch: asyncio.TimerHandle | None = None
    _seen: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MOST_AT_ONCE:
            transport.abort()
        else:
            self._watch = self.loop.call_later(IDLE_S, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        if self.cycle is self._seen:  # one for each request
            self.transport.abort()
        else:
            self._seen = self.cycle
            self._watch = self.loop.call_later(IDLE_S, self._look)
