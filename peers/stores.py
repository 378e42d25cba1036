"""Where the parameters of a run are kept, from what an organiser typed."""

import logging
from contextlib import closing
from functools import partial
from pathlib import Path

from collab import config
from collab.errors import ConfigError, CorruptState, StateError
from collab.swarm.bundle import Bundle
from collab.swarm.parameter_store.base import ParameterStore
from collab.swarm.parameter_store.eras import EraStores

logger = logging.getLogger(__name__)

REDIS = ("redis://", "rediss://", "unix://")
WHERE = "a file on this machine's disk, or a Redis server: redis://host:6379/0"


def open_stores(bundle: Bundle, where: str, own: Path | None = None) -> EraStores | None:
    """The stores at an address of Redis, or in files of this machine; None for nowhere.

    That of the run's beginning is there, or is made; each rollback begins another one beside that of before it.

    Args:
        own: file of the backbone's own: it is put aside when it is damaged, since the run goes on from a checkpoint
            then. A file that somebody has named is not touched.

    Raises:
        ConfigError: it is neither, or the run has no use for one.
        StateError: the store does not answer, or is damaged.
    """
    if not where:
        return None
    section = bundle.run.strategy
    if not isinstance(section, config.VcAsgd):
        raise ConfigError(f"--store is for vc_asgd; this run has {section.name}", hint="leave it out")
    if not where.startswith(REDIS) and ("://" in where or not Path(where).parent.is_dir()):
        raise ConfigError(f"--store {where}: there is no such place", hint=WHERE)
    is_own, is_strong = own is not None and Path(where) == own, section.consistency == "strong"
    stores = EraStores(
        partial(_open, bundle.fingerprint, where, is_own=is_own, is_strong=is_strong),
        partial(_erase, bundle.fingerprint, where),
    )
    stores.of("")
    return stores


def _open(fingerprint: str, where: str, era: str, *, is_own: bool, is_strong: bool) -> ParameterStore:
    """The store of one era: named in Redis, and in the name of the file, for the rollback that it began with."""
    if where.startswith(REDIS):
        from collab.swarm.parameter_store.redis import RedisStore

        return RedisStore(where, _run_of(fingerprint, era), is_strong=is_strong)
    from collab.swarm.parameter_store.sqlite import SqliteStore

    path = _path_of(where, era)
    try:
        return SqliteStore(path, is_strong=is_strong)
    except CorruptState as error:
        if not is_own:
            raise
        _put_aside(path, error)
    return SqliteStore(path, is_strong=is_strong)


def _erase(fingerprint: str, where: str, era: str) -> None:
    if where.startswith(REDIS):
        from collab.swarm.parameter_store.redis import RedisStore

        with closing(RedisStore(where, _run_of(fingerprint, era))) as store:
            store.erase()
        return
    path = _path_of(where, era)
    try:
        for ending in ("-wal", "-shm", ""):
            path.with_name(path.name + ending).unlink(missing_ok=True)
    except OSError as error:
        raise StateError(f"cannot remove {path}: {error.strerror}", hint="it is of no use any more") from error


def _run_of(fingerprint: str, era: str) -> str:
    return f"{fingerprint}:{era}" if era else fingerprint


def _path_of(where: str, era: str) -> Path:
    path = Path(where)
    return path.with_name(f"{path.stem}-{era}{path.suffix}") if era else path


def _put_aside(path: Path, damage: CorruptState) -> None:
    """Its journal goes first: beside a new store it would be taken for that one's."""
    aside = path.with_suffix(".unreadable.sqlite")
    try:
        for ending in ("-wal", "-shm", ""):
            target = aside.with_name(aside.name + ending)
            target.unlink(missing_ok=True)
            if (part := path.with_name(path.name + ending)).exists():
                part.rename(target)
    except OSError as error:
        raise StateError(f"{damage.message}; it cannot be put aside: {error.strerror}", hint=damage.hint) from error
    logger.warning("%s; it lies in %s, and the run goes on from its newest checkpoint", damage.message, aside)
