"""The tracking services that there are."""

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any

from collab.metrics.names import EPOCH
from collab.metrics.tracking import PROJECT, Say, Service, Tracked
from collab.metrics.wandb_run import Wandb, has_key


class Trackio:
    """Trackio, on this machine."""

    name = "trackio"

    def __init__(self) -> None:
        self._library: Any = None

    def begin(self, tracked: Tracked, say: Say) -> None:
        import trackio

        self._library = trackio
        name = f"{tracked.name}-{tracked.identity}"
        with redirect_stdout(sys.stderr):  # it prints, and standard output is for results
            trackio.init(project=PROJECT, name=name, config=dict(tracked.config), resume="allow")
        say(f"trackio has the figures: trackio show --project {PROJECT}")

    def log(self, figures: Mapping[str, float]) -> None:
        self._library.log(dict(figures), step=int(figures[EPOCH.name]))

    def end(self) -> None:
        with redirect_stdout(sys.stderr):
            self._library.finish()


def service_for(word: str) -> Service | None:
    """What ``--track`` names; ``auto``: wandb where it has a key.

    Raises:
        ValueError: it names nothing.
    """
    match word:
        case "none":
            return None
        case "auto":
            return Wandb() if has_key() else None
        case "wandb":
            return Wandb()
        case "trackio":
            return Trackio()
    raise ValueError(f"expected auto, wandb, trackio or none, got {word!r}")
