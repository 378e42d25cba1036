"""Parameter servers of a swarm whose messages are calculated: units and parameters are the real ones, ways are not."""

import asyncio
import math
from collections.abc import Mapping, Sequence

from collab import config
from collab.data.unit_samples import sample_ids_of
from collab.data.work_units import Unit, WorkUnits
from collab.errors import PeerUnreachable
from collab.simulation.calculated.ways import Ways
from collab.simulation.forecast import FLOAT_BYTES, UNIT_TRIPS
from collab.simulation.links import Access
from collab.simulation.virtual_time import VirtualLoop
from collab.strategies.vc_asgd import alpha_of
from collab.swarm.parameter_store.base import Assimilated, Push, Stored, Verdict
from collab.swarm.parameter_store.in_process import InProcessStore
from collab.swarm.unit_client import Granted, NothingNow
from collab.training.unit_desk import UnitDesk
from collab.training.unit_replica import UnitReplica
from collab.types import PeerId, Vector

AGAIN_S = 1.0
"""A client for whom there is nothing now comes again after that."""
PASSES = 1 << 40
"""Where nobody has said how many pushes there are to be, the time ends before they do."""


class Servers:
    """What all backbones together hand out and mix."""

    def __init__(
        self,
        loop: VirtualLoop,
        run: config.Run,
        store: InProcessStore,
        ways: Ways,
        here: Mapping[str, Access],
        *,
        num_elements: int,
    ) -> None:
        """
        Args:
            here: links of the servers that are there now.
            num_elements: of the parameters, before they are thinned.
        """
        section, until_version = run.strategy, run.until_epoch
        if not isinstance(section, config.VcAsgd):
            raise ValueError(f"{section.name} has no parameter servers")
        self._loop, self._section, self._store, self._ways, self._here = loop, section, store, ways, here
        self._num_bytes = float(FLOAT_BYTES * num_elements)
        self._made, self._until = 0, until_version
        passes = PASSES if until_version is None else max(math.ceil(until_version / section.shards), 1)
        self._units = WorkUnits(
            shards=section.shards, passes=passes, first_s=section.first_lease_s, name=self._lease_name
        )

    @property
    def version(self) -> int:
        """Pushes that are in the parameters."""
        return self._store.version() or 0

    def _lease_name(self) -> str:
        self._made += 1
        return str(self._made)

    def client(self, peer: PeerId, access: Access) -> "Client":
        """For one trainer, over its link."""
        return Client(self, peer, access)

    # -- what clients ask for ----------------------------------------------------------------------------------------

    async def take(self, peer: PeerId, access: Access) -> Granted | NothingNow:
        """A unit, if there is one."""
        await self._ask(access)
        if self._until is not None and self.version >= self._until:
            return NothingNow(is_over=True, again_s=AGAIN_S)
        now_s = self._loop.time()
        lease = self._units.take(peer, now_s)
        if lease is None:
            return NothingNow(is_over=False, again_s=AGAIN_S)
        return Granted(
            unit=lease.unit, lease=lease.lease, seconds=lease.until_s - now_s, permit=b"", scheduler=peer, era=""
        )

    def extend(self, peer: PeerId, granted: Granted) -> float:
        """Seconds that the unit stays the client's; 0: it is somebody else's."""
        longer = self._units.extend(granted.lease, peer, self._loop.time())
        return longer.until_s - self._loop.time() if longer else 0.0

    def give_back(self, peer: PeerId, granted: Granted) -> None:
        """It is free at once."""
        self._units.give_back(granted.lease, peer)

    async def pull(self, access: Access, known: int | None) -> Stored | None:
        """The parameters, if they are others than that version."""
        servers = self._present()
        stored = self._store.read(known)
        if stored is not None:
            server = min(servers, key=lambda one: one.up_free_s)
            await asyncio.sleep(self._ways.carry_s(server, access, self._num_bytes) + self._way_s(access))
        return stored

    async def push(self, access: Access, granted: Granted, values: Vector, based_on: int) -> Assimilated:
        """What has become of a unit is in the parameters, if it counts."""
        server = min(self._present(), key=lambda one: one.down_free_s)
        await asyncio.sleep(self._ways.carry_s(access, server, self._num_bytes))
        unit = granted.unit
        push = Push(
            unit=unit, lease=granted.lease, values=values, based_on=based_on,
            alpha=alpha_of(self._section, unit.pass_number), max_staleness=self._section.max_staleness,
        )  # fmt: skip
        answer = self._store.assimilate(push)
        if answer.verdict is Verdict.TAKEN:
            self._units.note_done(unit, self._loop.time())
        await asyncio.sleep(self._way_s(access))
        return answer

    async def _ask(self, access: Access) -> None:
        """The ways of a unit that are neither those of its parameters nor of the answer to its push."""
        self._present()
        await asyncio.sleep((UNIT_TRIPS - 4) * self._way_s(access))

    def _way_s(self, access: Access) -> float:
        return access.link.latency_s + min(server.link.latency_s for server in self._present())

    def _present(self) -> Sequence[Access]:
        if not self._here:
            raise PeerUnreachable("no parameter server is there")
        return tuple(self._here.values())


class Client:
    """Implements what ``UnitDesk`` asks of a ``UnitClient``."""

    def __init__(self, servers: Servers, peer: PeerId, access: Access) -> None:
        self._servers, self._peer, self._access = servers, peer, access

    def era(self) -> str:
        """Nobody rolls back."""
        return ""

    async def take(self) -> Granted | NothingNow:
        return await self._servers.take(self._peer, self._access)

    async def extend(self, granted: Granted) -> float:
        return self._servers.extend(self._peer, granted)

    async def give_back(self, granted: Granted) -> None:
        self._servers.give_back(self._peer, granted)

    async def pull(self, known: int | None, era: str) -> Stored | None:
        return await self._servers.pull(self._access, known)

    async def push(self, granted: Granted, values: Vector, based_on: int) -> Assimilated:
        return await self._servers.push(self._access, granted, values, based_on)


class UnitSamples:
    """Implements ``Samples``: of one unit after the other."""

    def __init__(
        self, desk: UnitDesk, replica: UnitReplica, section: config.VcAsgd, *, num_samples: int, seed: int
    ) -> None:
        self._desk, self._replica, self._section = desk, replica, section
        self._num_samples, self._seed = num_samples, seed
        self._left: tuple[int, ...] = ()
        self.is_over = False

    async def next(self, microbatch_size: int) -> tuple[int, ...]:
        if not self._left:
            if self._desk.is_over and self._replica.samples:
                return ()
            work = await self._desk.next()
            if work is None:
                self.is_over = True
                return ()
            self._left = self._samples(work.granted.unit)
            self._replica.restart(work.stored, len(self._left))
        ids, self._left = self._left[:microbatch_size], self._left[microbatch_size:]
        return ids

    def _samples(self, unit: Unit) -> tuple[int, ...]:
        return sample_ids_of(unit, shards=self._section.shards, num_samples=self._num_samples, seed=self._seed)
