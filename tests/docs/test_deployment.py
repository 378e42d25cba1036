"""The files under ``deploy`` name what the program takes and what there is; docker and systemd are not started."""

import configparser
import shlex
from typing import Any

import pytest
import yaml

from tests.docs.commands import ROOT, complaint

DEPLOY = ROOT / "deploy"


def services() -> dict[str, Any]:
    content = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    return dict(content["services"])


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / "collab-backbone@.service", encoding="utf-8")
    return parser


def variables() -> list[str]:
    """All of the unit's, of several lines."""
    lines = (DEPLOY / "collab-backbone@.service").read_text(encoding="utf-8").splitlines()
    return [word for line in lines if line.startswith("Environment=") for word in shlex.split(line.split("=", 1)[1])]


def instructions() -> list[list[str]]:
    """Of the Dockerfile, by words."""
    lines = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").splitlines()
    return [line.split() for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("name", ["backbone", "backbone-with-store"])
def test_a_service_starts_a_backbone_also_where_variables_are_empty(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    service = services()[name]
    for variable, value in service["environment"].items():
        monkeypatch.setenv(variable, "" if value.startswith("${") else value)
    assert complaint(tuple(service["command"])) == ""


def test_the_service_with_a_store_names_the_redis_that_is_beside_it() -> None:
    service = services()["backbone-with-store"]
    assert service["environment"]["COLLAB_BACKBONE_STORE"] == "redis://redis:6379/0"
    assert service["depends_on"] == ["redis"]
    assert "always" in services()["redis"]["command"], "what was pushed is on the disk before the client hears so"


def test_the_unit_starts_a_backbone_and_lets_it_say_goodbye(monkeypatch: pytest.MonkeyPatch) -> None:
    service = unit()["Service"]
    for variable in variables():
        monkeypatch.setenv(*variable.split("=", 1))
    program, *arguments = shlex.split(service["ExecStart"])
    assert program.endswith("/collab-peer")
    assert complaint(tuple(arguments)) == ""
    assert service["KillSignal"] == "SIGTERM"
    assert service["KillMode"] == "mixed", "its libp2p daemon has to outlive the goodbye"


def test_the_unit_writes_only_where_it_may_and_says_how_to_make_what_it_needs() -> None:
    service, told = unit()["Service"], dict(variable.split("=", 1) for variable in variables())
    assert service["ProtectSystem"] == "strict"
    for name in ("XDG_CACHE_HOME", "HF_HOME"):
        assert told[name].startswith(f"/var/lib/{service['StateDirectory']}/")
    first_lines = (DEPLOY / "collab-backbone@.service").read_text(encoding="utf-8").partition("[Unit]")[0]
    assert f"useradd --system --home-dir /var/lib/collab --create-home {service['User']}" in first_lines
    program = shlex.split(service["ExecStart"])[0]
    assert f"sudo -u {service['User']} {program} init /var/lib/collab/my-run" in first_lines
    assert f"python3 -m venv {program.removesuffix('/bin/collab-peer')} " in first_lines


def test_what_the_image_is_made_of_is_there() -> None:
    copied = [name for words in instructions() if words[0] == "COPY" for name in words[1:-1]]
    assert {"collab", "peers", "setup.cfg"} <= set(copied)
    assert all((ROOT / name).exists() for name in copied)
    assert ["STOPSIGNAL", "SIGTERM"] in instructions()
