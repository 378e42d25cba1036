"""What a backbone's parameter store complains of: told once, and what follows from it."""

import math

from collab.errors import StateError
from collab.metrics.records import Notice
from collab.ports import Ports

PATIENCE_S = 10.0
"""A store that fails us for longer may be within another backbone's reach."""
CALM_S = 10.0
"""One that can be read may still take no push: it is whole when no client's question has failed for so long.
They ask again each second."""


class StoreTrouble:
    """Of one backbone."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._since_s: float | None = None
        """Since when the store fails; None: it does not."""
        self._last_s = -math.inf
        """When it did last."""
        self._call_s = -math.inf
        """When a client's question did."""
        self.problem = "", ""
        """What it complains of, and what to do, in words; both empty: of nothing."""

    @property
    def is_there(self) -> bool:
        """Whether the store fails."""
        return self._since_s is not None

    @property
    def is_lasting(self) -> bool:
        """Whether it has failed for so long that another backbone had better serve."""
        return self._since_s is not None and self._last_s >= self._since_s + PATIENCE_S

    def note(self, error: StateError) -> None:
        """A look at the store has failed."""
        self._last_s = self._ports.clock.monotonic()
        if self._since_s is None:
            self._since_s = self._last_s
        if self.problem[0] != error.message:
            self.problem = error.message, error.hint
            self._say(*self.problem, is_problem=True)

    def note_failed_call(self, error: StateError) -> None:
        """What a client has asked for, or brought, has failed."""
        self._call_s = self._ports.clock.monotonic()
        self.note(error)

    def note_answer(self) -> None:
        """A look at the store has gone well."""
        if self._since_s is not None and self._ports.clock.monotonic() >= self._call_s + CALM_S:
            self._say("the parameter store answers again", settles=self.problem[0])
            self._since_s, self.problem = None, ("", "")

    def _say(self, text: str, hint: str = "", *, is_problem: bool = False, settles: str = "") -> None:
        at_s = self._ports.clock.now()
        self._ports.observer.observe(Notice(at_s=at_s, text=text, hint=hint, is_problem=is_problem, settles=settles))
