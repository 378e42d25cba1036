"""When what a backbone holds is of a history that the trainers have left."""

from collab.swarm.progress import SwarmView

LEFT_BEHIND_S = 30.0
"""When trainers have gone on for so long from an earlier epoch than our newest checkpoint's, they have left it."""


class LeftBehind:
    """Of one backbone."""

    def __init__(self) -> None:
        self._since: tuple[float, int] | None = None
        """When trainers were first seen at an earlier epoch than ours, and at which."""

    def epoch(self, others: SwarmView, held: int, now_s: float) -> int | None:
        """The one from which the trainers have gone on without what we hold; None: they have not.

        Args:
            others: the swarm without ourselves.
            held: our epoch.
        """
        consensus = others.consensus()
        if consensus is None or others.is_at_rest() or consensus[0] >= held:
            self._since = None
        elif self._since is None:
            self._since = now_s, consensus[0]
        elif now_s - self._since[0] >= LEFT_BEHIND_S and consensus[0] > self._since[1]:
            epoch, self._since = self._since[1], None
            return epoch
        return None
