"""Which samples a unit of work is."""

import hashlib
import random
from functools import lru_cache

from collab.data.work_units import Unit
from collab.errors import DataError


def sample_ids_of(unit: Unit, *, shards: int, num_samples: int, seed: int) -> tuple[int, ...]:
    """Samples of a unit, the same on every machine: a shard is the same samples in every pass, so that they need be
    fetched once, in another order each time.

    Raises:
        DataError: there are fewer samples than shards.
    """
    check_can_be_cut(num_samples, shards)
    start, stop = unit.shard * num_samples // shards, (unit.shard + 1) * num_samples // shards
    chosen = list(_shuffled(num_samples, seed)[start:stop])
    random.Random(_seeded(seed, unit.pass_number, unit.shard)).shuffle(chosen)
    return tuple(chosen)


def check_can_be_cut(num_samples: int, shards: int) -> None:
    """Each unit has a sample at least.

    Raises:
        DataError: there are fewer samples than shards.
    """
    if num_samples < shards:
        hint = f"more data are needed, or strategy.shards of {max(num_samples, 1)} at most in the organiser's run file"
        raise DataError(f"{num_samples} samples cannot be cut into {shards} units of work", hint=hint)


@lru_cache(maxsize=2)  # a quarter of a second for half a million samples, and asked for with each unit
def _shuffled(num_samples: int, seed: int) -> tuple[int, ...]:
    everything = list(range(num_samples))
    random.Random(_seeded(seed)).shuffle(everything)
    return tuple(everything)


def _seeded(*numbers: int) -> int:
    return int.from_bytes(hashlib.sha256(repr(("collab/units/1", *numbers)).encode()).digest()[:8], "big")
