"""Each option of each command can be a variable that is named after its flag."""

from pathlib import Path

import pytest
import typer
from typer.core import TyperOption
from typer.testing import CliRunner

from peers.cli import app
from peers.variables import variable_of
from tests.peers.test_printed_config import RUN, show

GROUP = typer.main.get_command(app)
OPTIONS = [
    (name, option)
    for name in GROUP.list_commands(GROUP.make_context("collab-peer", [], resilient_parsing=True))  # type: ignore[attr-defined]
    for option in GROUP.get_command(None, name).params  # type: ignore[attr-defined]
    if isinstance(option, TyperOption) and option.name != "help"
]


@pytest.mark.parametrize(("command", "option"), OPTIONS, ids=lambda one: getattr(one, "name", one))
def test_a_variable_has_the_name_of_the_flag(command: str, option: TyperOption) -> None:
    flag = max(option.opts, key=len).removeprefix("--")
    assert option.envvar == variable_of(command, option)
    assert option.envvar == f"COLLAB_{command}_{flag}".upper().replace("-", "_")


def test_what_to_begin_with_can_be_a_variable(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN)
    variables = {"COLLAB_BACKBONE_FROM": "org/name@abc", "COLLAB_BACKBONE_QUIET": "1"}
    _, origins, text = show("backbone", tmp_path, **variables)
    assert "org/name@abc" in text
    assert {name: origins[name] for name in ("from", "quiet")} == {
        "from": "COLLAB_BACKBONE_FROM", "quiet": "COLLAB_BACKBONE_QUIET"
    }  # fmt: skip


def test_a_variable_that_no_option_has_is_refused_and_those_of_other_commands_are_not(tmp_path: Path) -> None:
    for variables, is_refused in (
        ({"COLLAB_BACKBONE_FORM": "org/name"}, True),
        ({"COLLAB_BACKBONE_BEGIN_WITH": "org/name"}, True),
        ({"COLLAB_JOIN_FORM": "x", "COLLAB_HANDED_ON": "x"}, False),
    ):
        wide = {"COLUMNS": "400", **variables}
        done = CliRunner().invoke(app, ["backbone", str(tmp_path), "--print-config"], env=wide)
        assert ("is no option of 'collab-peer backbone'" in done.output) == is_refused
        assert done.exit_code == (2 if is_refused else 1)
    assert CliRunner().invoke(app, ["--help"], env={"COLLAB_BACKBONE_FORM": "x"}).exit_code == 0
