"""The files under ``deploy`` name what the program takes and what there is; docker and systemd are not started."""

import configparser
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from collab.checkpoints.hub_session import has_token
from collab.metrics.services import service_for
from tests.docs.commands import ROOT, complaint, options_of

sys.path.insert(0, str(ROOT / "scripts"))

from soak import DEPLOYED

DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "collab-backbone@.service"
IN_PLACE = {"init", "invite", "backbone"}
"""Commands of the program that are given where a backbone runs for good."""


def services() -> dict[str, Any]:
    content = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    return dict(content["services"])


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT, encoding="utf-8")
    return parser


def variables() -> list[str]:
    """All of the unit's, of several lines."""
    lines = UNIT.read_text(encoding="utf-8").splitlines()
    return [word for line in lines if line.startswith("Environment=") for word in shlex.split(line.split("=", 1)[1])]


def instructions() -> list[list[str]]:
    """Of the Dockerfile, by words."""
    lines = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").splitlines()
    return [line.split() for line in lines if line and not line.startswith("#")]


def told(name: str) -> list[list[str]]:
    """What a file's comments, or a page's code, tell people to type: the words of each line."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    rows = [line.removeprefix("#     ") for line in lines if line.startswith(("#     ", "sudo ", "docker "))]
    return [shlex.split(row.rstrip(" \\"), comments=True) for row in rows]


def in_place() -> Iterator[tuple[str, tuple[str, ...]]]:
    """What the program is given through sudo or docker, as these files and their page have it."""
    for name in ("deploy/Dockerfile", "deploy/compose.yaml", str(UNIT.relative_to(ROOT)), "docs/operations.md"):
        for words in told(name):
            if begins := [number for number, word in enumerate(words) if word in IN_PLACE]:
                yield name, tuple(words[begins[-1] :])


def test_what_is_typed_through_sudo_or_docker_the_program_takes() -> None:
    found = list(in_place())
    assert {name for name, arguments in found if arguments[0] == "invite"} == {name for name, _ in found}
    assert len({name for name, _ in found}) == 4, "each says how the owner gives orders"
    assert {name for name, arguments in found if arguments[0] == "init"} >= {"deploy/Dockerfile", "deploy/compose.yaml"}
    assert [(name, complaint(arguments)) for name, arguments in found if complaint(arguments)] == []


def test_services_that_start_by_themselves_share_no_port_and_no_directory() -> None:
    own = [service for service in services().values() if not service.get("profiles")]
    for what in ("ports", "volumes"):
        used = [each for service in own for each in service.get(what, ())]
        assert len(used) == len(set(used)), what
    assert own == [services()["backbone"]], "'up' alone starts one backbone"


def test_the_runs_directory_is_named_from_the_root_on() -> None:
    """Compose would look for ``./my-run`` beside its file."""
    named = [word for words in told("deploy/compose.yaml") for word in words if word.startswith("RUN=")]
    assert named
    assert all(word.startswith("RUN=$PWD/") for word in named)


@pytest.mark.parametrize("name", ["backbone", "backbone-with-store"])
def test_variables_that_nobody_has_set_outside_are_unset_inside(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, outside = services()[name], []
    for variable, value in service["environment"].items():
        if value.startswith("${"):
            assert value.endswith(":-}")
            outside.append(variable)
            monkeypatch.setenv(variable, "")
    assert {"COLLAB_BACKBONE_HUB_REPO", "HF_TOKEN", "WANDB_API_KEY"} <= set(outside)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    assert not has_token()
    options = options_of(tuple(service["command"]))
    assert (options["hub_repo"], options["announce"] or []) == ("", [])
    assert service_for(options["track"]) is None


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
    assert service["profiles"] == services()["redis"]["profiles"], "who starts it by its name starts redis, too"
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
    first_lines = UNIT.read_text(encoding="utf-8").partition("[Unit]")[0]
    assert f"useradd --system --home-dir /var/lib/collab --create-home {service['User']}" in first_lines
    program = shlex.split(service["ExecStart"])[0]
    assert f"sudo -u {service['User']} {program} init /var/lib/collab/my-run" in first_lines
    assert f"python3 -m venv {program.removesuffix('/bin/collab-peer')} " in first_lines
    assert f"{program.removesuffix('/collab-peer')}/pip install '.[redis,wandb]'" in first_lines
    kept = service["EnvironmentFile"].removeprefix("-").replace("%i", "my-run")
    assert f"install -D -m 600 /dev/null {kept}" in first_lines, "it holds tokens"


KEPT_BY_A_THREAD = """\
import ctypes


class Told(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]


library = ctypes.CDLL(None)
library.malloc.restype, library.free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
library.mallinfo2.restype = Told
taken = [library.malloc(1000) for _ in range(5)]
before = library.mallinfo2().uordblks
for place in taken:
    library.free(place)
print(before - library.mallinfo2().uordblks >= 5000)
"""


@pytest.mark.parametrize(("environment", "is_free"), [({}, False), (DEPLOYED, True)])
def test_threads_keep_nothing_of_what_they_free_in_the_environment_that_a_backbone_gets(
    environment: dict[str, str], is_free: bool
) -> None:
    """What a thread keeps counts as in use. The soak measures a backbone in that environment."""
    program = [sys.executable, "-c", KEPT_BY_A_THREAD]
    result = subprocess.run(
        program, env={**os.environ, "GLIBC_TUNABLES": "", **environment}, capture_output=True, text=True, check=True
    )
    assert result.stdout == f"{is_free}\n"
    told = {f"{name}={value}" for name, value in DEPLOYED.items()}
    assert told <= set(variables())
    assert told <= {word for words in instructions() if words[0] == "ENV" for word in words}


def test_what_the_image_is_made_of_is_there() -> None:
    copied = [name for words in instructions() if words[0] == "COPY" for name in words[1:-1]]
    assert {"collab", "peers", "setup.cfg"} <= set(copied)
    assert ["RUN", "pip", "install", "--no-cache-dir", '".[redis,wandb]"'] in instructions()
    assert all((ROOT / name).exists() for name in copied)
    assert ["STOPSIGNAL", "SIGTERM"] in instructions()
