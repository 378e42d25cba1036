"""Checkpoints that are of no use to the run any more: they are put away for a person, and nothing is deleted."""

import logging
import shutil
from collections.abc import Iterable
from pathlib import Path

logger = logging.getLogger(__name__)

SET_ASIDE = "set-aside"
"""Folder for checkpoints of a history that the swarm has left."""
DAMAGED = "damaged"
"""Folder for those that cannot be read: under their names they would count among the newest ones."""


def put_aside(paths: Iterable[Path], folder: str) -> None:
    """Move checkpoints to a folder beside them; one of the same name that lies there is replaced. What cannot be moved
    stays, and is named in the log.
    """
    for path in filter(Path.exists, paths):
        place = path.parent / folder / path.name
        try:
            shutil.rmtree(place, ignore_errors=True)
            place.parent.mkdir(exist_ok=True)
            path.rename(place)
        except OSError:
            logger.exception("a checkpoint could not be put aside in %s/, and is in the way path=%s", folder, path)
