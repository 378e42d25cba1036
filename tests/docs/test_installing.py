"""No text sends anybody to a package index for collab: it is not there, and what is called so is somebody else's."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.commands import ROOT
from tests.docs.test_footguns import JOINED

FROM_AN_INDEX = re.compile(r"\bpip3? install(?:\s+-\S+)*\s+[\"'\\]*collab(?![\w-])|\bcollab(?:\[\w+\])?[=<>~]=")
"""Not the file of a wheel (``collab-0.1.0-...``), and not what is installed from a repository's address."""


def places() -> Iterator[Path]:
    """Of what people read: the program's own texts, its scripts and pages."""
    for folder, pattern in (("collab", "*.py"), ("peers", "*.py"), ("scripts", "*.*"), ("notebooks", "*.ipynb")):
        yield from (ROOT / folder).rglob(pattern)
    yield from (path for path in (ROOT / "docs").glob("*.md") if path.name != "progress.md")
    yield ROOT / "README.md"


@pytest.mark.parametrize(
    "text",
    [
        "pip install --upgrade collab, and join", "pip install 'collab[redis]'", "python -m pip install -q collab",
        "pip install --upgrade 'collab>={version}'", "install collab=={version} here",
    ],
)  # fmt: skip
def test_such_a_text_is_known(text: str) -> None:
    assert FROM_AN_INDEX.search(text)


@pytest.mark.parametrize(
    "text",
    [
        "pip install collab-0.1.0-py3-none-any.whl", "pip install git+<address of this repository>",
        "pip install wandb, beside collab", "if collab == other",
    ],
)  # fmt: skip
def test_another_one_is_not_taken_for_it(text: str) -> None:
    assert not FROM_AN_INDEX.search(text)


def test_nothing_that_people_read_says_so() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {text[0]}"
        for path in sorted(places())
        for text in FROM_AN_INDEX.finditer(JOINED.sub("", path.read_text(encoding="utf-8", errors="replace")))
    ]
    assert found == []
