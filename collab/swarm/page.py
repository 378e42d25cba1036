"""Which words on one page of the directory are looked at: anybody may write there, under any number of names."""

import random
from collections.abc import Collection, Iterable
from dataclasses import dataclass

CROWD_SUBKEY = "crowd:"
"""Before the name of the backbone that tells of all."""
MAX_ENTRIES = 512
"""Of one page that are looked at: checking a signature takes a quarter of a millisecond."""
MAX_SUMMARIES = 16
"""Among these: an honest swarm has one, and two while another backbone begins to tell."""
MAX_HELPERS = 64
"""Among these that nobody has named: anybody may say to be one."""
MAX_KNOWN = 256
"""Trainers among these that we know already, while there are others: they may have filled the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Whose words we have."""

    peers: Collection[str]
    backbones: Collection[str]
    """Of these, those that the owner has named."""
    helpers: Collection[str]
    """Other backbones and auxiliary peers, whoever says to be one."""
    authors: Collection[str]
    """Whose summaries we have believed."""


def looked_at(names: Collection[str], known: Known, rng: random.Random) -> list[str]:
    """Subkeys of a page in the order in which they are read: summaries, peers that we know, others.

    Of a page that is too long only some: summaries with their authors' own words, named backbones, helpers and other
    peers that we know, and others than the last time, so that whoever comes among thousands, or is hidden behind
    them, is found. By name it would be the same ones each time, and a backbone that is not among them never.
    """
    if len(names) <= MAX_ENTRIES:
        return sorted(names, key=lambda name: (not name.startswith(CROWD_SUBKEY), name not in known.peers, name))

    def some(chosen: Iterable[str]) -> list[str]:
        ordered = sorted(chosen)
        rng.shuffle(ordered)
        return ordered

    believed = {f"{CROWD_SUBKEY}{peer}" for peer in known.authors}
    summaries = some(name for name in names if name.startswith(CROWD_SUBKEY))
    summaries = sorted(summaries, key=lambda name: name not in believed)[:MAX_SUMMARIES]
    first = dict.fromkeys(summaries)
    authors, helpers = (name.removeprefix(CROWD_SUBKEY) for name in summaries), some(known.helpers)
    for name in (*authors, *sorted(known.backbones), *helpers[:MAX_HELPERS]):
        if name in names:
            first[name] = None
    left = [name for name in names if name not in first and not name.startswith(CROWD_SUBKEY)]
    ours = some(name for name in left if name in known.peers)
    others = some(name for name in left if name not in known.peers)
    return [*first, *ours[:MAX_KNOWN], *others, *ours[MAX_KNOWN:]][:MAX_ENTRIES]
