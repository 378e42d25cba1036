"""How far peers are believed about how much they have computed: no more than their share of the mean may be."""

import math
from collections.abc import Mapping

from collab.averaging.robust import capped
from collab.types import PeerId

MOST_CLAIMED = float(2**53)
"""Of samples, or of them a second: what nobody computes, and a float counts exactly. Sums of more may overflow."""


def believed(claims: Mapping[PeerId, float], max_share: float) -> float:
    """Samples that all have together, where each counts for the batch as it will weigh in the mean.

    Whoever claims a billion samples would otherwise call everybody to a round after every microbatch. Of fewer than
    ``1 / max_share`` peers one must have more than its share; then everybody is believed.

    Args:
        claims: samples of each trainer.
        max_share: of the run, in (0, 1].
    """
    some = {peer: samples for peer, samples in claims.items() if samples > 0}
    if len(some) * max_share < 1:
        return math.fsum(claims.values())
    return math.fsum(capped(some, max_share).values())
