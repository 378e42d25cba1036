"""A parameter store for each era of a run: after a rollback versions are counted anew, apart from what was given up."""

import threading
from collections.abc import Callable, Iterable

from collab.swarm.parameter_store.base import ParameterStore


class EraStores:
    """Of one backbone. Any thread may ask; ``of`` may block for as long as a disk or a network does."""

    def __init__(
        self, open_one: Callable[[str], ParameterStore], erase_one: Callable[[str], None] = lambda _: None
    ) -> None:
        """
        Args:
            open_one: makes the store of an era: the mark of a rollback, or empty for what was before the first.
            erase_one: leaves nothing of the store of an era, if there is one.
        """
        self._open, self._erase, self._lock = open_one, erase_one, threading.Lock()
        self._opened: dict[str, ParameterStore] = {}

    def of(self, era: str) -> ParameterStore:
        """The store of ``era``, opened when it is first asked for.

        Raises:
            StateError: it does not answer.
        """
        with self._lock:
            if era not in self._opened:
                self._opened[era] = self._open(era)
            return self._opened[era]

    def erase(self, eras: Iterable[str]) -> None:
        """Leave nothing of the stores of these.

        Raises:
            StateError: one does not answer, or cannot be removed.
        """
        with self._lock:
            for era in eras:
                if (store := self._opened.pop(era, None)) is not None:
                    store.close()
                self._erase(era)

    def close(self) -> None:
        """Of all that were opened."""
        with self._lock:
            for store in self._opened.values():
                store.close()
            self._opened.clear()
