"""What the notebooks call, without processes."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pytest

from collab.errors import ConfigError
from peers import notebook

started: list[tuple[list[str], dict[str, str], list[str]]] = []


class Recorded:
    """Stands in for a command, and keeps how it was started."""

    def __init__(
        self, words: Sequence[str], environment: Mapping[str, str] | None = None, hidden: Collection[str] = ()
    ) -> None:
        started.append((list(words), dict(environment or {}), list(hidden)))

    def follow(self, num_lines: int = 0) -> str:
        return ""


STORED = {"HF_TOKEN": "hf_abc", "WANDB_API_KEY": "wb_abc"}


def stored(*names: str) -> dict[str, str]:
    """What the host has of these."""
    return {name: STORED[name] for name in names}


@pytest.fixture(autouse=True)
def _recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    started.clear()
    monkeypatch.setattr(notebook, "CellCommand", Recorded)


def test_joining_dials_only_hands_secrets_over_and_hides_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebook, "secrets", stored)
    notebook.join(" WORD\n", name=" Anna ", keep=tmp_path)
    ((words, environment, hidden),) = started
    assert words == ["join", "WORD", "--reach", "client", "--name", "Anna", "--keep", str(tmp_path)]
    assert environment == {"HF_TOKEN": "hf_abc"}, "and it works on the machine's own disk"
    assert hidden == ["hf_abc"]


def test_a_command_gets_those_secrets_that_it_has_a_use_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "secrets", stored)
    notebook.start("backbone", "my-run")
    notebook.run("status", "WORD")
    (_, backbone, hidden), (_, status, _) = started
    assert backbone == {**notebook.ONE_THREAD, "HF_TOKEN": "hf_abc", "WANDB_API_KEY": "wb_abc"}
    assert hidden == ["hf_abc", "wb_abc"], "and nothing else of its environment is hidden"
    assert status == {}


def test_joining_without_a_name_or_a_place_leaves_both_to_the_command() -> None:
    notebook.join("WORD", options=["--epochs", "3"])
    assert started == [(["join", "WORD", "--reach", "client", "--epochs", "3"], {}, [])]


def test_an_empty_form_is_told_what_is_missing() -> None:
    with pytest.raises(ConfigError, match="there is no invite") as told:
        notebook.join("  ")
    assert "form" in told.value.hint
    assert started == []
