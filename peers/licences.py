"""What the organiser calls a licence, as the metadata of a page on the Hub name it. Pure."""

import re

KNOWN = frozenset((
    "afl-3.0", "agpl-3.0", "apache-2.0", "artistic-2.0", "bigcode-openrail-m", "bigscience-bloom-rail-1.0",
    "bigscience-openrail-m", "bsd", "bsd-2-clause", "bsd-3-clause", "bsd-3-clause-clear", "bsl-1.0", "c-uda", "cc",
    "cc-by-2.0", "cc-by-2.5", "cc-by-3.0", "cc-by-4.0", "cc-by-nc-2.0", "cc-by-nc-3.0", "cc-by-nc-4.0",
    "cc-by-nc-nd-3.0", "cc-by-nc-nd-4.0", "cc-by-nc-sa-2.0", "cc-by-nc-sa-3.0", "cc-by-nc-sa-4.0", "cc-by-nd-4.0",
    "cc-by-sa-3.0", "cc-by-sa-4.0", "cc0-1.0", "cdla-permissive-1.0", "cdla-permissive-2.0", "cdla-sharing-1.0",
    "creativeml-openrail-m", "deepfloyd-if-license", "ecl-2.0", "epl-1.0", "epl-2.0", "etalab-2.0", "eupl-1.1",
    "gemma", "gfdl", "gpl", "gpl-2.0", "gpl-3.0", "isc", "lgpl", "lgpl-2.1", "lgpl-3.0", "lgpl-lr", "llama2",
    "lppl-1.3c", "mit", "mpl-2.0", "ms-pl", "ncsa", "odbl", "odc-by", "ofl-1.1", "openrail", "openrail++",
    "osl-3.0", "pddl", "postgresql", "unknown", "unlicense", "wtfpl", "zlib",
))  # fmt: skip
"""The Hub's own ids; it takes no others as ``license``. What it has added since is named as any other licence."""
SAME = {"cc0": "cc0-1.0"}
SAYS_NOTHING = re.compile(r"-(?:the|licen[cs]e|only|or-later)(?=-|$)")
"""Words, and ends of SPDX's names, that the Hub's ids do not have."""
UNNAMED = "see-the-page"
LONGEST = 64


def licence_metadata(said: str) -> dict[str, str]:
    """``license``, and for one that the Hub does not know ``license_name``: an id, never text of somebody's.

    Args:
        said: by the organiser; empty: nothing.
    """
    if not said.strip():
        return {}
    words = "-" + "-".join(re.findall(r"[a-z0-9.+]+", said.lower()))
    name = words.removeprefix("-")
    short = SAYS_NOTHING.sub("", words).removeprefix("-")
    for one in (name, short, SAME.get(short, "")):
        if one in KNOWN:
            return {"license": one}
    return {"license": "other", "license_name": name.replace("+", "")[:LONGEST].strip("-.") or UNNAMED}
