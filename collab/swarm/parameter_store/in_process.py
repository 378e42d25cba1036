"""A parameter store in this process's memory: for one server, and for simulations."""

import threading

from collab.data.work_units import Unit
from collab.errors import StateError
from collab.swarm.parameter_store.base import Assimilated, Kept, Out, Push, Stored, Verdict, mixed
from collab.types import Vector


class InProcessStore:
    """Implements ``ParameterStore``; everything is lost with the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stored: Stored | None = None
        self._done: dict[Unit, str] = {}
        self._out: dict[Unit, Out] = {}
        self._first_open = 1

    def begin(self, first: Kept) -> bool:
        with self._lock:
            if self._stored is not None:
                return False
            self._stored, self._done = _frozen(first.stored.version, first.stored.values.copy()), dict(first.done)
            self._first_open = first.first_open
            return True

    def read(self, known: int | None = None) -> Stored | None:
        stored = self._stored
        return None if stored is None or stored.version == known else stored

    def version(self) -> int | None:
        return None if self._stored is None else self._stored.version

    def assimilate(self, push: Push) -> Assimilated:
        with self._lock:
            stored = self._stored
            if stored is None:
                raise StateError("nothing is stored yet", hint="begin with the run's first state")
            lease, staleness = self._done.get(push.unit), stored.version - push.based_on
            if lease is not None or push.unit.pass_number < self._first_open:
                return Assimilated(Verdict.AGAIN if lease == push.lease else Verdict.DONE, stored.version, 0)
            if push.max_staleness is not None and staleness > push.max_staleness:
                return Assimilated(Verdict.STALE, stored.version, staleness)
            self._stored = _frozen(stored.version + 1, mixed(stored.values, push))
            self._done[push.unit] = push.lease
            self._out.pop(push.unit, None)
            return Assimilated(Verdict.TAKEN, stored.version + 1, staleness)

    def done(self, pass_number: int) -> dict[int, str] | None:
        with self._lock:
            if pass_number < self._first_open:
                return None
            return {unit.shard: lease for unit, lease in self._done.items() if unit.pass_number == pass_number}

    def passes(self) -> range:
        with self._lock:
            return range(self._first_open, max((unit.pass_number for unit in self._done), default=0) + 1)

    def note_out(self, out: Out) -> None:
        with self._lock:
            self._out[out.unit] = out

    def note_back(self, unit: Unit) -> None:
        with self._lock:
            self._out.pop(unit, None)

    def out(self) -> list[Out]:
        with self._lock:
            return list(self._out.values())

    def keep(self) -> Kept | None:
        with self._lock:
            return None if self._stored is None else Kept(self._stored, dict(self._done), self._first_open)

    def settle(self, first_open: int) -> None:
        with self._lock:
            self._first_open = max(self._first_open, first_open)
            self._done = {unit: lease for unit, lease in self._done.items() if unit.pass_number >= self._first_open}
            self._out = {unit: out for unit, out in self._out.items() if unit.pass_number >= self._first_open}

    def close(self) -> None:
        pass


def _frozen(version: int, values: Vector) -> Stored:
    values.flags.writeable = False
    return Stored(version, values)
