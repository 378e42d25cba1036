"""Which unit of work goes to whom, until when: pass after pass, shard by shard, each done once. Pure bookkeeping."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from collab.types import PeerId

SEEN = 32
"""Units whose time decides how long a lease lasts."""
SLOWEST = 3.0
"""A lease lasts so many times what the slowest of the last units took: a machine that pauses is not taken for dead."""
MOST_EACH = 20
"""Units that one client has at once: sixteen as a run file may have it, and a few of a life before."""
PASSES_AT_ONCE = 3
"""So many passes of units are out at most at clients that have brought nothing lately; the alpha of a later one may be
that of a late pass, and then its push counts for little."""
LEAST_AT_ONCE = 64
"""Units, where passes are shorter than that: each client of a small run has one."""
BROUGHT = 4
"""More units for each client that has brought one: a crowd that comes at once waits for two units at most."""
REMEMBERED = 1024
"""Clients that have brought a unit, the last ones."""
LONGEST = 20
"""A lease is made longer up to so many times what one lasts, from when its client has brought something last."""
OTHERS_FIRST_S = 10.0
"""A unit goes to whoever has let its time pass only after that: others who wait ask each second."""


@dataclass(frozen=True, slots=True, order=True)
class Unit:
    """A piece of work that counts once."""

    pass_number: int
    """Over the data, from 1."""
    shard: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitLease:
    """One unit for one client, until its deadline."""

    unit: Unit
    lease: str
    client: PeerId
    began_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class _Free:
    """A unit that was out, and is free again."""

    unit: Unit
    client: PeerId
    """Who had it."""
    others_until_s: float
    """Up to when it goes to others only."""


class Names(Protocol):
    """Makes a name for each lease, never twice."""

    def __call__(self) -> str: ...


class WorkUnits:
    """Hands out the units of a run and takes note of what is done; one server does, whichever it is.

    Units go out in order of passes; those whose lease is over, or was given back, go out first. The next pass begins as
    soon as every unit of this one is out, so that nobody ever waits for the slowest; a unit of it that comes late still
    counts. What is done and what is out is known to the parameter store, too: whoever takes over begins with that.
    """

    def __init__(self, *, shards: int, passes: int, first_s: float, name: Names) -> None:
        """
        Args:
            shards: units of a pass, >= 1.
            passes: of the run, >= 1.
            first_s: how long a lease lasts while no unit was done, > 0.
            name: of the next lease.
        """
        if min(shards, passes) < 1 or not first_s > 0:
            raise ValueError(f"{shards} shards, {passes} passes and leases of {first_s} s: all are above 0")
        self._shards, self._passes, self._first_s, self._name = shards, passes, first_s, name
        self._leased: dict[Unit, UnitLease] = {}
        self._first_end_s = math.inf
        """No lease is over before that."""
        self._first_open = 1
        """Passes before this one are done."""
        self._done: dict[int, set[int]] = {}
        """Shards by pass, of that and later ones."""
        self._again: deque[_Free] = deque()
        self._next = Unit(1, 0)
        """First that was never out; behind the last pass when there is none."""
        self._took_s: deque[float] = deque(maxlen=SEEN)
        self._brought_s: dict[PeerId, float] = {}
        """When each client has brought a unit last, in this order."""

    # -- what clients ask for ----------------------------------------------------------------------------------------

    def take(self, client: PeerId, now_s: float) -> UnitLease | None:
        """A unit for ``client``; None: all that is left is out at others, or too much is, or everything is done.

        Whoever has too many loses the oldest: it may have been killed, and have forgotten that.
        """
        self._expire(now_s)
        theirs = [lease for lease in self._leased.values() if lease.client == client]
        if len(theirs) >= MOST_EACH:
            self._set_free(min(theirs, key=lambda lease: lease.began_s), -math.inf)
        unit = self._free(client, now_s)
        if unit is None:
            return None
        lease = UnitLease(
            unit=unit, lease=self._name(), client=client, began_s=now_s, until_s=now_s + self.lease_s
        )
        self._lend(lease)
        return lease

    def give_back(self, lease: str, client: PeerId) -> Unit | None:
        """``client`` is about to be preempted: its unit, which is free at once; None: it had not that lease."""
        found = self._held(lease, client)
        if found is None:
            return None
        self._set_free(found, -math.inf)
        return found.unit

    def extend(self, lease: str, client: PeerId, now_s: float) -> UnitLease | None:
        """``client`` is still at work, and says so; None: its lease was over, and the unit is somebody else's.

        That of one who never brings anything ends: others may do the unit, and the first push counts.
        """
        self._expire(now_s)
        found = self._held(lease, client)
        if found is None:
            return None
        last_s = max(found.began_s, self._brought_s.get(client, -math.inf)) + LONGEST * max(self._first_s, self.lease_s)
        until_s = min(now_s + self.lease_s, max(last_s, found.until_s))
        longer = UnitLease(unit=found.unit, lease=lease, client=client, began_s=found.began_s, until_s=until_s)
        self._lend(longer)
        return longer

    def note_done(self, unit: Unit, now_s: float, by: str = "") -> None:
        """The store has taken a push for ``unit``.

        Args:
            by: the lease under which it was done; empty: that which is out.
        """
        if not (1 <= unit.pass_number <= self._passes and 0 <= unit.shard < self._shards):
            raise ValueError(f"{unit} is no unit of this run")
        lease = self._leased.pop(unit, None)
        if lease is not None and by in ("", lease.lease):
            self._took_s.append(now_s - lease.began_s)
            self.note_brought(lease.client, now_s)
        self._add_done(unit)

    def note_all_done(self, pass_number: int, done: Mapping[int, str], now_s: float) -> None:
        """The store has taken pushes for these shards of a pass, under these leases; some of them we may know of."""
        for shard, lease in done.items():
            if not self._is_done(unit := Unit(pass_number, shard)):
                self.note_done(unit, now_s, lease)

    def note_out(self, lease: UnitLease) -> None:
        """Who handed out units before us has lent one like that. Said after what is done."""
        if not self._is_done(lease.unit):
            self._lend(lease)

    def note_settled(self, first_open: int) -> None:
        """All units of the passes before this one are done."""
        if first_open > self._first_open:
            self._leased = {unit: lease for unit, lease in self._leased.items() if unit.pass_number >= first_open}
            self._done = {number: shards for number, shards in self._done.items() if number >= first_open}
            self._first_open, self._next = first_open, max(self._next, Unit(first_open, 0))
            self._pass_what_is_done()

    def note_brought(self, client: PeerId, now_s: float) -> None:
        """A push of this client counts, of whichever unit, and whoever had handed that out."""
        self._brought_s.pop(client, None)
        self._brought_s[client] = now_s
        if len(self._brought_s) > REMEMBERED:
            del self._brought_s[next(iter(self._brought_s))]

    # -- how far it is -----------------------------------------------------------------------------------------------

    @property
    def lease_s(self) -> float:
        """How long a lease lasts that begins now."""
        return SLOWEST * max(self._took_s) if self._took_s else self._first_s

    @property
    def is_finished(self) -> bool:
        """Whether every unit of the run is done."""
        return self.num_done == self._shards * self._passes

    @property
    def is_all_out(self) -> bool:
        """Whether nothing is out, and nothing left to hand out, as far as we know."""
        return not self._leased and not self._again and self._next.pass_number > self._passes

    @property
    def num_done(self) -> int:
        """Units of all passes that are done."""
        return (self._first_open - 1) * self._shards + sum(map(len, self._done.values()))

    def out(self) -> list[UnitLease]:
        """All leases, in the order of their ends."""
        return sorted(self._leased.values(), key=lambda lease: lease.until_s)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _lend(self, lease: UnitLease) -> None:
        self._leased[lease.unit] = lease
        self._first_end_s = min(self._first_end_s, lease.until_s)

    def _free(self, client: PeerId, now_s: float) -> Unit | None:
        waiting = [each for each in self._again if not self._is_done(each.unit) and each.unit not in self._leased]
        self._again = deque(waiting)
        for free in waiting:
            if free.client != client or now_s >= free.others_until_s:
                self._again.remove(free)
                return free.unit
        if client not in self._brought_s and self._is_too_much_out():
            return None
        while self._next.pass_number <= self._passes:
            unit, shard = self._next, self._next.shard + 1
            last = shard == self._shards
            self._next = Unit(unit.pass_number + 1, 0) if last else Unit(unit.pass_number, shard)
            if not self._is_done(unit) and unit not in self._leased:
                return unit
        return None

    def _is_too_much_out(self) -> bool:
        """At clients that have brought nothing lately: one with many identities is to leave something to others."""
        out = sum(lease.client not in self._brought_s for lease in self._leased.values())
        most = max(PASSES_AT_ONCE * self._shards, LEAST_AT_ONCE) + BROUGHT * len(self._brought_s)
        return out + len(self._again) >= most

    def _set_free(self, lease: UnitLease, others_until_s: float) -> None:
        del self._leased[lease.unit]
        self._again.append(_Free(lease.unit, lease.client, others_until_s))

    def _is_done(self, unit: Unit) -> bool:
        return unit.pass_number < self._first_open or unit.shard in self._done.get(unit.pass_number, ())

    def _add_done(self, unit: Unit) -> None:
        """A pass of which everything is done takes no more memory than its number."""
        if self._is_done(unit):
            return
        self._done.setdefault(unit.pass_number, set()).add(unit.shard)
        self._pass_what_is_done()

    def _pass_what_is_done(self) -> None:
        while len(self._done.get(self._first_open, ())) == self._shards:
            del self._done[self._first_open]
            self._first_open += 1

    def _held(self, lease: str, client: PeerId) -> UnitLease | None:
        return next((each for each in self._leased.values() if (each.lease, each.client) == (lease, client)), None)

    def _expire(self, now_s: float) -> None:
        if now_s < self._first_end_s:
            return
        for lease in [each for each in self.out() if each.until_s <= now_s]:
            self._set_free(lease, now_s + OTHERS_FIRST_S)
        self._first_end_s = min((lease.until_s for lease in self._leased.values()), default=math.inf)
