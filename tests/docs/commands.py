"""The commands that the documentation tells people to type, and whether the program takes them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from peers.cli import app

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^\s*```(\w*)(?: \w+)?\s*$")
PROGRAM = "collab-peer"
REFERENCE = "\n## What the owner can order\n"
"""Where the transcript of docs/organise.md ends."""
WRONG_USE = typer.BadParameter.__mro__[1]
"""What all complaints about a command line have in common; typer has no name for it."""


@dataclass(frozen=True, slots=True)
class Typed:
    """One command line of a page."""

    page: str
    line: str
    arguments: tuple[str, ...]
    """After the program's name."""


def commands_of(page: Path, after: str = "") -> Iterator[Typed]:
    """Those of the program in the page's code blocks; ``after`` a heading, if one is named."""
    is_code = False
    for line in _rest(page, after).splitlines():
        if FENCE.match(line):
            is_code = not is_code
        elif is_code and line.strip().startswith(f"{PROGRAM} "):
            words, _ = words_of(line)
            yield Typed(str(page.relative_to(ROOT)), line.strip(), tuple(words[1:]))


def _rest(page: Path, after: str) -> str:
    text = page.read_text(encoding="utf-8")
    return text.partition(after)[2] if after else text


def words_of(line: str) -> tuple[list[str], str]:
    """A command's words without its comment, and the file that its output goes to; empty: none."""
    words = shlex.split(line, comments=True)
    return (words[:-2], words[-1]) if len(words) > 2 and words[-2] == ">" else (words, "")


def pages() -> list[Path]:
    """All that people read."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def complaint(arguments: tuple[str, ...]) -> str:
    """What the program has against a command line, variables of the environment included; empty: nothing.

    It is read and checked, and not run.
    """
    try:
        options_of(arguments)
    except LookupError as error:
        return f"no command {error}"
    except WRONG_USE as error:
        return str(error.format_message())
    return ""


def options_of(arguments: tuple[str, ...]) -> dict[str, Any]:
    """What the program reads in a command line and the environment; raises what it has against them."""
    name, *rest = arguments
    group: Any = typer.main.get_command(app)
    if (command := group.get_command(None, name)) is None:
        raise LookupError(name)
    return dict(command.make_context(name, rest).params)
