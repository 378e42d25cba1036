"""What others say, as a page may show it: letters only, and no addresses of machines."""

import os
from functools import cache
from pathlib import Path
from typing import Any

from collab.net.address_text import ADDRESS

HIDDEN = "(an address)"
MAX_CHARACTERS = 400


def shown(text: str, home: str = "") -> str:
    """Without what a browser or a reader would obey, without addresses, and not longer than a paragraph.

    Args:
        home: the data directory on this machine. Where it is, or the run's beside it, or what is in the user's own, is
            nobody else's business.
    """
    for place, name in _hidden(home) if home else ():
        text = text.replace(place, name)
    text = "".join(letter if letter.isprintable() else " " for letter in text[: 4 * MAX_CHARACTERS])
    text = ADDRESS.sub(HIDDEN, text)
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"


@cache
def _hidden(home: str) -> tuple[tuple[str, str], ...]:
    """Directories, the innermost first, and what is shown in their place."""
    run, user = Path(home).parent, Path(os.environ.get("HOME", ""))
    places = [(home, "DATA_DIR"), (str(run), "RUN_DIR"), (str(user), "~")]
    return tuple((place, name) for place, name in places if len(Path(place).parts) > 1 + (name == "RUN_DIR"))


def short_id(peer: str) -> str:
    """Of somebody without a name that we know: enough to tell two from each other."""
    return f"…{shown(peer[-6:])}"


def finite(figure: Any, digits: int = 6) -> float | None:
    """As JSON has it, with so many digits that count: nothing for NaN and infinity."""
    if figure is None or figure != figure or figure in (float("inf"), float("-inf")):
        return None
    return float(f"{figure:.{digits}g}")
