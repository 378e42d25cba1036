"""The tracking services that there are."""

import logging
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any

from collab.metrics.names import EPOCH
from collab.metrics.retried import Retried, Route
from collab.metrics.tracking import PROJECT, Service, Tracked
from collab.metrics.wandb_run import Wandb, has_key

logger = logging.getLogger(__name__)


class Trackio:
    """Trackio, on this machine."""

    name = "trackio"

    def route(self, tracked: Tracked) -> Route:
        """See ``Library``."""
        import trackio

        return Route(
            service=TrackioRun(trackio, tracked),
            unopened="cannot begin",
            stand_in=None,
            hint="the backbone's own record has them in any case",
        )


class TrackioRun:
    """Implements ``Destination``. What trackio prints is kept from standard output, which is for results."""

    where = f"trackio show --project {PROJECT}"

    def __init__(self, library: Any, tracked: Tracked) -> None:
        self._library, self._tracked = library, tracked

    def open(self) -> None:
        """See ``Destination``."""
        name, config = f"{self._tracked.name}-{self._tracked.identity}", dict(self._tracked.config)
        with redirect_stdout(sys.stderr):
            self._library.init(project=PROJECT, name=name, config=config, resume="allow")

    def take(self, figures: Mapping[str, float]) -> None:
        """See ``Destination``."""
        self._library.log(dict(figures), step=int(figures[EPOCH.name]))

    def close(self) -> None:
        """See ``Destination``."""
        with redirect_stdout(sys.stderr):
            self._library.finish()

    def drop(self) -> None:
        """See ``Destination``."""
        try:
            self.close()
        except Exception as error:  # noqa: BLE001 - it may not even have begun
            logger.debug("trackio does not end in order reason=%s", type(error).__name__)


def service_for(word: str) -> Service | None:
    """What ``--track`` names; ``auto``: wandb where it has a key.

    Raises:
        ValueError: it names nothing.
    """
    match word:
        case "none":
            return None
        case "auto":
            return Retried(Wandb()) if has_key() else None
        case "wandb":
            return Retried(Wandb())
        case "trackio":
            return Retried(Trackio())
    raise ValueError(f"expected auto, wandb, trackio or none, got {word!r}")
