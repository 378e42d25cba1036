"""A DHT node's calls to other nodes: how long they may take, and what they came to.

A keeper that is dead is in other nodes' tables until somebody has called it in vain, so most questions of a swarm that
loses peers meet one, and wait for it. hivemind's node takes one limit for all calls; it is set anew before each, from
what they took.
"""

import math
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from cachetools import TTLCache

from collab.answers import Answers
from collab.net.hivemind_parts import PeerID, node, routing
from collab.net.lookups import CALL_FIRST_S, CALL_LONGEST_S, CALL_SHORTEST_S, loop_s

P = ParamSpec("P")
T = TypeVar("T")

Found = dict[Any, tuple[Any, dict[Any, PeerID]]]
"""By key: what a keeper has, and other keepers that it knows, by their ids in the DHT."""

Nearest = dict[Any, dict[Any, PeerID]]
"""By key: the nodes that are nearest to it, by their ids in the DHT."""
OnFound = Callable[[Any, list[Any], set[Any]], Awaitable[None]]
"""Told of a key, the nodes that are nearest to it, and all that were asked."""
Search = Callable[..., Awaitable[Nearest]]
"""``find_nearest_nodes`` of hivemind's ``DHTNode``."""

CALLS = ("call_ping", "call_store", "call_find")
"""Of hivemind's ``DHTProtocol``; they return None when there was no answer, and look at ``wait_timeout`` at once."""

FAILURES_REMEMBERED, FORGOTTEN_S = 1024, 600.0
"""Keepers that did not answer, more than one node's tables hold, and for how long after they were called last."""


NEARBY_S, NEARBY_KEYS = 5.0, 64
"""For how long whoever stores under a key remembers who is near it, and of how many keys. Records are said again each
second or so, and live for 15 s (``RECORD_LIFE_S``): a keeper that has just come hears the next one or the one after it,
and was handed those before."""


class _Failures(TTLCache[PeerID, int]):
    """In a row, of each keeper; used like the ``Counter`` of hivemind's."""

    def __missing__(self, peer: PeerID) -> int:
        return 0

    def __delitem__(self, peer: PeerID) -> None:
        with suppress(KeyError):
            super().__delitem__(peer)


class Unresponsive(node.Blacklist):  # type: ignore[misc]
    """Keepers that a node leaves out for a while, as they did not answer; hivemind's own remembers each for ever."""

    def __init__(self, base_time: float, backoff_rate: float) -> None:
        super().__init__(base_time, backoff_rate)
        self.ban_counter = _Failures(FAILURES_REMEMBERED, FORGOTTEN_S, loop_s)


def beside_keys(search: Search) -> Search:
    """A search without what the nodes keep under the keys that it is for.

    A node that is asked who is near a key also sends all that it keeps under it: 64 peers' records before each of them
    is replaced by its author. Under the id beside that of a key, which differs in the last of 160 bits, nobody keeps
    anything, and the same nodes are near.
    """

    async def search_beside(
        queries: Collection[Any], *args: Any, found_callback: OnFound | None = None, **kwargs: Any
    ) -> Nearest:
        async def on_found(beside: Any, nearest: list[Any], visited: set[Any]) -> None:
            if found_callback is not None:
                await found_callback(_beside(beside), nearest, visited)

        nearest = await search([_beside(query) for query in queries], *args, found_callback=on_found, **kwargs)
        return {_beside(beside): nodes for beside, nodes in nearest.items()}

    return search_beside


def _beside(key: int) -> Any:
    return routing.DHTID(key ^ 1)


class KeeperCalls:
    """Of one node."""

    _taken: ContextVar[list[bool]] = ContextVar("taken")
    """What each keeper said of the record that is being stored in this context."""

    def __init__(self, protocol: Any) -> None:
        """
        Args:
            protocol: the node's ``DHTProtocol``; from now on its calls are measured, and bounded by what was measured.
        """
        self._protocol = protocol
        self._answers = Answers(loop_s, shortest_s=CALL_SHORTEST_S, longest_s=CALL_LONGEST_S)
        self._nearby: TTLCache[Any, dict[Any, PeerID]] = TTLCache(NEARBY_KEYS, NEARBY_S, loop_s)
        """By key, as they were found."""
        self.question_s = math.inf
        """What the newest question may take, of which its calls are part."""
        for name in CALLS:
            setattr(protocol, name, self._bounded(getattr(protocol, name)))
        protocol.call_store = self._heard(protocol.call_store)
        protocol.call_find = self._of_others(protocol.call_find)

    async def is_taken(self, storing: Awaitable[bool]) -> bool:
        """Whether any keeper takes a record; hivemind's own answer is that of the keeper that answers last."""
        taken: list[bool] = []
        self._taken.set(taken)
        return await storing or any(taken)

    def remembering(self, search: Search) -> Search:
        """A search that for some seconds does not ask anew where a record is to be stored.

        Each of 64 peers that replaces its record each second asked each keeper before each of them. When any call is
        not answered all is forgotten.
        """

        async def search_or_remember(
            queries: Collection[Any],
            *,
            node_to_peer_id: dict[Any, PeerID] | None = None,
            found_callback: OnFound | None = None,
            **kwargs: Any,
        ) -> Nearest:
            if found_callback is None or node_to_peer_id is None:
                return await search(queries, node_to_peer_id=node_to_peer_id, found_callback=found_callback, **kwargs)
            known = {key: nodes for key in queries if (nodes := self._nearby.get(key))}
            if len(known) == len(queries):
                for key, nodes in known.items():
                    node_to_peer_id.update(nodes)
                    await found_callback(key, list(nodes), set())
                return known

            async def on_found(key: Any, nearest: list[Any], visited: set[Any]) -> None:
                self._nearby[key] = {node: node_to_peer_id[node] for node in nearest}
                await found_callback(key, nearest, visited)

            return await search(queries, node_to_peer_id=node_to_peer_id, found_callback=on_found, **kwargs)

        return search_or_remember

    @property
    def limit_s(self) -> float:
        """Of the next call."""
        return min(self._answers.limit_s(CALL_FIRST_S), self.question_s / 2)

    def _bounded(self, call: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        async def bounded(*args: P.args, **kwargs: P.kwargs) -> T:
            began_s, limit_s = loop_s(), self.limit_s
            self._protocol.wait_timeout = limit_s
            answer = await call(*args, **kwargs)
            if answer is None:
                self._nearby.clear()
            elif (took_s := loop_s() - began_s) <= limit_s:
                self._answers.add(took_s)
            return answer

        return bounded

    def _heard(self, call: Callable[P, Awaitable[list[bool] | None]]) -> Callable[P, Awaitable[list[bool] | None]]:
        async def heard(*args: P.args, **kwargs: P.kwargs) -> list[bool] | None:
            answer = await call(*args, **kwargs)
            if kwargs.get("subkeys"):  # else it hands over what a new keeper should have, in the same context
                self._taken.get([]).extend(answer or ())
            return answer

        return heard

    def _of_others(self, call: Callable[P, Awaitable[Found | None]]) -> Callable[P, Awaitable[Found | None]]:
        """Whoever tells a node of itself would end its search: hivemind takes for granted that nobody does."""

        async def of_others(*args: P.args, **kwargs: P.kwargs) -> Found | None:
            found = await call(*args, **kwargs)
            for _, nearest in (found or {}).values():
                nearest.pop(self._protocol.node_id, None)
            return found

        return of_others
