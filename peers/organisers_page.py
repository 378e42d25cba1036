"""What an organiser has written into the README on the Hub, which goes on with each new one. Pure."""

import re

import yaml

MARK = "<!-- What stands below this line is the organiser's, and stays. -->"
MOST_BYTES = 1 << 20
"""Of a README that is looked at."""
MOST_TAGS = 50
WORD, MAPPING = "tag:yaml.org,2002:str", "tag:yaml.org,2002:map"
METADATA = re.compile(r"\A---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)

Pairs = dict[str, tuple[yaml.Node, yaml.Node]]
"""A key and its value as they are written, by the key."""


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
    told = METADATA.match(theirs)
    merged = _merged(_pairs(found[1]), _pairs(told[1]) if told is not None else {})
    _, _, below = theirs.partition(MARK)
    metadata = yaml.serialize(merged, Dumper=yaml.SafeDumper, allow_unicode=True)
    body = ours[found.end() :].rstrip("\n")
    return f"---\n{metadata}---\n{body}\n\n{MARK}{below.rstrip() or ''}\n".encode()


def _merged(ours: Pairs, theirs: Pairs) -> yaml.MappingNode:
    _, tags = ours["tags"]
    if "tags" in theirs and isinstance(theirs["tags"][1], yaml.SequenceNode):
        words = [tag for tag in theirs["tags"][1].value if isinstance(tag, yaml.ScalarNode)]
        known = {tag.value for tag in tags.value}
        tags.value += [tag for tag in words if tag.value not in known][:MOST_TAGS]
    pairs = {**theirs, **ours}
    return yaml.MappingNode(MAPPING, [pairs[key] for key in sorted(pairs)])


def _pairs(text: str) -> Pairs:
    """What can be read of it, as far as its keys are words: as it is written, since what it means is not the same to
    everybody. ``language: no`` is Norwegian on the Hub, and false to whoever reads YAML here.
    """
    try:
        yaml.safe_load(text)  # nothing but plain values
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):
        return {}
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return {key.value: (key, value) for key, value in pairs if key.tag == WORD}
