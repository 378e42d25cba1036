"""Where the parameters of a run are kept, from what an organiser typed."""

from functools import partial
from pathlib import Path

from collab import config
from collab.errors import ConfigError
from collab.swarm.bundle import Bundle
from collab.swarm.parameter_store.base import ParameterStore
from collab.swarm.parameter_store.eras import EraStores

REDIS = ("redis://", "rediss://", "unix://")
WHERE = "a file on this machine's disk, or a Redis server: redis://host:6379/0"


def open_stores(bundle: Bundle, where: str) -> EraStores | None:
    """The stores at an address of Redis, or in files of this machine; None for nowhere.

    That of the run's beginning is there, or is made; each rollback begins another one beside it.

    Raises:
        ConfigError: it is neither, or the run has no use for one.
        StateError: the store does not answer.
    """
    if not where:
        return None
    section = bundle.run.strategy
    if not isinstance(section, config.VcAsgd):
        raise ConfigError(f"--store is for vc_asgd; this run has {section.name}", hint="leave it out")
    if not where.startswith(REDIS) and ("://" in where or not Path(where).parent.is_dir()):
        raise ConfigError(f"--store {where}: there is no such place", hint=WHERE)
    stores = EraStores(partial(_open, bundle.fingerprint, where, is_strong=section.consistency == "strong"))
    stores.of("")
    return stores


def _open(fingerprint: str, where: str, era: str, *, is_strong: bool) -> ParameterStore:
    """The store of one era: named in Redis, and in the name of the file, for the rollback that it began with."""
    if where.startswith(REDIS):
        from collab.swarm.parameter_store.redis import RedisStore

        return RedisStore(where, f"{fingerprint}:{era}" if era else fingerprint, is_strong=is_strong)
    from collab.swarm.parameter_store.sqlite import SqliteStore

    path = Path(where)
    return SqliteStore(path.with_name(f"{path.stem}-{era}{path.suffix}") if era else path, is_strong=is_strong)
