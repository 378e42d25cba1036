"""Whose word about the swarm is shown and told, and where the swarm is by it: anybody may say anything of itself."""

from collections.abc import Callable
from dataclasses import replace

from collab.averaging.agreement import CommitRecord
from collab.config import Run
from collab.swarm.parameter_store.base import lineage_of
from collab.swarm.progress import SwarmView
from collab.swarm.records import PeerRecord
from collab.types import Lineage, PeerId, Role
from peers.summary import history_of, without_impossible


class Credible:
    """Of one peer."""

    def __init__(
        self,
        run: Run,
        era: Callable[[], str],
        rounds: Callable[[], list[CommitRecord]],
        *,
        trusts: Callable[[PeerId], bool],
        version: Callable[[], int | None] = lambda: None,
    ) -> None:
        """
        Args:
            era: of the states that count.
            rounds: the last ones that committed, as far as we know.
            trusts: whether the word of a backbone counts.
            version: of what is stored in a run with parameter servers, where we have the store.
        """
        self.run = run
        self._era, self._rounds, self._trusts, self._version = era, rounds, trusts, version
        self._came_s: float | None = None

    def of(self, view: SwarmView) -> SwarmView:
        """Without those of another history, and without words that cannot be true, or need the owner's grant."""
        era = self._era()
        here = [self._heard(one) for one in view.records if one.era == era or one.role is Role.AUXILIARY]
        return replace(view, records=without_impossible(here, self._rounds()))

    def history(self, view: SwarmView) -> tuple[int, Lineage] | None:
        """Epoch and lineage that the swarm is at; None: no trainer is here.

        The store knows better than any client, who may say anything.
        """
        history, version = history_of(self.run, self.of(view)), self._version()
        return history if history is None or version is None else (version, lineage_of(version, self._era()))

    def came_s(self, view: SwarmView) -> float:
        """When trainers came to where none was, swarm time. Is asked about every view, or does not know."""
        if not self.of(view).num_trainers:
            self._came_s = None
        elif self._came_s is None:
            self._came_s = view.at_s
        return view.at_s if self._came_s is None else self._came_s

    def _heard(self, record: PeerRecord) -> PeerRecord:
        is_word = record.role is not Role.BACKBONE or self._trusts(record.peer)
        return record if is_word else replace(record, checkpoint_epoch=-1)
