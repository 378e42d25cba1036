"""What an organiser has written into the README on the Hub, which goes on with each new one. Pure."""

import re
from typing import Any

import yaml

MARK = "<!-- What stands below this line is the organiser's, and stays. -->"
MOST_BYTES = 1 << 20
"""Of a README that is looked at."""
MOST_TAGS = 50
METADATA = re.compile(r"\A---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)


def with_organisers_part(card: bytes, before: bytes | None) -> bytes:
    """A card of ours, with what its organiser has added to the one before: keys of the metadata that are not ours,
    tags, and everything below the mark.

    Args:
        before: whatever somebody has written; None: nothing.
    """
    ours = card.decode()
    theirs = before.decode("utf-8", "replace") if before is not None else ""
    found = METADATA.match(ours)
    if found is None:
        raise ValueError("a card of ours begins with its metadata")
    head, body = _metadata(found[1]), ours[found.end() :].rstrip("\n")
    told = METADATA.match(theirs)
    merged = _merged(head, _metadata(told[1]) if told is not None else {})
    _, _, below = theirs.partition(MARK)
    metadata = yaml.safe_dump(merged, sort_keys=True, allow_unicode=True)
    return f"---\n{metadata}---\n{body}\n\n{MARK}{below.rstrip() or ''}\n".encode()


def _merged(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    tags = theirs.get("tags")
    added = [tag for tag in tags if isinstance(tag, str) and tag not in ours["tags"]] if isinstance(tags, list) else []
    return {**theirs, **ours, "tags": [*ours["tags"], *added[:MOST_TAGS]]}


def _metadata(text: str) -> dict[str, Any]:
    """What can be read of it, as far as its keys are words."""
    try:
        told = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):
        return {}
    return {key: value for key, value in told.items() if isinstance(key, str)} if isinstance(told, dict) else {}
