"""The list of invites: what became of each, and who uses it now; and what options go together."""

import asyncio
import errno
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from collab.errors import ConfigError
from collab.swarm.access import pack_pass
from collab.swarm.identity import Identity
from collab.swarm.invite import read_invite
from collab.swarm.mandate import Mandate
from collab.swarm.progress import SwarmView
from collab.swarm.records import PeerRecord
from collab.swarm.statements import Ban, Statement
from collab.types import Role
from peers import inviting
from peers.cli import app
from peers.inviting import Invited, invite, invited, list_invites, users_of
from peers.organising import init_run
from peers.owner import Estate, Session
from peers.places import ADDRESSES, INVITES
from tests.fakes import NOW
from tests.full_disk import no_file_larger_than
from tests.swarm.people import PEOPLE, record

DAYS = 30.0


@pytest.fixture
def estate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Estate:
    directory = tmp_path / "run"
    init_run(directory, "a-run")
    (directory / "backbone").mkdir()
    (directory / "backbone" / "addresses.json").write_text('["/ip4/127.0.0.1/tcp/1/p2p/x"]')
    monkeypatch.setattr(inviting.time, "time", lambda: NOW)
    return Estate.at(directory)


def made(estate: Estate, person: str, days: float = DAYS) -> tuple[str, Invited]:
    return invite(estate.directory, person, devices=2, days=days, role=Role.TRAINER)


def using(estate: Estate, word: str, person: int, name: str, device: Identity | None = None) -> PeerRecord:
    """The record of a peer that shows the pass of a device, its own unless it is another's."""
    papers = read_invite(word).papers
    assert papers is not None
    credential = pack_pass(papers, (device or PEOPLE[person]).peer_id, since=NOW, now=NOW)
    return record(person, name=name, credential=credential, fingerprint=estate.bundle.fingerprint)


def rows_of(
    estate: Estate, monkeypatch: pytest.MonkeyPatch, view: SwarmView | None, *said: Statement, as_json: bool = True
) -> None:
    """Print the list, as one who sees this swarm; None: nobody answers."""
    mandate = Mandate(estate.bundle)
    for what in said:
        mandate.take(len(mandate.book.orders), [mandate.book.signed(what, estate.owner, NOW)])

    class Looking(Session):
        def now(self) -> float:
            return NOW

    @asynccontextmanager
    async def opened(_: Estate) -> AsyncIterator[Session]:
        started = cast(Any, object() if view is not None else None)
        yield Looking(estate, mandate, view or SwarmView((), NOW), started)

    monkeypatch.setattr(inviting, "open_session", opened)
    asyncio.run(list_invites(estate.directory, as_json=as_json))


def test_each_invite_is_shown_with_what_became_of_it_and_who_uses_it(
    estate: Estate, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (anna, her), (_, bob), (_, his) = (made(estate, name) for name in ("Anna", "Bob", "Carl"))
    _, old = made(estate, "Dora", days=0.001)
    monkeypatch.setattr(inviting, "invited", lambda _: [her, bob, his, replace(old, expires_at=NOW - 1)])
    view = SwarmView((using(estate, anna, 1, "laptop"), using(estate, anna, 2, "desk\x07"), record(3)), NOW)
    bans = Ban(who=bob.id, reason="noise"), Ban(who=his.id, reason="on leave", until_s=NOW + 86400.0)
    rows_of(estate, monkeypatch, view, *bans)
    rows = json.loads(capsys.readouterr().out)["invites"]
    assert [(row["state"], row["reason"], row["revoked_until"]) for row in rows] == [
        ("valid", None, None),
        ("revoked", "noise", None),
        ("revoked", "on leave", NOW + 86400.0),
        ("expired", None, None),
    ]
    assert rows[0]["used_by"] == [
        {"id": PEOPLE[1].peer_id, "name": "laptop"}, {"id": PEOPLE[2].peer_id, "name": "desk\x07"},
    ]  # fmt: skip
    assert [row["used_by"] for row in rows[1:]] == [[], [], []]
    rows_of(estate, monkeypatch, view, *bans, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(f"valid    until 2023-12-14 22:13 UTC    2 devices  {her.id}  used by laptop, desk?")
    assert lines[1].endswith(f"{bob.id}  revoked for good: noise")
    assert lines[2].endswith(f"{his.id}  revoked until 2023-11-15 22:13 UTC: on leave")
    assert lines[3].endswith(old.id)


def test_where_nobody_answers_it_is_said_that_users_are_not_known(
    estate: Estate, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made(estate, "Anna")
    rows_of(estate, monkeypatch, None)
    assert json.loads(capsys.readouterr().out)["invites"][0]["used_by"] is None
    rows_of(estate, monkeypatch, None, as_json=False)
    assert "nobody can say" in capsys.readouterr().err


def test_a_pass_of_another_device_or_another_run_shows_nothing(estate: Estate, tmp_path: Path) -> None:
    word, row = made(estate, "Anna")
    stolen = using(estate, word, 1, "thief", device=PEOPLE[2])
    garbled = record(3, credential=b"nonsense")
    assert users_of(SwarmView((stolen, garbled), NOW), estate.bundle) == {}
    init_run(tmp_path / "other", "another-run")
    other = Estate.at(tmp_path / "other").bundle
    mine = SwarmView((using(estate, word, 1, "laptop"),), NOW)
    assert users_of(mine, other) == {}
    assert list(users_of(mine, estate.bundle)) == [row.id]


def test_an_invite_for_programs_is_json(estate: Estate) -> None:
    result = CliRunner().invoke(app, ["invite", str(estate.directory), "--name", "Anna", "--json"])
    told = json.loads(result.stdout)
    assert (told["person"], told["devices"], told["role"]) == ("Anna", 5, "trainer")
    papers = read_invite(told["invite"]).papers
    assert papers is not None
    assert papers.key.peer_id == told["id"]
    plain = CliRunner().invoke(app, ["invite", str(estate.directory), "--name", "Bob"])
    assert read_invite(plain.stdout).run_id == "a-run"


@pytest.mark.parametrize(
    ("words", "named", "needed"),
    [
        (["--name", "Anna", "--reason", "spam"], "--reason", "--revoke"),
        (["--list", "--reason", "spam"], "--reason", "--revoke"),
        (["--list", "--devices", "2"], "--devices", "--name"),
        (["--revoke", "Anna", "--days", "2"], "--days", "--name"),
        (["--list", "--role", "backbone"], "--role", "--name"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    tmp_path: Path, words: list[str], named: str, needed: str
) -> None:
    result = CliRunner().invoke(app, ["invite", str(tmp_path), *words], env={"COLUMNS": "200"})
    assert result.exit_code == 2, result.output
    assert named in result.output
    assert f"goes with {needed}" in result.output


def test_what_a_variable_says_of_invites_stands_in_no_lists_way(estate: Estate) -> None:
    """It is said for all of them."""
    result = CliRunner().invoke(
        app, ["invite", str(estate.directory), "--name", "Anna", "--json"],
        env={"COLLAB_INVITE_REASON": "spam", "COLLAB_INVITE_DEVICES": "3"},
    )  # fmt: skip
    assert json.loads(result.stdout)["devices"] == 3, result.output


@pytest.mark.parametrize(
    "torn",
    [
        b'{"id": "12D3KooWx", "per', b"\xff\xfe\x00", b"\x00" * 200, b"[]", b"5", b'{"id": "x", "person": "Bob"}',
        b"[" * 100_000,
    ],
)  # fmt: skip
def test_a_line_that_cannot_be_read_is_left_out_and_said_once(
    estate: Estate, capsys: pytest.CaptureFixture[str], torn: bytes
) -> None:
    _, anna = made(estate, "Anna")
    with (estate.directory / INVITES).open("ab") as file:
        file.write(torn + b"\n" + torn)
    _, carl = made(estate, "Carl")
    assert invited(estate.directory) == [anna, carl], "the torn end is no part of the next line"
    said = capsys.readouterr().err
    assert said.count("problem: ") == 1
    assert f"{estate.directory / INVITES} names in line 2, 3 cannot be read" in said


def test_an_empty_line_names_nobody(estate: Estate, capsys: pytest.CaptureFixture[str]) -> None:
    """As an editor leaves behind with which a torn one was taken out."""
    _, anna = made(estate, "Anna")
    with (estate.directory / INVITES).open("ab") as file:
        file.write(b"\n \r\n")
    _, carl = made(estate, "Carl")
    assert invited(estate.directory) == [anna, carl]
    assert capsys.readouterr().err == ""


def test_a_name_has_no_spaces_around_it_with_which_nobody_would_ever_type_it(estate: Estate) -> None:
    assert made(estate, " Anna Maria ")[1].person == "Anna Maria"
    path = estate.directory / INVITES
    path.write_text(path.read_text().replace("Anna Maria", " Anna Maria "))  # as an earlier version has written it
    assert [row.person for row in invited(estate.directory)] == ["Anna Maria"]
    with pytest.raises(ConfigError, match="a name of 1 to"):
        made(estate, "  ")


@pytest.mark.parametrize("content", [b"", b"5", b"\xff", b'["/ip4/'])
def test_addresses_that_a_power_cut_has_torn_come_again_with_the_backbone(estate: Estate, content: bytes) -> None:
    path = estate.directory / ADDRESSES
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="holds no addresses") as refused:
        made(estate, "Anna")
    assert f"start it: collab-peer backbone {estate.directory}" in refused.value.hint
    path.unlink()
    with pytest.raises(ConfigError, match="no backbone has served"):
        made(estate, "Anna")


def test_addresses_that_may_not_be_read_are_no_backbone_that_never_served(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object, **__: object) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "read_text", forbidden)
    with pytest.raises(ConfigError, match="Permission denied") as refused:
        estate.addresses()
    assert "it belongs to" in refused.value.hint


def test_what_a_later_version_adds_to_a_line_is_passed_over(
    estate: Estate, capsys: pytest.CaptureFixture[str]
) -> None:
    _, anna = made(estate, "Anna")
    path = estate.directory / INVITES
    path.write_text(path.read_text().replace("{", '{"note": "of a later version", ', 1))
    assert invited(estate.directory) == [anna]
    assert "problem" not in capsys.readouterr().err


def test_a_line_that_the_disk_takes_in_part_is_taken_back(estate: Estate) -> None:
    """So full that a part of it still fits."""
    path = estate.directory / INVITES
    made(estate, "Anna")
    before = path.read_bytes()
    with no_file_larger_than(len(before) + 20), pytest.raises(ConfigError, match="cannot write"):
        made(estate, "Bob")
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, "free some space"), (errno.EIO, "backup"), (errno.EACCES, "it belongs to")]
)
def test_a_list_that_cannot_be_written_is_told_with_what_helps(
    estate: Estate, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    made(estate, "Anna")
    before = (estate.directory / INVITES).read_bytes()

    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(inviting.os, "fsync", fail)
    with pytest.raises(ConfigError, match=os.strerror(number)) as refused:
        made(estate, "Bob")
    assert words in refused.value.hint
    assert (estate.directory / INVITES).read_bytes() == before
