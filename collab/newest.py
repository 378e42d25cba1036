"""What was made of the newest versions of things that are read again and again, until there is a newer one."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")

VERSIONS = 2
"""Of each name: who reads from several places gets the one before, too, for a while."""


class Newest(Generic[T]):
    """Bounded by how many names there are, not by how often something new is said under them: so memory does not grow
    with time where the same few peers speak.
    """

    def __init__(self, most_names: int) -> None:
        """
        Args:
            most_names: of more, those that were asked for longest ago are forgotten.
        """
        self._most_names = most_names
        self._known: OrderedDict[Hashable, tuple[tuple[bytes, T], ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, name: Hashable, version: bytes) -> T | None:
        """What was made of this very version; None: it is not known."""
        known = self._known.get(name)
        if known is None:
            return None
        self._known.move_to_end(name)
        return next((made for other, made in known if other == version), None)

    def put(self, name: Hashable, version: bytes, made: T) -> T:
        """Remember it, and give it back."""
        self._known[name] = ((version, made), *self._known.get(name, ())[: VERSIONS - 1])
        self._known.move_to_end(name)
        if len(self._known) > self._most_names:
            self._known.popitem(last=False)
        return made
