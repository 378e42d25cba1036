"""The newest lines of a command in a notebook's cell, in place."""

from collections import deque
from collections.abc import Callable, Collection
from typing import Any

LINES, ALL = 30, 2000
"""Of what goes on for long, hours of which would make a notebook of megabytes; and of what ends soon."""
HIDDEN = "[secret]"


def shown(line: str, hidden: Collection[str]) -> str:
    """A line as a cell may have it: none of the texts that nobody is to see, and nothing but text."""
    for text in hidden:
        line = line.replace(text, HIDDEN) if text else line
    return "".join(character if character.isprintable() else " " for character in line).rstrip()


class CellWindow:
    """Shows lines as they come. Outside a notebook they are printed one by one.

    Lines are shown as text, whatever is in them: peers choose their names.
    """

    def __init__(
        self, hidden: Collection[str] = (), num_lines: int = LINES, show: Callable[[str], None] | None = None
    ) -> None:
        """
        Args:
            hidden: texts that nobody is to see.
            num_lines: that are shown, the newest.
            show: gets all that is to be seen, at every change; None: the cell, or standard output.
        """
        self._hidden = hidden
        self._lines: deque[str] = deque(maxlen=num_lines)
        self._show = show or _place_in_cell()

    def add(self, line: str) -> None:
        line = shown(line, self._hidden)
        if self._show is None:
            print(line, flush=True)  # noqa: T201 - there is no cell to show it in
            return
        self._lines.append(line)
        self._show("\n".join(self._lines))


def _place_in_cell() -> Callable[[str], None] | None:
    """What replaces the text at this place of the cell; None: this is no notebook."""
    try:
        from IPython.core.getipython import get_ipython
        from IPython.display import display
    except ImportError:
        return None
    shell = get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    place: Any = display({"text/plain": ""}, raw=True, display_id=True)
    return lambda text: place.update({"text/plain": text}, raw=True)
