"""Backbones that compete for the publishing lease, in virtual time, over a directory that loses and delays.

What they publish goes to a place that all of them reach, in a partition, too, as a repository on the internet would be.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeVar

from collab.concurrency import run_until_first
from collab.errors import TimedOut
from collab.net.base import Directory, Entry
from collab.ports import Ports
from collab.simulation.churn import Churn
from collab.simulation.world import World
from collab.swarm.backbone_records import BackboneRecord
from collab.swarm.lease import NOBODY, Claim, Tenure
from collab.swarm.lease_keeper import LeaseKeeper
from collab.types import PeerId

T = TypeVar("T")

FINGERPRINT = "f" * 64
WRITING_S = 0.0, 6.0
"""Shortest and longest time between a look at the lease and what is published then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """What a directory does to each question."""

    lost: float = 0.0
    """Probability that a question, or else its answer, never arrives."""
    longest_s: float = 0.0
    """Each way. What arrives when nobody waits for an answer any more has its effect all the same."""


class BadDirectory:
    """Implements ``Directory``: one that loses and delays."""

    def __init__(self, inner: Directory, rng: random.Random, weather: Callable[[], Weather]) -> None:
        self._inner, self._rng, self._weather = inner, rng, weather
        self._under_way: set[asyncio.Task[object]] = set()

    async def store(self, key: str, subkey: str, value: bytes, *, expires_at: float, timeout_s: float) -> bool:
        """See ``Directory``."""
        return await self._ask(
            lambda: self._inner.store(key, subkey, value, expires_at=expires_at, timeout_s=timeout_s), timeout_s
        )

    async def get(self, key: str, *, timeout_s: float, fresh_until: float | None = None) -> Mapping[str, Entry]:
        """See ``Directory``."""
        return await self._ask(lambda: self._inner.get(key, timeout_s=timeout_s), timeout_s)

    async def _ask(self, question: Callable[[], Awaitable[T]], timeout_s: float) -> T:
        weather = self._weather()
        there_s, back_s = (self._rng.uniform(0, weather.longest_s) for _ in range(2))
        is_lost_there, is_lost_back = (self._rng.random() < weather.lost for _ in range(2))

        async def travel() -> T:
            await asyncio.sleep(there_s)
            if is_lost_there:
                await asyncio.sleep(timeout_s)
            answer = await question()
            await asyncio.sleep(timeout_s if is_lost_back else back_s)
            return answer

        task = asyncio.create_task(travel())
        if not is_lost_there:
            self._under_way.add(task)  # it goes on when nobody waits any more
            task.add_done_callback(self._under_way.discard)
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(task)
        except TimeoutError:
            if is_lost_there:
                task.cancel()
            raise TimedOut("no answer in time") from None


@dataclass(frozen=True, slots=True)
class Publishing:
    """One attempt to publish, as the place sees it."""

    at_s: float
    tenure: Tenure
    life: int
    is_accepted: bool
    others: tuple[Tenure, ...]
    """Under which other living backbones could have published at that very moment."""


@dataclass(slots=True)
class Place:
    """Where all publish, with its fence."""

    highest: Tenure = NOBODY
    log: list[Publishing] = field(default_factory=list)


class Candidate:
    """One life of one backbone, with the disk of all its lives."""

    def __init__(self, lab: "LeaseLab", index: int, ports: Ports) -> None:
        self._lab, self._index, self._ports = lab, index, ports
        self._since = ports.clock.now()
        self.life = lab.world.peers[index].lives
        self.is_able = True
        directory = BadDirectory(ports.directory, ports.rng, lambda: lab.weather)
        identity = lab.world.peers[index].identity
        self.keeper = LeaseKeeper(replace(ports, directory=directory), identity, FINGERPRINT, self, lab.vouched)

    def backbone_record(self, term: int, seen: Tenure) -> BackboneRecord:
        """See ``Speaker``."""
        claim = Claim(
            peer=self._ports.transport.peer_id,
            said_at=self._ports.clock.now(),
            term=term,
            seen_term=seen.term,
            seen_holder=seen.holder,
            is_able=self.is_able,
            epoch=0,
            since=self._since,
        )
        return BackboneRecord(fingerprint=FINGERPRINT, claim=claim)

    async def remember(self, seen: Tenure) -> bool:
        """See ``Speaker``."""
        self._lab.disks[self._index] = seen
        return True

    async def live(self) -> None:
        """Compete, and publish whenever possible."""
        self.keeper.begin(self._lab.disks.get(self._index, NOBODY))
        await run_until_first(self.keeper.run(), self._publish())

    async def _publish(self) -> None:
        while True:
            await asyncio.sleep(self._ports.rng.uniform(0.1, 1.0))
            tenure = self.keeper.tenure()
            if tenure is None:
                continue
            await asyncio.sleep(self._ports.rng.uniform(*WRITING_S))
            if self.keeper.tenure() == tenure:  # asked in the last moment, as ``Order.may_finish`` is
                self._lab.published(self._index, tenure, self.life)


async def _bystander(_: Ports) -> None:
    """A world in which all are dead would be over."""
    await asyncio.Event().wait()


class LeaseLab:
    """A world of backbones that do nothing but publish."""

    def __init__(self, seed: int, number: int, *, weather: Weather | None = None, clock_error_s: float = 0.0) -> None:
        """
        Args:
            clock_error_s: each clock is off by a random time up to this, either way.
        """
        self.world = World(seed)
        self.churn = Churn(self.world)
        self.rng = random.Random(f"lease {seed}")
        self.weather = weather or Weather()
        self.candidates: dict[int, Candidate] = {}
        self.disks: dict[int, Tenure] = {}
        self.place = Place()
        self.strangers: set[PeerId] = set()
        """For whom nobody vouches."""
        self.number = number
        for index in range(number):
            error_s = self.rng.uniform(-clock_error_s, clock_error_s)
            self.world.add_peer(self._main(index), clock_error_s=error_s)
        self.world.add_peer(_bystander)

    def _main(self, index: int) -> Callable[[Ports], Awaitable[None]]:
        async def main(ports: Ports) -> None:
            self.candidates[index] = candidate = Candidate(self, index, ports)
            await candidate.live()

        return main

    def vouched(self, peer: PeerId) -> bool:
        """Whether a peer's word about the lease counts."""
        return peer not in self.strangers

    def published(self, index: int, tenure: Tenure, life: int) -> None:
        """Somebody publishes at this moment."""
        others = tuple(
            held
            for other, candidate in self.candidates.items()
            if other != index and self.world.peers[other].is_alive and not self._is_frozen(other)
            if (held := candidate.keeper.tenure()) is not None
        )
        is_accepted = tenure >= self.place.highest
        self.place.highest = max(self.place.highest, tenure)
        self.place.log.append(Publishing(self.world.time_s, tenure, life, is_accepted, others))

    def _is_frozen(self, index: int) -> bool:
        return self.world.peers[index].transport.is_frozen

    def run(self, seconds: float) -> None:
        """So much virtual time from now on."""
        self.world.run(until_s=self.world.time_s + seconds)

    def holders(self) -> list[Tenure]:
        """Of all who could publish now."""
        held = [
            candidate.keeper.tenure()
            for index, candidate in self.candidates.items()
            if self.world.peers[index].is_alive and not self._is_frozen(index)
        ]
        return [tenure for tenure in held if tenure is not None]

    # -- what must hold ----------------------------------------------------------------------------------------------

    def faults(self, *, is_partitioned: bool = False) -> list[str]:
        """What went wrong.

        Args:
            is_partitioned: whether there was a time in which some could not hear of others' claims.
        """
        found = []
        lives: dict[Tenure, tuple[int, int]] = {}
        accepted = [one for one in self.place.log if one.is_accepted]
        for one in self.place.log:
            who = (self._index_of(one.tenure), one.life)
            if lives.setdefault(one.tenure, who) != who:
                found.append(f"{one.tenure} was used by lives {lives[one.tenure]} and {who}")
        for earlier, later in pairwise(accepted):
            if later.tenure < earlier.tenure:
                found.append(f"at {later.at_s:.1f} s {later.tenure} came after {earlier.tenure}")
        if is_partitioned:
            return found
        log = self.place.log
        found += [f"at {one.at_s:.1f} s {one.tenure} published beside {one.others}" for one in log if one.others]
        found += [f"at {one.at_s:.1f} s {one.tenure} came too late" for one in log if not one.is_accepted]
        return found

    def _index_of(self, tenure: Tenure) -> int:
        return next(peer.index for peer in self.world.peers if peer.peer_id == tenure.holder)
