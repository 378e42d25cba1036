"""What came from the Hub with a checkpoint: curves and thanks of the run so far, kept for the cards that we publish."""

import logging
from pathlib import Path

from collab.checkpoints.hub_repository import BRANCH, HubRepository, There
from collab.durable import replace_file
from collab.errors import StateError
from peers.hub_history import History, named_as_in
from peers.hub_history_file import fetched, read_history, written
from peers.process import announce

logger = logging.getLogger(__name__)


def keep_history(repository: HubRepository, path: Path) -> None:
    """Have what the repository tells of the run at ``path``, if it tells anything. Blocks.

    Of an earlier revision nobody is named who has taken that back since. What cannot be had, or kept, is only lost to
    the card, and a person is told.
    """
    try:
        history, wrong = fetched(There(repository, repository.head()))
        if not wrong and repository.place.revision != BRANCH:
            newest, wrong = fetched(There(repository, repository.head(BRANCH)))
            history = named_as_in(newest, history)
        if not wrong and history != History():
            replace_file(path, written(history))
    except StateError as error:
        wrong = f"the curves and contributors that {repository.place} tells of are not taken over: {error.message}"
    except OSError as error:
        wrong = f"the curves and contributors that {repository.place} tells of cannot be kept: {error}"
    if wrong:
        announce(f"problem: {wrong}\n  -> the model's page begins them anew, unless this repository is published in")


def kept_history(path: Path) -> History:
    """What ``keep_history`` has kept; empty: nothing. Blocks."""
    try:
        return read_history(path.read_bytes())
    except FileNotFoundError:
        return History()
    except (OSError, ValueError) as error:
        logger.warning("curves and contributors from the Hub cannot be read path=%s: %s", path, error)
        return History()
