"""What is asked of parameter stores for clients, who may be anybody: what a store complains of is not for them."""

from collections.abc import Callable
from typing import TypeVar

from collab.errors import StateError
from collab.ports import Compute
from collab.swarm.parameter_store.base import ParameterStore
from collab.swarm.parameter_store.eras import EraStores

T = TypeVar("T")
STORE_FAILS = "the parameter store fails"
"""All that clients hear of it."""


class StoreCalls:
    """Of one backbone."""

    def __init__(self, compute: Compute, stores: EraStores, on_failure: Callable[[StateError], None]) -> None:
        """
        Args:
            on_failure: hears what a store complains of, for those who keep it.
        """
        self._compute, self._stores, self._on_failure = compute, stores, on_failure

    def of(self, era: str) -> ParameterStore:
        """See ``EraStores``; within ``ask``."""
        return self._stores.of(era)

    async def ask(self, call: Callable[[], T]) -> T:
        """What ``call`` returns, which may block.

        Raises:
            StateError: the store fails; the text may be told to anybody.
        """
        try:
            return await self._compute.beside(call)
        except StateError as error:
            self._on_failure(error)
            raise StateError(STORE_FAILS) from error
