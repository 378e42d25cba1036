"""The notebooks as files: valid, without outputs, and thin."""

import ast
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = sorted((ROOT / "notebooks").glob("*.ipynb"))
NAMES = ["join_colab", "join_kaggle", "organise_a_run", "strategies_compared"]
STEPS = ["rules", "form", "package", "install", "join"]
MOST_LINES = 32
"""Of a cell: what needs more belongs into the package, with its tests."""


def test_all_notebooks_are_there() -> None:
    assert [path.stem for path in FILES] == NAMES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_notebook_is_valid_and_holds_nothing_of_anybodys_run(path: Path) -> None:
    book = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    nbformat.validate(book)
    assert (book.nbformat, book.nbformat_minor) == (4, 5)
    for cell in book.cells:
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None), cell.id
    assert len({cell.id for cell in book.cells}) == len(book.cells)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_cells_are_thin_and_no_failing_command_passes_unseen(path: Path) -> None:
    book = nbformat.read(path, as_version=4)
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    assert [cell.id for cell in cells if "parameters" in cell.metadata.get("tags", [])] in (["form"], ["parameters"])
    for cell in cells:
        assert len(cell.source.splitlines()) <= MOST_LINES, cell.id
        tree = ast.parse(cell.source)  # so neither !commands, whose failure fails no cell, nor %magics
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        for call in calls:
            if ast.unparse(call.func) == "subprocess.run":
                assert "check=True" in ast.unparse(call)
        assert not [call for call in calls if ast.unparse(call.func) in ("os.system", "subprocess.Popen")]


def test_what_notebooks_say_passes_the_linter() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--quiet", str(ROOT / "notebooks")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("stem", ["join_colab", "join_kaggle"])
def test_who_joins_reads_the_rules_before_the_form(stem: str) -> None:
    book = nbformat.read(ROOT / "notebooks" / f"{stem}.ipynb", as_version=4)
    ids = [cell.id for cell in book.cells]
    assert [name for name in ids if name in STEPS] == STEPS
    rules = next(cell.source for cell in book.cells if cell.id == "rules")
    assert "account" in rules
    assert "https://" in rules


@pytest.mark.parametrize("stem", ["join_colab", "join_kaggle"])
def test_what_is_pasted_into_the_form_may_end_in_a_blank(stem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    book = nbformat.read(ROOT / "notebooks" / f"{stem}.ipynb", as_version=4)
    source = next(cell.source for cell in book.cells if cell.id == "package")
    installed: list[str] = []
    monkeypatch.setattr(subprocess, "run", lambda words, check: installed.append(words[-1]))
    for package in (" git+https://host/collab \n", " "):
        exec(source, {"package": package})
    assert installed == ["git+https://host/collab"]
