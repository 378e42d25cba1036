"""The first words of ``join``: before anything heavy is loaded; an invite that cannot be used ends it there."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from collab.errors import InviteError
from collab.swarm.access import Grant, Papers, pack_grant
from collab.swarm.identity import Identity
from collab.swarm.invite import Invite, write_invite
from collab.types import Role
from peers.cli import app
from peers.hub_lookup import place_of, word_of
from peers.invites import LONGEST_NAME, first_words
from tests.architecture import HEAVY, heavy_starts, parse

OWNER = Identity.from_seed(bytes(32))
ADDRESS = f"/ip4/127.0.0.1/tcp/4001/p2p/{OWNER.peer_id}"


def invite(papers: Papers | None = None, addresses: int = 1) -> str:
    places = (ADDRESS,) * addresses
    return write_invite(
        Invite(run_id="my-run", fingerprint="f" * 64, owner=OWNER.peer_id, addresses=places, papers=papers), OWNER
    )


def test_the_run_and_who_invites_are_named(tmp_path: Path) -> None:
    words = first_words(invite())
    assert words.startswith("joining my-run: ")
    assert OWNER.peer_id in words
    assert "1 address of" in words
    assert "2 addresses of" in first_words(invite(addresses=2))
    (tmp_path / "invite.txt").write_text(invite())
    assert first_words(str(tmp_path / "invite.txt")) == words


def test_an_invite_for_one_person_says_so() -> None:
    key = Identity.from_seed(bytes([1]) * 32)
    grant = Grant(
        fingerprint="f" * 64, key=key.peer_id, person="Anna", devices=1, expires_at=2e9, role=Role.TRAINER
    )
    assert "for you alone" in first_words(invite(Papers(grant=pack_grant(grant, OWNER), key=key)))


def test_of_a_name_on_the_hub_nothing_is_known_yet() -> None:
    assert first_words("org/name") == "joining org/name: getting ready ..."


@pytest.mark.parametrize("text", ["hello", "collab2-nonsense", "collab1-old", "x" * 400])
def test_what_is_no_invite_is_refused_at_once(text: str) -> None:
    with pytest.raises(InviteError):
        first_words(text)


@pytest.mark.parametrize("text", ["../anna.invite", "invites/anna.invite", "anna.txt", "./anna", "a/b/anna", "~/anna"])
def test_a_file_that_is_not_there_is_named_and_nobody_is_told_to_copy_an_invite(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is it looked for on the Hub, where a repository could be called like the second one."""
    monkeypatch.chdir(tmp_path)
    assert place_of(text) is None
    with pytest.raises(InviteError, match=f"^there is no file {Path(text)}") as refused:
        first_words(word_of(text))
    assert str(tmp_path) in refused.value.hint
    assert "copy" not in refused.value.hint


def test_a_directory_is_no_invite_and_its_owner_is_told_how_one_is_made(tmp_path: Path) -> None:
    with pytest.raises(InviteError, match="is a directory, not an invite") as refused:
        first_words(str(tmp_path))
    assert f"collab-peer invite {tmp_path} --name" in refused.value.hint


def test_a_word_that_is_neither_an_invite_nor_a_file_is_shown_in_part_only() -> None:
    """It may be the end of an invite, in which its key is."""
    with pytest.raises(InviteError, match="begins with 'collab2-', and there is no file of that name") as refused:
        first_words("a" * 90)
    assert "a" * 25 not in str(refused.value)


@pytest.mark.parametrize("text", ["org/name", "org/llama-3.1", "org/name@main", "org/name@refs/pr/3"])
def test_names_on_the_hub_stay_names_on_the_hub(text: str) -> None:
    place = place_of(text)
    assert place is not None
    assert str(place).startswith(text.removesuffix("@main"))


def test_status_takes_no_invite_for_a_directory() -> None:
    """It is longer than a directory's name can be."""
    word = invite(addresses=4)
    assert len(word) > LONGEST_NAME
    result = CliRunner().invoke(app, ["status", word[:-7]])
    assert result.exit_code == 1
    assert "cut or garbled" in result.output


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--reach", "relayed"], "--reach"),
        (["--role", "owner"], "--role"),
        (["--priority", "high"], "--priority"),
        (["--plain", "--quiet"], "--plain, --quiet and --json"),
        (["--monthly-gb", "0"], "--monthly-gb"),
        (["--gpu-memory", "-1"], "--gpu-memory"),
    ],
)
def test_an_option_that_cannot_be_meant_is_told_of_before_the_invite_is_looked_at(
    options: list[str], named: str
) -> None:
    result = CliRunner().invoke(app, ["join", "collab2-x", *options], env={"COLUMNS": "200"})
    assert result.exit_code == 2, result.output
    assert named in result.output


def test_nothing_that_takes_seconds_is_loaded_for_them() -> None:
    root = Path(__file__).resolve().parents[2]
    files = [path for package in ("collab", "peers") for path in sorted((root / package).rglob("*.py"))]
    modules = parse({".".join(p.relative_to(root).with_suffix("").parts): p.read_text("utf-8") for p in files})
    assert heavy_starts(modules, rooms=("peers.invites", "peers.process"), heavy=HEAVY - {"numpy"}) == []
