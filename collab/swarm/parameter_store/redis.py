"""A parameter store in Redis: for servers on several machines."""

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from collab.data.work_units import Unit
from collab.errors import ConfigError, StateError
from collab.swarm.parameter_store.base import Assimilated, Kept, Out, Push, Stored, Verdict, mixed
from collab.types import PeerId

logger = logging.getLogger(__name__)

ANSWER_S = 60.0
"""For one command, which carries one vector; a server that is silent for longer is gone."""
SCANNED = 1000
"""Keys that one command looks through: the server may keep those of others, too."""
NO_MATTER = -1
"""Of a version or a staleness that does not matter."""
TAKE = """
local version = tonumber(redis.call('GET', KEYS[1]) or -1)
if version < 0 then return {'empty', 0} end
local lease, mixed_with = redis.call('HGET', KEYS[3], ARGV[1]), tonumber(ARGV[3])
if lease then return {lease == ARGV[2] and 'again' or 'done', version} end
if tonumber(ARGV[7]) < tonumber(redis.call('GET', KEYS[4]) or 1) then return {'done', version} end
local staleness, most = version - tonumber(ARGV[4]), tonumber(ARGV[5])
if most >= 0 and staleness > most then return {'stale', version} end
if mixed_with >= 0 and mixed_with ~= version then return {'moved', version} end
redis.call('MSET', KEYS[1], version + 1, KEYS[2], ARGV[6])
redis.call('HSET', KEYS[3], ARGV[1], ARGV[2])
redis.call('HDEL', KEYS[5], ARGV[7] .. ':' .. ARGV[1])
return {'taken', version + 1}
"""
"""The one transaction: keys of version, vector, the pass's units, the first pass that is not settled and what is out;
shard, lease, version mixed with, version that the client began with, most staleness, vector, pass."""


class RedisStore:
    """Implements ``ParameterStore``.

    The server mixes, and one script of Redis writes vector, version and unit together. *Strong*: only if the version is
    still the one that was mixed with; else it is read and mixed anew, which ends since each time another push was
    taken. *Eventual*: whatever another server has written meanwhile is overwritten, so that nobody mixes twice: that
    push is counted and not in the parameters.

    What survives the death of the Redis server is what Redis keeps: set ``appendonly yes`` there.
    """

    def __init__(self, url: str, run: str, *, is_strong: bool = True) -> None:
        """
        Args:
            url: ``redis://host:port/0``, ``rediss://`` or ``unix://path``; with the password in it, if there is one.
            run: whose parameters; a server may keep those of many.

        Raises:
            ConfigError: the package redis is not installed, or the address is none.
            StateError: nobody answers there.
        """
        try:
            import redis
        except ImportError as error:
            hint = f"{sys.executable} -m pip install redis"
            raise ConfigError("a store in Redis needs the package redis", hint=hint) from error
        self._error, self._moved, self._is_strong = redis.RedisError, redis.WatchError, is_strong
        try:
            self._redis: Any = redis.Redis.from_url(url, socket_timeout=ANSWER_S, socket_connect_timeout=ANSWER_S)
        except ValueError as error:
            raise ConfigError(f"no address of a Redis server: {error}", hint="redis://host:6379/0") from error
        tag = f"collab:{{{run}}}"
        self._version, self._vector, self._units = f"{tag}:version", f"{tag}:vector", f"{tag}:units"
        self._first_open, self._out = f"{tag}:first_open", f"{tag}:out"
        self._take = self._redis.register_script(TAKE)
        with self._named():
            try:
                keeps = self._redis.config_get("appendonly").get("appendonly")
            except redis.ResponseError as error:  # it answers, but not this: so do services that run it for others
                text = "this Redis server does not say whether it forgets everything when it dies (%s); it must not"
                logger.warning(text, error)
                return
        if keeps != "yes":
            logger.warning("this Redis server forgets everything when it dies; set 'appendonly yes' there")

    def begin(self, first: Kept) -> bool:
        with self._named(), self._redis.pipeline() as transaction:
            transaction.watch(self._version)
            if transaction.exists(self._version):
                return False
            transaction.multi()
            data = first.stored.values.astype("<f4", copy=False).tobytes()
            about = {self._version: first.stored.version, self._first_open: first.first_open}
            transaction.mset({**about, self._vector: data})
            for unit, lease in first.done.items():
                transaction.hset(f"{self._units}:{unit.pass_number}", unit.shard, lease)
            try:
                transaction.execute()
            except self._moved:
                return False
            return True

    def read(self, known: int | None = None) -> Stored | None:
        if known is not None and self.version() in (None, known):
            return None
        with self._named():
            version, data = self._redis.mget(self._version, self._vector)
            return None if version is None else Stored(int(version), np.frombuffer(data, "<f4"))

    def version(self) -> int | None:
        with self._named():
            version = self._redis.get(self._version)
            return None if version is None else int(version)

    def assimilate(self, push: Push) -> Assimilated:
        while True:
            stored = self.read()
            if stored is None:
                raise StateError("the parameter store is empty", hint="begin with the run's first state")
            word, version = self._write(push, stored)
            if word == "empty":
                raise StateError("the parameter store was emptied", hint="who else uses this Redis server?")
            if word != "moved":
                staleness = {"taken": version - 1 - push.based_on, "stale": version - push.based_on}.get(word, 0)
                return Assimilated(Verdict(word), version, staleness)

    def done(self, pass_number: int) -> dict[int, str] | None:
        with self._named(), self._redis.pipeline() as transaction:
            transaction.hgetall(f"{self._units}:{pass_number}").get(self._first_open)
            leases, first_open = transaction.execute()
            return None if pass_number < int(first_open or 1) else _leases(leases)

    def passes(self) -> range:
        with self._named():
            first_open = int(self._redis.get(self._first_open) or 1)
            return range(first_open, max(map(_pass_of, self._passed()), default=0) + 1)

    def note_out(self, out: Out) -> None:
        row = json.dumps([out.lease, out.client, out.began_at_s, out.until_at_s])
        with self._named():
            self._redis.hset(self._out, _name(out.unit), row)

    def note_back(self, unit: Unit) -> None:
        with self._named():
            self._redis.hdel(self._out, _name(unit))

    def out(self) -> list[Out]:
        with self._named():
            return [_out(name, row) for name, row in self._redis.hgetall(self._out).items()]

    def keep(self) -> Kept | None:
        before: range | None = None
        kept: Kept | None = None
        while (passes := self.passes()) != before:  # one may begin meanwhile
            before, kept = passes, self._kept(passes)
        return kept

    def settle(self, first_open: int) -> None:
        with self._named(), self._redis.pipeline() as transaction:
            transaction.watch(self._first_open)
            if first_open <= int(transaction.get(self._first_open) or 1):
                return
            late = [name for name in transaction.hkeys(self._out) if int(name.partition(b":")[0]) < first_open]
            settled = [key for key in self._passed() if _pass_of(key) < first_open]
            transaction.multi()
            transaction.set(self._first_open, first_open)
            if settled:
                transaction.delete(*settled)
            if late:
                transaction.hdel(self._out, *late)
            with suppress(self._moved):  # by another server, which knows as much
                transaction.execute()

    def erase(self) -> None:
        """Leave nothing of it."""
        with self._named():
            self._redis.delete(self._version, self._vector, self._first_open, self._out, *self._passed())

    def close(self) -> None:
        self._redis.close()

    def _write(self, push: Push, stored: Stored) -> tuple[str, int]:
        keys = [self._version, self._vector, f"{self._units}:{push.unit.pass_number}", self._first_open, self._out]
        most = NO_MATTER if push.max_staleness is None else push.max_staleness
        mixed_with = stored.version if self._is_strong else NO_MATTER
        data = mixed(stored.values, push).astype("<f4", copy=False).tobytes()
        with self._named():
            about: list[int | str] = [push.unit.shard, push.lease, mixed_with, push.based_on, most]
            word, version = self._take(keys=keys, args=[*about, data, push.unit.pass_number])
            return word.decode(), int(version)

    def _kept(self, passes: range) -> Kept | None:
        with self._named(), self._redis.pipeline() as transaction:
            transaction.mget(self._version, self._vector, self._first_open)
            for number in passes:
                transaction.hgetall(f"{self._units}:{number}")
            (version, data, first_open), *passed = transaction.execute()
        if version is None:
            return None
        rows = zip(passes, map(_leases, passed), strict=True)
        done = {Unit(number, shard): lease for number, leases in rows for shard, lease in leases.items()}
        return Kept(Stored(int(version), np.frombuffer(data, "<f4")), done, int(first_open or 1))

    def _passed(self) -> Iterator[bytes]:
        """Keys of the passes of which something is kept."""
        keys: Iterator[bytes] = self._redis.scan_iter(match=f"{self._units}:*", count=SCANNED)
        return keys

    @contextmanager
    def _named(self) -> Iterator[None]:
        """What Redis complains of as ``StateError``."""
        try:
            yield
        except self._error as error:
            hint = "does the server run, with room in its memory? the push may come again: it counts once"
            raise StateError(f"the parameter store in Redis: {error}", hint=hint) from error


def _pass_of(key: bytes) -> int:
    return int(key.rpartition(b":")[2])


def _name(unit: Unit) -> str:
    return f"{unit.pass_number}:{unit.shard}"


def _out(name: bytes, row: bytes) -> Out:
    number, shard = map(int, name.split(b":"))
    lease, client, began_at_s, until_at_s = json.loads(row)
    return Out(
        unit=Unit(number, shard), lease=lease, client=PeerId(client), began_at_s=began_at_s, until_at_s=until_at_s
    )


def _leases(rows: Mapping[bytes, bytes]) -> dict[int, str]:
    return {int(shard): lease.decode() for shard, lease in rows.items()}
