"""What a command would go by, and where it has each value from."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from peers.cli import app

RUN = """\
run_id: shown
hub_repo: org/model
task: {name: image_classification, hidden_sizes: [32]}
strategy: {name: dedloc, target_batch_size: 64}
"""


def show(*words: str | Path, **variables: str) -> tuple[dict[str, dict[str, object]], dict[str, str], str]:
    """Values, origins by option or field, and the text."""
    result = CliRunner().invoke(
        app, [*map(str, words), "--print-config"], env=variables, catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    rows = [line.rpartition(" # ") for line in result.stdout.splitlines() if " # " in line]
    origins = {row.strip().partition(":")[0]: origin for row, _, origin in rows}
    return yaml.safe_load(result.stdout), origins, result.stdout


def test_each_value_of_a_backbone_names_where_it_comes_from(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN)
    values, origins, text = show("backbone", tmp_path, "--host", "127.0.0.1", COLLAB_BACKBONE_PORT="4000")
    options, run = values["options"], values["run"]
    assert (options["host"], origins["host"]) == ("127.0.0.1", "flag")
    assert (options["port"], origins["port"]) == (4000, "COLLAB_BACKBONE_PORT")
    assert (options["hub-repo"], origins["hub-repo"]) == ("org/model", "run file")
    assert (options["hub-every"], origins["hub-every"]) == (60.0, "default")
    assert (options["track"], origins["track"]) == ("auto", "default")
    assert (run["run_id"], origins["run_id"]) == ("shown", "run file")
    assert run["task"] == {**run["task"], "hidden_sizes": [32]}  # type: ignore[dict-item]
    assert origins["hidden_sizes"] == "run file"
    assert (run["seed"], origins["seed"]) == (0, "default")
    assert (origins["learning_rate"], origins["every_epochs"]) == ("default", "default")
    assert "print-config" not in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.yaml"], "nothing was started"


def test_a_flag_counts_before_the_variable_and_the_run_file(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN)
    values, origins, _ = show("backbone", tmp_path, "--hub-repo", "a/b", COLLAB_BACKBONE_HUB_REPO="c/d")
    assert (values["options"]["hub-repo"], origins["hub-repo"]) == ("a/b", "flag")
    values, origins, _ = show("backbone", tmp_path, COLLAB_BACKBONE_HUB_REPO="c/d")
    assert (values["options"]["hub-repo"], origins["hub-repo"]) == ("c/d", "COLLAB_BACKBONE_HUB_REPO")


def test_addresses_to_announce_are_shown_as_they_go_into_invites(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN)
    both = ["/ip4/203.0.113.7/tcp/4000", "/dns4/example.org/tcp/4001"]
    values, origins, _ = show("backbone", tmp_path, COLLAB_BACKBONE_ANNOUNCE="203.0.113.7:4000  example.org:4001")
    assert (values["options"]["announce"], origins["announce"]) == (both, "COLLAB_BACKBONE_ANNOUNCE")
    flags = [word for address in both for word in ("--announce", address)]
    values, origins, _ = show("backbone", tmp_path, *flags, COLLAB_BACKBONE_ANNOUNCE="198.51.100.1:1")
    assert (values["options"]["announce"], origins["announce"]) == (both, "flag")
    assert show("backbone", tmp_path, COLLAB_BACKBONE_ANNOUNCE="")[0]["options"]["announce"] == []


def test_where_to_listen_is_an_address(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN)
    assert show("backbone", tmp_path)[0]["options"]["host"] == "0.0.0.0"
    assert show("backbone", tmp_path, "--host", "localhost")[0]["options"]["host"] == "127.0.0.1"
    assert show("join", "an-invite", "--host", "localhost")[0]["options"]["host"] == "127.0.0.1"
    assert show("join", "an-invite")[0]["options"]["host"] is None
    for words in (("backbone", str(tmp_path)), ("join", "an-invite")):
        result = CliRunner().invoke(app, [*words, "--host", "example.org"], env={"COLUMNS": "200"})
        assert result.exit_code == 2
        assert "expected an IPv4 address of this machine" in result.output


@pytest.mark.parametrize("word", ["an-invite", "org/model"])
def test_a_peer_shows_its_options_without_looking_for_the_run(word: str, tmp_path: Path) -> None:
    store = "redis://user:the-password@host:6379/0"
    chosen = ("--data-dir", tmp_path / "here", "--when", "22:00-07:00", "--store", store)
    values, origins, text = show("join", word, *chosen)
    options = values["options"]
    assert options["data-dir"] == str(tmp_path / "here")
    assert (options["when"], origins["when"]) == ("22:00-07:00", "flag")
    assert (options["monthly-gb"], origins["monthly-gb"]) == (None, "default")
    assert options["store"] == "redis://[secret]@host:6379/0"
    assert "the-password" not in text
    assert word not in text, "an invite is a key"
    assert "run" not in values
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize(
    ("store", "told"),
    [
        ("rediss://user:the-p@ssword@host:6379/0", "rediss://[secret]@host:6379/0"),
        ("unix:///run/redis.sock?db=0&password=the-p@ssword", "unix:///run/redis.sock?db=0&password=[secret]"),
        ("redis://host:6379/0?password=ssword#0", "redis://host:6379/0?password=[secret]#0"),
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("here@there.sqlite", "here@there.sqlite"),
    ],
)
def test_no_password_of_a_store_is_shown_wherever_its_address_has_it(store: str, told: str) -> None:
    values, _, text = show("join", "an-invite", "--store", store)
    assert values["options"]["store"] == told
    assert "ssword@" not in text


def test_a_run_file_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["backbone", str(tmp_path), "--print-config"])
    assert result.exit_code == 1
    assert "make one with 'collab-peer init DIR'" in result.output
