"""``--max-upload`` and ``--max-download``: Mbit/s on the command line, bytes/s in a peer, nonsense in neither."""

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from collab.ports import LinkLimits
from collab.swarm.identity import Identity
from collab.swarm.invite import Invite, write_invite
from peers.cli import app
from peers.hosting import HostOptions
from peers.joining import JoinOptions
from peers.wiring import limits_from


@pytest.fixture
def invite() -> str:
    owner = Identity.from_seed(bytes(32))
    address = f"/ip4/127.0.0.1/tcp/4001/p2p/{owner.peer_id}"
    return write_invite(Invite(run_id="run", fingerprint="f" * 64, owner=owner.peer_id, addresses=(address,)), owner)


def test_limits_are_megabits_in_bytes_and_none_without_an_option() -> None:
    assert limits_from(8.0, None) == LinkLimits(up_bytes_per_s=1e6, down_bytes_per_s=None)
    assert limits_from(None, 0.1) == LinkLimits(up_bytes_per_s=None, down_bytes_per_s=12_500.0)


def test_join_hands_its_limits_to_the_peer(invite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[JoinOptions] = []

    async def take_part(options: JoinOptions, stop: asyncio.Event) -> None:
        seen.append(options)

    monkeypatch.setattr("peers.joining.join", take_part)
    arguments = ["join", invite, "--data-dir", str(tmp_path), "--max-upload", "8", "--max-download", "16"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert [options.reach.limits for options in seen] == [LinkLimits(up_bytes_per_s=1e6, down_bytes_per_s=2e6)]


def test_a_backbone_hands_its_limits_to_the_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[HostOptions] = []

    async def host(options: HostOptions, stop: asyncio.Event) -> None:
        seen.append(options)

    monkeypatch.setattr("peers.hosting.host", host)
    result = CliRunner().invoke(app, ["backbone", str(tmp_path), "--max-upload", "8", "--max-download", "16"])
    assert result.exit_code == 0, result.output
    assert [options.limits for options in seen] == [LinkLimits(up_bytes_per_s=1e6, down_bytes_per_s=2e6)]


def test_a_limit_can_come_from_the_environment(invite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[JoinOptions] = []

    async def take_part(options: JoinOptions, stop: asyncio.Event) -> None:
        seen.append(options)

    monkeypatch.setattr("peers.joining.join", take_part)
    monkeypatch.setenv("COLLAB_JOIN_MAX_UPLOAD", "4")
    arguments = ["join", invite, "--data-dir", str(tmp_path)]
    assert CliRunner().invoke(app, arguments, auto_envvar_prefix="COLLAB").exit_code == 0  # as ``main`` does
    assert seen[0].reach.limits.up_bytes_per_s == 0.5e6


@pytest.mark.parametrize("option", ["--max-upload", "--max-download"])
@pytest.mark.parametrize("value", ["0", "-5", "-0.0", "0.05", "nan", "-inf", "fast", "10Mbit"])
@pytest.mark.parametrize("command", ["join", "backbone"])
def test_a_limit_that_is_no_number_above_a_tenth_is_refused_by_its_name(command: str, option: str, value: str) -> None:
    result = CliRunner().invoke(app, [command, "x", f"{option}={value}"], env={"COLUMNS": "200"})
    assert result.exit_code == 2, result.output
    assert f"Invalid value for '{option}'" in result.output


@pytest.mark.parametrize("option", ["--max-upload", "--max-download"])
@pytest.mark.parametrize("value", ["inf", "1e400", "1e12"])
@pytest.mark.parametrize("command", ["join", "backbone"])
def test_a_limit_that_no_link_reaches_is_refused_by_its_name(command: str, option: str, value: str) -> None:
    result = CliRunner().invoke(app, [command, "x", f"{option}={value}"], env={"COLUMNS": "200"})
    assert result.exit_code == 2, result.output
    assert f"Invalid value for '{option}'" in result.output
