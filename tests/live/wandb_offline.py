"""wandb without its service: the library itself where it is installed, else as much of it as is used."""

import json
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any


class WandbStandIn(ModuleType):
    """Keeps runs on the disk as wandb does offline: a directory for each life, named after the run."""

    def __init__(self) -> None:
        super().__init__("wandb")

    def Settings(self, **settings: Any) -> dict[str, Any]:  # noqa: N802
        return settings

    def setup(self, settings: dict[str, Any]) -> None:
        assert settings["silent"]

    def init(self, **known: Any) -> SimpleNamespace:
        assert (known["mode"], known["resume"]) == ("offline", "allow")
        began = time.strftime("%Y%m%d_%H%M%S")
        folder = Path(known["dir"]) / "wandb" / f"offline-run-{began}-{known['id']}"
        folder.mkdir(parents=True)
        figures = (folder / f"run-{known['id']}.wandb").open("a", buffering=1)
        return SimpleNamespace(
            define_metric=lambda *_, **__: None,
            log=lambda values: figures.write(json.dumps(values) + "\n"),
            finish=figures.close,
            offline=True,
        )


def use_wandb_offline() -> None:
    """Of a process that tracks what it does."""
    os.environ["WANDB_MODE"] = "offline"
    if find_spec("wandb") is None:
        sys.modules["wandb"] = WandbStandIn()


def lives(data_dir: Path) -> list[tuple[str, int]]:
    """Of a process that tracked: the run's name, and how many bytes of figures, of each of its lives in order."""
    files = sorted(data_dir.glob("wandb/offline-run-*/run-*.wandb"))
    return [(file.stem, file.stat().st_size) for file in files]
