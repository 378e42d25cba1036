"""Options about dashboard and tracking: what makes no sense is refused at once."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from collab.errors import ConfigError
from collab.types import Role
from peers.cli import app
from peers.joining import JoinOptions, join
from peers.places import DataDir
from peers.wiring import Reach


@pytest.mark.parametrize("command", [["backbone", "my-run"], ["join", "org/name", "--role", "backbone"]])
def test_a_tracking_service_that_there_is_not_is_refused_with_those_that_there_are(command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, "--track", "tensorboard"])
    assert result.exit_code == 2
    assert "tensorboard" in result.output


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"dashboard": "8470"}, "--dashboard"),
        ({"store": "redis://here"}, "--store"),
        ({"hub_repo": "org/name"}, "--hub-repo"),
        ({"track": "wandb"}, "--track"),
    ],
)
def test_what_only_a_backbone_does_no_trainer_is_asked_to(tmp_path: Path, option: dict[str, Any], words: str) -> None:
    options = JoinOptions(
        invite="", role=Role.TRAINER, name="anna", data_dir=DataDir(tmp_path), reach=Reach(), **option
    )
    with pytest.raises(ConfigError, match="only a backbone") as caught:
        asyncio.run(join(options, asyncio.Event()))
    assert words in caught.value.hint
