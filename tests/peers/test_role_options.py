"""Options of ``join`` and ``backbone`` that a role could not follow are refused; how to talk is followed by all."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from collab.errors import ConfigError
from collab.swarm.duties import Duty
from collab.types import Role
from peers import hosting
from peers.cli import app
from peers.hosting import HostOptions
from peers.join_options import JoinOptions
from peers.joined_backbone import join_as_backbone
from peers.joining import join
from peers.occasions import HouseRules
from peers.places import DataDir
from peers.role_options import check_role
from peers.screen import Style
from peers.switched_off import announce_duties
from peers.wiring import Reach

OF_TRAINERS = [
    ({"epochs": 5}, "--epochs"),
    ({"microbatch_size": 8}, "--microbatch-size"),
    ({"device": "cpu"}, "--device"),
    ({"gpu_memory_gb": 6.0}, "--gpu-memory"),
    ({"wants_credit": True}, "--credit"),
]


def options(place: Path, role: Role, **fields: Any) -> JoinOptions:
    return JoinOptions(invite="", role=role, name="anna", data_dir=DataDir(place), reach=Reach(), **fields)


@pytest.mark.parametrize("role", [Role.AUXILIARY, Role.BACKBONE])
@pytest.mark.parametrize(("option", "flag"), OF_TRAINERS)
def test_what_only_a_trainer_does_no_other_peer_is_asked_to(
    tmp_path: Path, role: Role, option: dict[str, Any], flag: str
) -> None:
    begin = join_as_backbone if role is Role.BACKBONE else join
    with pytest.raises(ConfigError, match="only a trainer") as refused:
        asyncio.run(begin(options(tmp_path, role, **option), asyncio.Event()))
    assert refused.value.hint == f"leave {flag} out, or join with --role trainer"
    check_role(options(tmp_path, Role.TRAINER, **option))


def test_a_backbone_keeps_no_hours(tmp_path: Path) -> None:
    rules = HouseRules(when="idle")
    with pytest.raises(ConfigError, match="at all hours"):
        check_role(options(tmp_path, Role.BACKBONE, rules=rules))
    check_role(options(tmp_path, Role.AUXILIARY, rules=rules))


def test_a_backbone_keeps_more_than_a_folder_that_lasts_would_have() -> None:
    command = ["join", "word", "--role", "backbone", "--keep", "/mnt/drive"]
    result = CliRunner().invoke(app, command, env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert "a backbone needs all of its --data-dir" in result.output


def test_how_to_talk_is_everybodys(tmp_path: Path) -> None:
    for role in (Role.TRAINER, Role.AUXILIARY, Role.BACKBONE):
        for style in Style:
            check_role(options(tmp_path, role, style=style))


@pytest.mark.parametrize(("flags", "style"), [([], Style.AUTO), (["--plain"], Style.PLAIN), (["--quiet"], Style.QUIET)])
def test_a_backbone_is_told_how_to_talk(monkeypatch: pytest.MonkeyPatch, flags: list[str], style: Style) -> None:
    seen: list[HostOptions] = []

    async def serve(options: HostOptions, stop: asyncio.Event) -> None:
        seen.append(options)

    monkeypatch.setattr(hosting, "host", serve)
    assert CliRunner().invoke(app, ["backbone", "my-run", *flags]).exit_code == 0
    assert [options.style for options in seen] == [style]


@pytest.mark.parametrize("command", [["backbone", "my-run"], ["join", "word", "--role", "backbone"]])
def test_one_way_to_talk_is_enough(command: list[str]) -> None:
    for two in (["--plain", "--quiet"], ["--quiet", "--json"]):
        result = CliRunner().invoke(app, [*command, *two], env={"COLUMNS": "200"})
        assert result.exit_code == 2
        assert "give one of --plain, --quiet and --json" in result.output


@pytest.mark.parametrize("how", ["flag", "variable"])
@pytest.mark.parametrize("text", ["/ip4/203.0.113.7", "203.0.113.7", "/ip4/203.0.113/tcp/4000", "a:1,b:2"])
def test_an_address_that_nobody_could_dial_is_refused_with_the_right_form(
    monkeypatch: pytest.MonkeyPatch, text: str, how: str
) -> None:
    async def serve(options: HostOptions, stop: asyncio.Event) -> None:
        raise AssertionError(options)

    monkeypatch.setattr(hosting, "host", serve)
    flags, variables = (["--announce", text], {}) if how == "flag" else ([], {"COLLAB_BACKBONE_ANNOUNCE": text})
    result = CliRunner().invoke(
        app, ["backbone", "my-run", *flags], env={"COLUMNS": "400", **variables}
    )
    assert result.exit_code == 2
    assert "--announce" in result.output
    assert "/ip4/203.0.113.7/tcp/4000, 203.0.113.7:4000 or example.org:4000" in result.output
    assert ("with spaces between them" in result.output) == ("," in text)


@pytest.mark.parametrize("command", [["backbone", "my-run"], ["join", "word"]])
@pytest.mark.parametrize("host", ["example.org", "::", "127.0.0.1:4000", "203.0.113", ""])
def test_what_nobody_can_listen_on_is_refused_at_once(command: list[str], host: str) -> None:
    result = CliRunner().invoke(app, [*command, "--host", host, "--print-config"], env={"COLUMNS": "400"})
    assert result.exit_code == 2
    assert "expected an IPv4 address of this machine, 0.0.0.0 for all that it has, or localhost" in result.output


def test_who_wants_to_hear_of_problems_only_is_not_told_what_is_switched_off(
    capsys: pytest.CaptureFixture[str],
) -> None:
    announce_duties(frozenset({Duty.RELAY}), Style.QUIET)
    assert capsys.readouterr().err == ""
    announce_duties(frozenset({Duty.RELAY}), Style.PLAIN)
    assert "switched off: relay" in capsys.readouterr().err
