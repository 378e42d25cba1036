"""What docs/footguns.md says is seen on a screen is what the program says."""

import errno
import os
import re
from collections.abc import Iterator

import pytest

from tests.docs.commands import ROOT

QUOTED = re.compile(r"`([^`]+)`")
VARIES = re.compile(r"^problem: |^reach: client: |^run_id: |\.\.\.|\S*\d\S*|\S*/\S*|\bAnna\b")
"""What is put before a text elsewhere, and what differs each time: numbers, places, names."""
JOINED = re.compile(r"[\"']\s*\n\s*f?[\"']")
"""Between two parts of a text that goes on in the next line."""
SAID_BY_OTHERS = " ".join(map(os.strerror, errno.errorcode)) + " Input should be a valid string, got False"
"""By the operating system, and by pydantic."""


def quotes() -> Iterator[str]:
    """Of the second column: sentences, not names of fields and commands."""
    for line in (ROOT / "docs" / "footguns.md").read_text(encoding="utf-8").splitlines():
        cells = line.split("|")
        if len(cells) > 3:
            yield from (text for text in QUOTED.findall(cells[2]) if len(text.split()) > 3)


def source() -> str:
    """All texts of the program, those over several lines in one piece."""
    files = [*(ROOT / "collab").rglob("*.py"), *(ROOT / "peers").rglob("*.py"), *(ROOT / "scripts").glob("*.sh")]
    return JOINED.sub("", "\n".join(path.read_text(encoding="utf-8") for path in files))


QUOTES = sorted(set(quotes()))
SOURCE = source() + SAID_BY_OTHERS


def pieces(text: str) -> list[str]:
    """What does not vary, in words enough to be known again."""
    found = (piece.strip(" :;,()") for piece in VARIES.split(text))
    return [piece for piece in found if len(piece.split()) > 2]


def test_sentences_are_quoted() -> None:
    assert len(QUOTES) > 20
    assert not any(piece in SOURCE for piece in pieces("this machine's clock is slow by 600 s"))


@pytest.mark.parametrize("text", QUOTES)
def test_the_program_says_what_the_page_quotes(text: str) -> None:
    for piece in pieces(text):
        assert piece in SOURCE, f"nothing says {piece!r}"
