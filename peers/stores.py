"""Where the parameters of a run are kept, from what an organiser typed."""

from pathlib import Path

from collab import config
from collab.errors import ConfigError
from collab.swarm.bundle import Bundle
from collab.swarm.parameter_store.base import ParameterStore

REDIS = ("redis://", "rediss://", "unix://")
WHERE = "a file on this machine's disk, or a Redis server: redis://host:6379/0"


def open_store(bundle: Bundle, where: str) -> ParameterStore | None:
    """The store at an address of Redis, or in a file of this machine; None for nowhere.

    Raises:
        ConfigError: it is neither, or the run has no use for one.
        StateError: the store does not answer.
    """
    if not where:
        return None
    section = bundle.run.strategy
    if not isinstance(section, config.VcAsgd):
        raise ConfigError(f"--store is for vc_asgd; this run has {section.name}", hint="leave it out")
    is_strong = section.consistency == "strong"
    if where.startswith(REDIS):
        from collab.swarm.parameter_store.redis import RedisStore

        return RedisStore(where, bundle.fingerprint, is_strong=is_strong)
    if "://" in where or not Path(where).parent.is_dir():
        raise ConfigError(f"--store {where}: there is no such place", hint=WHERE)
    from collab.swarm.parameter_store.sqlite import SqliteStore

    return SqliteStore(Path(where), is_strong=is_strong)
