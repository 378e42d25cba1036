"""Code that is not of this package: it lies on each machine already, and each machine's owner has allowed it.

A run file names a module, the SHA-256 of its one file, and a class. Nothing of it travels with the run. The very bytes
that were checked are what is executed.
"""

import hashlib
import importlib.util
import sys
from collections.abc import Collection
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from collab.errors import ConfigError

SOURCE = ".py"


def load_class(module: str, sha256: str, class_name: str, allowed: Collection[str]) -> type:
    """The class that a run file names, from this machine's own copy of the module.

    Args:
        module: as it would be imported.
        sha256: of its file, 64 hex digits.
        allowed: modules that the owner of this machine has allowed by name.

    Raises:
        ConfigError: it is not allowed, not installed as one file, another file than the run's, or has no such class.
    """
    if module not in allowed:
        raise ConfigError(
            f"this run uses the module {module!r}, which is not part of collab and not allowed on this machine",
            hint=f"read it, install it, and if you trust it: collab-peer join INVITE --allow {module}",
        )
    spec, path = _found(module)
    try:
        source = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", hint="check the file and its permissions") from error
    found = hashlib.sha256(source).hexdigest()
    if found != sha256:
        raise ConfigError(
            f"{path} has the SHA-256 {found}, the run uses {sha256}",
            hint="install the version of the module that the organiser names; both have to be the same file",
        )
    made = _run(spec, path, source).__dict__.get(class_name)
    if not isinstance(made, type):
        raise ConfigError(f"{path} has no class {class_name!r}", hint="ask the organiser which class is meant")
    return made


def _found(module: str) -> tuple[ModuleSpec, Path]:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"the module {module!r} cannot be found here: {error}", hint="install it, or put it on PYTHONPATH"
        ) from error
    if spec is None or spec.origin is None or not spec.origin.endswith(SOURCE):
        raise ConfigError(
            f"the module {module!r} is not installed here as one Python file",
            hint="install it, or put it on PYTHONPATH",
        )
    return spec, Path(spec.origin)


def _run(spec: ModuleSpec, path: Path, source: bytes) -> ModuleType:
    """Execute a module once for each content; it is importable under its name from then on."""
    name, digest = spec.name, hashlib.sha256(source).hexdigest()
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__sha256__", None) == digest:
        return known
    made = ModuleType(name)
    made.__file__, made.__spec__ = str(path), spec
    made.__dict__["__sha256__"] = digest
    sys.modules[name] = made  # as an import would: dataclasses and type hints look themselves up here
    try:
        exec(compile(source, str(path), "exec"), made.__dict__)  # noqa: S102 - the machine's owner has allowed it
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"{path} cannot be executed: {error!r}", hint="ask whoever wrote it") from error
    return made
