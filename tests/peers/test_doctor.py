"""The doctor's looks at this machine, with faults put in their way, and what the command makes of them."""

import asyncio
import io
import json
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from collab.config import parse_run
from collab.errors import BootstrapFailed, NetworkError
from collab.swarm.bundle import Bundle
from collab.swarm.identity import Identity, load_or_create_identity
from collab.swarm.invite import Invite, write_invite
from collab.swarm.mandate import Mandate
from collab.swarm.progress import SwarmView
from collab.swarm.statements import Amend, Ban, End, Statement
from peers import doctor, status, visiting
from peers.checkup import Finding, Outcome
from peers.cli import app
from peers.places import DataDir, claim_data_dir
from tests.fakes import NOW
from tests.swarm.people import PEOPLE, backbone, record

WELL = Finding(check="memory", outcome=Outcome.OK, text="plenty")
ILL = Finding(check="disk", outcome=Outcome.PROBLEM, text="it is full", remedy="make room")


@pytest.fixture
def without_a_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    async def started() -> Finding:
        return Finding(check="libp2p", outcome=Outcome.OK, text="the daemon starts")

    monkeypatch.setattr(doctor, "start_daemon", started)


def looks(*findings: Finding) -> Callable[[object], list[tuple[str, Callable[[], Finding]]]]:
    return lambda _: [(finding.check, lambda finding=finding: finding) for finding in findings]


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

    monkeypatch.setattr(visiting, "start_from_invite", lambda *_, **__: Nobody())
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
    assert doctor.look_at_disk(tmp_path / "not" / "there" / "yet", "").outcome is not Outcome.PROBLEM
    assert not (tmp_path / "not").exists()


def test_a_disk_that_takes_nothing_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refuse)
    finding = doctor.look_at_disk(tmp_path, "name a directory")
    assert finding.outcome is Outcome.PROBLEM
    assert "Read-only file system" in finding.text
    assert finding.remedy == "name a directory that can be written"


@pytest.mark.parametrize("is_full", [True, False])
def test_each_place_is_mended_by_what_names_it(
    is_full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if is_full:
        monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    else:
        monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refuse)
    data, cache = (look() for check, look in doctor.local_checks(doctor.Examination()) if check == "disk")
    assert str(tmp_path / "data") in data.text
    assert "--data-dir" in data.remedy
    assert str(tmp_path / "cache") in cache.text
    assert "XDG_CACHE_HOME" in cache.remedy
    assert "--data-dir" not in cache.remedy


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


def test_a_disk_on_which_nothing_can_be_written_is_one_problem_among_all_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(**_: object) -> None:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(doctor.tempfile, "TemporaryDirectory", refuse)
    monkeypatch.setattr(doctor, "local_checks", looks(WELL))
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert result.exception is None or isinstance(result.exception, SystemExit)
    lines = result.output.splitlines()
    assert lines[0].split() == ["ok", "memory", "plenty"]
    assert lines[1].startswith("PROBLEM libp2p")
    assert "No usable temporary directory" in lines[1]
    assert "TMPDIR" in lines[2]
    assert [line.split()[1] for line in lines[3:7]] == ["clock", "NAT", "bandwidth", "join"]
    assert lines[-1] == "1 to be mended before it can take part"


@pytest.mark.usefixtures("without_a_daemon")
def test_a_look_that_fails_as_nobody_has_thought_of_is_one_problem_among_all_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails() -> Finding:
        raise ZeroDivisionError("a card of 0 GB")

    async def visits(*_: object) -> None:
        async with asyncio.TaskGroup():
            raise ZeroDivisionError("a link of 0 s")

    monkeypatch.setattr(doctor, "local_checks", lambda _: [("device", fails), *looks(WELL)(None)])
    monkeypatch.setattr(doctor, "visit", visits)
    result = CliRunner().invoke(app, ["doctor", "INVITE"])
    assert result.exit_code == 1
    told = [line.split(maxsplit=2) for line in result.output.splitlines() if not line.startswith(" ")]
    assert [row[:2] for row in told[:4]] == [
        ["PROBLEM", "device"], ["ok", "memory"], ["ok", "libp2p"], ["PROBLEM", "join"],
    ]  # fmt: skip
    assert "ZeroDivisionError: a card of 0 GB" in told[0][2]
    assert "ZeroDivisionError: a link of 0 s" in told[3][2]


def test_each_line_is_there_as_soon_as_it_is_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []

    async def starts() -> Finding:
        shown.append(capsys.readouterr().out)
        return Finding(check="libp2p", outcome=Outcome.OK, text="the daemon starts")

    async def visits(_word: str, _data_dir: Path | None, _port: int, tell: Callable[[Finding], None]) -> None:
        shown.append(capsys.readouterr().out)
        tell(ILL)
        shown.append(capsys.readouterr().out)

    monkeypatch.setattr(doctor, "local_checks", looks(WELL))
    monkeypatch.setattr(doctor, "start_daemon", starts)
    monkeypatch.setattr(doctor, "visit", visits)
    assert not doctor.run_doctor(doctor.Examination(invite="INVITE"))
    assert [line.split()[1] for line in shown if line] == ["memory", "libp2p", "disk"]
    assert capsys.readouterr().out == "1 to be mended before it can take part\n"


@pytest.mark.usefixtures("without_a_daemon")
def test_an_answer_that_nobody_gets_is_no_fault_of_a_check_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(doctor, "local_checks", looks(WELL))
    monkeypatch.setattr(sys, "stdout", Full())
    with pytest.raises(OSError, match="No space left"):
        doctor.run_doctor(doctor.Examination())


OWNER = PEOPLE[0]
OPEN = visiting.Joiner(invite=Invite(run_id="run", fingerprint="f" * 64, owner="", addresses=()))
US = visiting.Joiner(invite=OPEN.invite, peer=PEOPLE[1].peer_id)
NOBODY = SwarmView((), NOW)
HERE = SwarmView(tuple(record(person, epoch=10) for person in (2, 3)), NOW)


def bundle(text: str) -> Bundle:
    return Bundle(parse_run(text, origin="the test"), {}, OWNER.peer_id)


ORDINARY = bundle("{run_id: run, until_epoch: 900, task: {name: image_classification}}")


def ordered(*said: Statement) -> Mandate:
    """What the organiser of the ordinary run has said since it began."""
    mandate = Mandate(ORDINARY)
    for what in said:
        mandate.take(len(mandate.book.orders), [mandate.book.signed(what, OWNER, NOW)])
    return mandate


def test_a_run_that_needs_a_module_of_others_says_how_it_is_allowed() -> None:
    assert visiting.can_join(ORDINARY, HERE, OPEN, ordered()).outcome is Outcome.OK
    mine = f'name: module, module: mine, sha256: "{"0" * 64}", class_name: Mine'
    foreign = bundle(f"{{run_id: run, task: {{{mine}}}}}")
    finding = visiting.can_join(foreign, NOBODY, OPEN, Mandate(foreign))
    assert finding.outcome is Outcome.NOTE
    assert "--allow mine" in finding.remedy


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (SwarmView(tuple(record(person, epoch=900) for person in (2, 3)), NOW), ()),
        (SwarmView((backbone(4, epoch=900, checkpoint_epoch=900),), NOW), ()),
        (HERE, (End(at_epoch=10),)),
    ],
    ids=["all are at its end", "nobody is left", "its end was ordered"],
)
def test_a_run_that_is_over_cannot_be_joined(view: SwarmView, said: tuple[Statement, ...]) -> None:
    finding = visiting.can_join(ORDINARY, view, US, ordered(*said))
    assert finding.outcome is Outcome.PROBLEM
    assert "the run is over" in finding.text


def test_one_whose_end_was_put_off_can_be_joined() -> None:
    late = SwarmView(tuple(record(person, epoch=950) for person in (2, 3)), NOW)
    assert visiting.can_join(ORDINARY, late, US, ordered(End(at_epoch=2000))).outcome is Outcome.OK


def test_whoever_is_banned_is_told_so_by_the_key_it_would_join_with() -> None:
    mandate = ordered(Ban(who=PEOPLE[1].peer_id, name="us", reason="sends noise"))
    finding = visiting.can_join(ORDINARY, HERE, US, mandate)
    assert finding.outcome is Outcome.PROBLEM
    assert "banned you for good: sends noise" in finding.text
    for other in (OPEN, visiting.Joiner(invite=OPEN.invite, peer=PEOPLE[5].peer_id)):
        assert visiting.can_join(ORDINARY, HERE, other, mandate).outcome is Outcome.OK


def test_a_version_that_is_too_old_for_the_next_step_is_told() -> None:
    needs = Amend(from_epoch=10, minimum_version="99.0")
    finding = visiting.can_join(ORDINARY, HERE, US, ordered(needs))
    assert finding.outcome is Outcome.PROBLEM
    assert "it needs version 99.0 of collab" in finding.text
    assert "the line that the organiser has" in finding.remedy
    assert visiting.can_join(ORDINARY, HERE, US, ordered(replace(needs, from_epoch=11))).outcome is Outcome.OK


def test_that_nobody_tells_of_orders_is_no_reason_to_stay_away_and_is_said() -> None:
    finding = visiting.can_join(ORDINARY, HERE, US, None)
    assert finding.outcome is Outcome.NOTE
    assert "ordered" in finding.text


def test_who_would_join_is_looked_up_where_a_peer_would_find_its_key_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert visiting.peer_of(None, "run") is None
    assert visiting.peer_of(tmp_path / "elsewhere", "run") is None
    assert list(tmp_path.iterdir()) == []
    with claim_data_dir(None, "run") as first:
        used = load_or_create_identity(first.identity).peer_id
        assert visiting.peer_of(None, "run") is None, "a second peer would have another directory"
    assert visiting.peer_of(None, "run") == used
    assert visiting.peer_of(first.path, "run") == used


@pytest.mark.parametrize("is_in_the_way", ["the directory", "the key"])
@pytest.mark.parametrize("look", ["doctor", "status"])
def test_who_only_looks_does_so_with_a_passing_key_where_none_can_be_kept(
    look: str, is_in_the_way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``status`` has no ``--data-dir``, and that of ``doctor`` is a peer's."""
    keys = list[Path]()

    def start(_: Invite, place: DataDir, *__: object, **___: object) -> None:
        load_or_create_identity(place.identity)
        keys.append(place.identity)
        raise BootstrapFailed("nobody is there")

    home = tmp_path / "home"
    monkeypatch.setenv("XDG_DATA_HOME", str(home))
    if is_in_the_way == "the directory":
        home.write_text("a file")
    else:
        (home / "collab" / "run" / "guest-1" / "identity.key").mkdir(parents=True)
    owner = Identity.from_seed(bytes(32))
    address = f"/ip4/127.0.0.1/tcp/4001/p2p/{owner.peer_id}"
    word = write_invite(Invite(run_id="run", fingerprint="f" * 64, owner=owner.peer_id, addresses=(address,)), owner)
    for command in (visiting, status):
        monkeypatch.setattr(command, "start_from_invite", start)
    looks: dict[str, Callable[[], Any]] = {
        "doctor": lambda: visiting.visit(word, tmp_path / "ok", 0, lambda _: None),
        "status": lambda: status._look_as_guest(word),
    }
    with pytest.raises(BootstrapFailed):
        asyncio.run(looks[look]())
    assert [key.exists() for key in keys] == [False], "it has gone with the look"


def test_files_that_every_machine_is_to_have_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    task = "task: {name: causal_lm, model: {model_type: gpt2}, data: {source: files, path: texts}}"
    run = bundle(f"{{run_id: run, {task}}}").run
    missing = visiting.look_at_files(run)
    assert missing is not None
    assert missing.outcome is Outcome.PROBLEM
    assert "texts matches no" in missing.text
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one.txt").write_text("a text")
    there = visiting.look_at_files(run)
    assert there is not None
    assert (there.outcome, there.text) == (Outcome.OK, "1 file at texts")
    assert visiting.look_at_files(ORDINARY.run) is None
