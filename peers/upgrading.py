"""Which version of the program a data directory belongs to, and how one of an earlier version is brought up to date.

A step only adds: it writes what the new version reads, each file beside its place and then renamed. Then the mark is
written, and only after that what the old version read is removed. So a kill at any moment leaves a directory of the old
version or one of the new version, whole; the next start does again what was not done.
"""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from collab.durable import replace_file
from collab.errors import ConfigError
from collab.version import VERSION
from peers.credit_file import take_over
from peers.disk_remedy import remedy

logger = logging.getLogger(__name__)

MARK = "version.json"
FIRST_FILES = ("identity.key", "metrics.jsonl", "checkpoints", "state", "run", "traffic.json")
"""Of which each process makes one before it does anything else: they tell a directory without a mark from a new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """From one format to the next."""

    add: Callable[[Path], None]
    """Writes what the new format has; raises ``OSError``. It may have been done before, in part or as a whole."""
    obsolete: tuple[str, ...]
    """Files of the old format that are not read any more, from the directory on."""


def _apart_from_checkpoints(path: Path) -> None:
    """What a backbone knows beside its checkpoints lies beside their folder, where a backup without them has it."""
    for name in ("last-seen.json", "coverage.json"):
        try:
            data = (path / "checkpoints" / name).read_bytes()
        except FileNotFoundError:
            continue
        replace_file(path / name, data)


def _with_settled_passes(_: Path) -> None:
    """``parameters.sqlite`` is read as it is; the version before would count again what is settled from now on."""


def _with_credits_in_a_table(path: Path) -> None:
    take_over(path / "credits.json", path / "credits.sqlite")


STEPS: Sequence[Step] = (
    Step(add=_apart_from_checkpoints, obsolete=("checkpoints/last-seen.json", "checkpoints/coverage.json")),
    Step(add=_with_settled_passes, obsolete=()),
    Step(add=_with_credits_in_a_table, obsolete=("credits.json",)),
)
"""In order; the format is how many of them a directory has behind it."""


def bring_up_to_date(path: Path, steps: Sequence[Step] = STEPS, *, elsewhere: str = "") -> None:
    """Make a data directory one of this version. Only who has it to itself may do this. Blocks.

    Args:
        elsewhere: what can be done instead of mending the directory; empty: nothing.

    Raises:
        ConfigError: it is of a later version, or cannot be read or written.
    """
    try:
        found = _format_of(path, len(steps), elsewhere)
        for number in range(found, len(steps)):
            steps[number].add(path)
            _mark(path, number + 1)
            logger.info("data directory brought up to date path=%s format=%d", path, number + 1)
        if not (path / MARK).exists():
            _mark(path, len(steps))
        for name in (name for step in steps for name in step.obsolete):
            (path / name).unlink(missing_ok=True)
    except OSError as error:
        text = f"{path} cannot be brought up to date: {error.strerror or error}"
        hint = "; or ".join(filter(None, (f"{remedy(path, error)}; nothing in it is lost", elsewhere)))
        raise ConfigError(text, hint=hint) from error


def _format_of(path: Path, newest: int, elsewhere: str) -> int:
    """
    Raises:
        ConfigError: it is later than ``newest``, or the mark is none.
    """
    try:
        told = json.loads((path / MARK).read_bytes())
        found, program = told["format"], str(told["program"])
        if type(found) is not int or found < 0:
            raise ValueError(f"format {found!r}")
    except FileNotFoundError:
        return 0 if any((path / name).exists() for name in FIRST_FILES) else newest
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path / MARK} cannot be read: {error}", hint="restore it from a backup") from error
    if found > newest:
        upgrade = f"this machine must upgrade: the organiser has the line that installs collab {program[:40]} or later"
        raise ConfigError(
            f"{path} was written by collab {program[:40]}, in format {found}; "
            f"this is collab {VERSION}, which knows format {newest}",
            hint="; or ".join(filter(None, (upgrade, elsewhere))),
        )
    return found


def _mark(path: Path, number: int) -> None:
    replace_file(path / MARK, json.dumps({"format": number, "program": VERSION}).encode() + b"\n")
