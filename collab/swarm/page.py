"""Which words on one page of the directory are looked at: anybody may write there, as often as under names at hand."""

import random
from collections.abc import Collection, Iterable

CROWD_SUBKEY = "crowd:"
"""Before the name of the backbone that tells of all."""
MAX_ENTRIES = 512
"""Of one page that are looked at: checking a signature takes a quarter of a millisecond."""
MAX_SUMMARIES = 16
"""Among these: an honest swarm has one, and two while another backbone begins to tell."""


def looked_at(
    names: Collection[str], known: Collection[str], authors: Collection[str], rng: random.Random
) -> list[str]:
    """Subkeys of a page in the order in which they are read: summaries, peers that we know, others.

    Of a page that is too long only some: summaries with their authors' own words, whom we know, and others than the
    last time, so that whoever comes among thousands, or is hidden behind them, is found. By name it would be the same
    ones each time, and a backbone that is not among them never.

    Args:
        known: peers whose words we have.
        authors: peers whose summaries we have believed.
    """
    if len(names) <= MAX_ENTRIES:
        return sorted(names, key=lambda name: (not name.startswith(CROWD_SUBKEY), name not in known, name))

    def some(chosen: Iterable[str], first: Collection[str]) -> list[str]:
        ordered = sorted(chosen)
        rng.shuffle(ordered)
        return sorted(ordered, key=lambda name: name not in first)

    believed = {f"{CROWD_SUBKEY}{peer}" for peer in authors}
    summaries = some((name for name in names if name.startswith(CROWD_SUBKEY)), believed)[:MAX_SUMMARIES]
    own_words = [author for name in summaries if (author := name.removeprefix(CROWD_SUBKEY)) in names]
    others = some((n for n in names if not n.startswith(CROWD_SUBKEY) and n not in own_words), known)
    return [*summaries, *own_words, *others][:MAX_ENTRIES]
