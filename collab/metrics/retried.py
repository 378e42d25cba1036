"""A tracking service that fails, or is away: what comes meanwhile is kept, and it gets it when it is tried again."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from collab.metrics.names import EPOCH
from collab.metrics.tracking import Say, Tracked

AGAIN_S, MOST_AGAIN_S = 3600.0, 24 * 3600.0
"""Until a service that did not answer is tried again, and how long that becomes: each try may leave something."""
MOST_OWED = 5_000
"""Epochs that are sent when it answers at last; of more, the newest. The disk has all of them."""


class Destination(Protocol):
    """Where figures of one run go. Everything but ``drop`` may raise whatever the library raises."""

    @property
    def where(self) -> str:
        """For a person, once it is open."""
        ...

    def open(self) -> None:
        """Begin the run, or go on with it."""
        ...

    def take(self, figures: Mapping[str, float]) -> None:
        """Values of metrics at one epoch, which is among them."""
        ...

    def close(self) -> None:
        """Send what there is."""
        ...

    def drop(self) -> None:
        """End whatever has begun, and would be in the way of the next ``open``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where a run's figures go, and where meanwhile."""

    service: Destination
    unopened: str
    """What a person hears of one that does not open, behind its name."""
    stand_in: Destination | None
    """While the service fails; may be the service itself. None: memory only."""
    hint: str
    """What to do about figures that it does not get before this process ends."""


class Library(Protocol):
    """A tracking service's library."""

    @property
    def name(self) -> str: ...

    def route(self, tracked: Tracked) -> Route:
        """Raises ``ImportError`` where it is not installed."""
        ...


class Retried:
    """Implements ``Service``: each figure gets to the service once, as far as this process can know."""

    def __init__(self, library: Library, now: Callable[[], float] = time.monotonic) -> None:
        self._library, self._now = library, now
        self._say: Say
        self._route: Route
        self._taker: Destination | None = None
        """Takes figures now: the service, or what stands in for it. None: neither does."""
        self._problem = ""
        """What a person was told is wrong; empty: nothing is."""
        self._wait_s, self._next_s = AGAIN_S, 0.0
        self._owed: dict[float, dict[str, float]] = {}
        """By epoch, of which several events tell."""

    @property
    def name(self) -> str:
        return self._library.name

    def begin(self, tracked: Tracked, say: Say) -> None:
        self._say, self._route = say, self._library.route(tracked)
        if reason := self._open(self._route.service):
            self._fall_back(self._route.unopened, reason)
        else:
            say(self._where())

    def log(self, figures: Mapping[str, float]) -> None:
        if not self._problem:
            reason = self._send(figures)
            if not reason:
                return
            self._fall_back("takes no figures", reason)
        self._owed.setdefault(figures[EPOCH.name], {}).update(figures)
        if len(self._owed) > MOST_OWED:
            del self._owed[next(iter(self._owed))]
        if self._now() >= self._next_s:
            self._try_again()
        if not self._problem or self._taker is None:
            return  # these were among what was owed, or nothing takes them
        if self._taker is self._route.service:
            self._deliver()
        else:
            self._send(figures)

    def end(self) -> None:
        if self._taker is not None:
            self._taker.close()

    def _open(self, destination: Destination) -> str:
        """From now on it takes figures; where that fails, nothing does: the reason."""
        self._taker = None
        try:
            destination.open()
        except Exception as error:  # noqa: BLE001 - of any kind
            destination.drop()
            return type(error).__name__  # its text may hold the key
        self._taker = destination
        return ""

    def _send(self, figures: Mapping[str, float]) -> str:
        """Hand them over; where that fails, nothing takes any more: the reason."""
        if self._taker is None:
            return "closed"
        try:
            self._taker.take(figures)
        except Exception as error:  # noqa: BLE001 - of any kind
            self._drop()
            return type(error).__name__
        return ""

    def _deliver(self) -> str:
        """Hand over what is owed; what was taken is owed no more, also where the rest fails: the reason."""
        for epoch in list(self._owed):
            if reason := self._send(self._owed[epoch]):
                return reason
            del self._owed[epoch]
        return ""

    def _drop(self) -> None:
        if self._taker is not None:
            self._taker.drop()
        self._taker = None

    def _where(self) -> str:
        return f"{self.name} has the figures: {self._route.service.where}"

    def _fall_back(self, what: str, reason: str) -> None:
        """To what stands in, and tell a person what is wrong."""
        self._put_off()
        memory = "in memory" if self._route.stand_in is None else "in memory, as this disk takes none,"
        where = "on this disk" if self._taker is not None else memory
        self._problem = f"{self.name} {what} ({reason}); figures are kept {where} meanwhile"
        self._say(self._problem, f"it is tried again by itself, and gets them then; {self._route.hint}")

    def _put_off(self) -> None:
        """Until the next try what comes goes to what stands in, if that takes it."""
        if self._route.stand_in is not None:
            self._open(self._route.stand_in)
        self._next_s = self._now() + self._wait_s
        self._wait_s = min(2 * self._wait_s, MOST_AGAIN_S)

    def _try_again(self) -> None:
        """Whether it answers by now; then it gets what it has missed."""
        try:
            self.end()
        except Exception:  # noqa: BLE001 - of any kind
            self._drop()
        if self._open(self._route.service) or self._deliver():
            self._put_off()
            return
        self._say(self._where(), settles=self._problem)
        self._problem, self._wait_s = "", AGAIN_S
