"""Where the parameters of a run are kept, from what an organiser typed."""

from pathlib import Path

from collab import config
from collab.errors import ConfigError
from collab.swarm.bundle import Bundle
from collab.swarm.parameter_store.base import ParameterStore

REDIS = ("redis://", "rediss://", "unix://")


def open_store(bundle: Bundle, where: str | Path) -> ParameterStore | None:
    """The store at an address of Redis, or in a file of this machine; None: the run has no parameter servers.

    Raises:
        ConfigError: it is no address, or the run has no use for one.
        StateError: the store does not answer.
    """
    section = bundle.run.strategy
    if not isinstance(section, config.VcAsgd):
        if isinstance(where, str):
            raise ConfigError(f"--store is for vc_asgd; this run has {section.name}", hint="leave it out")
        return None
    is_strong = section.consistency == "strong"
    if isinstance(where, Path):
        from collab.swarm.parameter_store.sqlite import SqliteStore

        return SqliteStore(where, is_strong=is_strong)
    if not where.startswith(REDIS):
        raise ConfigError(f"--store {where}: no address of a Redis server", hint="redis://host:6379/0")
    from collab.swarm.parameter_store.redis import RedisStore

    return RedisStore(where, bundle.fingerprint, is_strong=is_strong)
