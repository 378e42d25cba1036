"""What a page shows of terminals: who typed what, and what was seen then.

A fenced block with the language ``bash`` is typed. Its first line is ``# NAME`` (whose terminal it is; each has a
directory of that name) or ``# NAME: Ctrl+C ...`` (where their last command runs that does not end by itself). A block
with the language ``text`` is what the command before it says, or ``text NAME`` what the one that runs on in NAME's
terminal says since. It may be shortened: each of its lines is looked for. Numbers may differ, and ``...`` stands for
anything.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

FENCE = re.compile(r"```(\w*) ?(\w*)$")
WHO = re.compile(r"# (\w+)(: Ctrl\+C.*)?$")
NUMBER = re.compile(r"\\?[-+]?\d+(?:(?:\\\.|:|\\-)\d+)*(?:e-?\d+)?")
SPACES = re.compile(r"(?:\\ )+")
HERE = re.compile(r"<<'(\w+)'")


@dataclass(frozen=True, slots=True)
class Typed:
    """One command of somebody; empty: Ctrl+C."""

    who: str
    line: str


@dataclass(frozen=True, slots=True)
class Shown:
    """A line that is seen."""

    who: str
    """In whose terminal that runs on; empty: said by the command before."""
    line: str

    def is_in(self, said: str) -> bool:
        """Whether somebody has said it, but for its numbers."""
        return re.search(pattern_of(self.line), said, re.MULTILINE) is not None


def pattern_of(line: str) -> str:
    """A regular expression for what a line of a page stands for."""
    pieces = [NUMBER.sub(lambda _: r"[-+]?\d[\d.:e-]*", re.escape(piece)) for piece in line.split("...")]
    return ".*".join(SPACES.sub(lambda _: r"\s+", piece) for piece in pieces)


def transcript(text: str) -> Iterator[Typed | Shown]:
    """The page's blocks, in their order, line by line; a here-document is part of its command's line.

    Raises:
        ValueError: nobody is named where somebody types.
    """
    for language, name, lines in blocks(text):
        if language == "text":
            yield from (Shown(name, line.strip()) for line in lines if line.strip())
        elif language == "bash":
            yield from _typed(lines)


def blocks(text: str) -> Iterator[tuple[str, str, list[str]]]:
    """Language, second word and lines of each fenced block."""
    opened: tuple[str, str, list[str]] | None = None
    for line in text.splitlines():
        fence = FENCE.match(line)
        if opened is None and fence:
            opened = (fence[1], fence[2], [])
        elif opened is not None and line == "```":
            yield opened
            opened = None
        elif opened is not None:
            opened[2].append(line)


def _typed(lines: list[str]) -> Iterator[Typed]:
    who = WHO.match(lines[0])
    if who is None:
        raise ValueError(f"who types this? its block begins with {lines[0]!r}")
    if who[2]:
        yield Typed(who[1], "")
    rest = iter(lines[1:])
    for line in rest:
        here = HERE.search(line)
        document = list(iter(lambda: next(rest), here[1])) if here else []
        whole = "\n".join([line, *document, here[1]]) if here else line
        if whole.strip():
            yield Typed(who[1], whole)
