"""What others say, as a page may show it: letters only, and no addresses of machines."""

from typing import Any

from collab.net.address_text import ADDRESS

HIDDEN = "(an address)"
MAX_CHARACTERS = 400


def shown(text: str, home: str = "") -> str:
    """Without what a browser or a reader would obey, without addresses, and not longer than a paragraph.

    Args:
        home: a directory of this machine, whose place is nobody else's business.
    """
    if home:
        text = text.replace(home, "DATA_DIR")
    text = "".join(letter if letter.isprintable() else " " for letter in text[: 4 * MAX_CHARACTERS])
    text = ADDRESS.sub(HIDDEN, text)
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"


def short_id(peer: str) -> str:
    """Of somebody without a name that we know: enough to tell two from each other."""
    return f"…{shown(peer[-6:])}"


def finite(figure: Any, digits: int = 6) -> float | None:
    """As JSON has it, with so many digits that count: nothing for NaN and infinity."""
    if figure is None or figure != figure or figure in (float("inf"), float("-inf")):
        return None
    return float(f"{figure:.{digits}g}")
