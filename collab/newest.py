"""What was made of the newest versions of things that are read again and again, until there is a newer one."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")

VERSIONS = 2
"""Of each name: who reads from several places gets the one before, too, for a while."""
FORGOTTEN_AFTER = 3
"""A name that nobody asked for while each of the others said so many new things is of somebody who has gone. Where more
new names come than one for two new things of the old ones, only ``most_names`` bounds what is remembered."""


class Newest(Generic[T]):
    """Bounded by how many names are asked for, not by how often something new is said under them, nor by how many there
    ever were: so memory does not grow with time where few peers speak at a time.
    """

    def __init__(self, most_names: int) -> None:
        """
        Args:
            most_names: of more, those that were asked for longest ago are forgotten.
        """
        self._most_names = most_names
        self._known: OrderedDict[Hashable, tuple[tuple[bytes, T], ...]] = OrderedDict()
        self._asked: dict[Hashable, int] = {}
        """Of each name, how many new things had been said when it was asked for last."""
        self._said = 0

    def __len__(self) -> int:
        return len(self._known)

    def get(self, name: Hashable, version: bytes) -> T | None:
        """What was made of this very version; None: it is not known."""
        known = self._known.get(name)
        if known is None:
            return None
        self._touch(name)
        return next((made for other, made in known if other == version), None)

    def put(self, name: Hashable, version: bytes, made: T) -> T:
        """Remember it, and give it back."""
        self._said += 1
        self._known[name] = ((version, made), *self._known.get(name, ())[: VERSIONS - 1])
        self._touch(name)
        if len(self._known) > self._most_names or self._has_gone(next(iter(self._known))):
            del self._asked[self._known.popitem(last=False)[0]]
        return made

    def _touch(self, name: Hashable) -> None:
        self._known.move_to_end(name)
        self._asked[name] = self._said

    def _has_gone(self, name: Hashable) -> bool:
        return self._said - self._asked[name] > FORGOTTEN_AFTER * len(self._known)
