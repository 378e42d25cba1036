"""The doctor's looks at this machine, with faults put in their way, and what the command makes of them."""

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from collab.config import parse_run
from collab.errors import BootstrapFailed, NetworkError
from collab.swarm.bundle import Bundle
from collab.swarm.identity import Identity
from collab.swarm.invite import Invite, write_invite
from collab.swarm.progress import SwarmView
from peers import doctor
from peers.checkup import Finding, Outcome
from peers.cli import app

WELL = Finding(check="memory", outcome=Outcome.OK, text="plenty")
ILL = Finding(check="disk", outcome=Outcome.PROBLEM, text="it is full", remedy="make room")


@pytest.fixture
def without_a_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    async def started() -> Finding:
        return Finding(check="libp2p", outcome=Outcome.OK, text="the daemon starts")

    monkeypatch.setattr(doctor, "start_daemon", started)


def looks(*findings: Finding) -> Callable[[object], list[Callable[[], Finding]]]:
    return lambda _: [lambda finding=finding: finding for finding in findings]


@pytest.mark.usefixtures("without_a_daemon")
@pytest.mark.parametrize(("findings", "code"), [((WELL,), 0), ((WELL, ILL), 1)])
def test_the_exit_code_says_whether_something_must_be_mended(
    monkeypatch: pytest.MonkeyPatch, findings: tuple[Finding, ...], code: int
) -> None:
    monkeypatch.setattr(doctor, "local_checks", looks(*findings))
    for_people = CliRunner().invoke(app, ["doctor"])
    assert for_people.exit_code == code
    assert ("-> make room" in for_people.output) is (code == 1)
    for_programs = CliRunner().invoke(app, ["doctor", "--json"])
    assert for_programs.exit_code == code
    told = json.loads(for_programs.stdout)
    assert told["is_able"] is (code == 0)
    assert [check["check"] for check in told["checks"][: len(findings)]] == [finding.check for finding in findings]


@pytest.mark.usefixtures("without_a_daemon")
def test_a_garbled_invite_and_a_run_that_does_not_answer_are_problems_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(doctor, "local_checks", looks(WELL))
    garbled = CliRunner().invoke(app, ["doctor", "collab2-nonsense"])
    assert garbled.exit_code == 1
    assert "PROBLEM invite" in garbled.output

    class Nobody:
        async def __aenter__(self) -> None:
            raise BootstrapFailed("none of the 1 bootstrap addresses answered", hint="is the backbone running?")

        async def __aexit__(self, *_: object) -> None: ...

    monkeypatch.setattr(doctor, "start_from_invite", lambda *_, **__: Nobody())
    owner = Identity.from_seed(bytes(32))
    address = f"/ip4/127.0.0.1/tcp/4001/p2p/{owner.peer_id}"
    word = write_invite(Invite(run_id="run", fingerprint="f" * 64, owner=owner.peer_id, addresses=(address,)), owner)
    silent = CliRunner().invoke(app, ["doctor", word])
    assert silent.exit_code == 1
    assert "PROBLEM join" in silent.output
    assert "-> is the backbone running?" in silent.output


def test_a_port_that_somebody_listens_on_is_a_problem_and_a_free_one_is_not() -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        assert doctor.look_at_port(taken.getsockname()[1]).outcome is Outcome.PROBLEM
    assert doctor.look_at_port(0).outcome is Outcome.OK


def test_a_disk_is_looked_at_where_the_directory_would_be_made(tmp_path: Path) -> None:
    assert doctor.look_at_disk(tmp_path / "not" / "there" / "yet").outcome is not Outcome.PROBLEM
    assert not (tmp_path / "not").exists()


def test_a_disk_that_takes_nothing_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refuse)
    finding = doctor.look_at_disk(tmp_path)
    assert finding.outcome is Outcome.PROBLEM
    assert "Read-only file system" in finding.text


def test_free_memory_is_what_programs_can_still_have(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       32 kB\nMemFree:          1 kB\nMemAvailable:   1000 kB\n")
    assert doctor.available_memory(meminfo) == 1_024_000
    meminfo.write_text("nonsense")
    assert doctor.available_memory(meminfo) is None
    assert doctor.available_memory(tmp_path / "none") is None


@pytest.mark.parametrize(("name", "is_there"), [("torch", True), ("no-such-package-of-anybodys", False)])
def test_packages_are_looked_up_without_loading_them(name: str, is_there: bool) -> None:
    assert (doctor._version(name) is not None) is is_there


def test_a_daemon_that_does_not_start_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dead:
        async def __aenter__(self) -> None:
            raise NetworkError("the libp2p daemon did not start: no such file", hint="install hivemind again")

        async def __aexit__(self, *_: object) -> None: ...

    monkeypatch.setattr(doctor, "open_transport", lambda _: Dead())
    monkeypatch.setattr(doctor, "local_checks", looks(WELL))
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert "-> install hivemind again" in result.output


OPEN = Invite(run_id="run", fingerprint="f" * 64, owner="", addresses=())


def bundle(text: str) -> Bundle:
    return Bundle(parse_run(text, origin="the test"), {})


def test_a_run_that_needs_a_module_of_others_says_how_it_is_allowed() -> None:
    ordinary = bundle("{run_id: run, task: {name: image_classification}}")
    assert doctor.can_join(ordinary, SwarmView((), 0.0), OPEN).outcome is Outcome.OK
    mine = f'name: module, module: mine, sha256: "{"0" * 64}", class_name: Mine'
    foreign = bundle(f"{{run_id: run, task: {{{mine}}}}}")
    finding = doctor.can_join(foreign, SwarmView((), 0.0), OPEN)
    assert finding.outcome is Outcome.NOTE
    assert "--allow mine" in finding.remedy


def test_a_run_that_is_over_cannot_be_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SwarmView, "is_over", lambda _self, until: until == 9)
    over = bundle("{run_id: run, until_epoch: 9, task: {name: image_classification}}")
    assert doctor.can_join(over, SwarmView((), 0.0), OPEN).outcome is Outcome.PROBLEM
