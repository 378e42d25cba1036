"""What goes wrong inside hivemind's DHT node, as users of the directory see it."""

import asyncio
from collections import defaultdict
from types import SimpleNamespace

import pytest

from collab.errors import NetworkError
from collab.net.hivemind_directory import HivemindDirectory
from collab.types import PeerId
from tests.test_keeper_calls import FakeProtocol


class FailingNode:
    """Of hivemind's ``DHTNode`` what is used; a keeper's nonsense ends each search."""

    def __init__(self) -> None:
        self.protocol = FakeProtocol()
        self.pending_get_requests = defaultdict(set, {b"over": set(), b"open": {"search"}})

    async def find_nearest_nodes(self, *_: object, **__: object) -> None:
        raise AssertionError

    async def store(self, *_: object, **__: object) -> bool:
        raise AssertionError

    async def get(self, *_: object, **__: object) -> SimpleNamespace:
        raise KeyError("nobody")


def test_what_fails_inside_a_search_is_a_failure_of_the_network() -> None:
    async def main() -> None:
        node = FailingNode()
        directory = HivemindDirectory(node, PeerId("me"))
        with pytest.raises(NetworkError, match="a search for key in the DHT failed"):
            await directory.store("key", "me", b"1", expires_at=9.0, timeout_s=5.0)
        with pytest.raises(NetworkError, match="a search for key in the DHT failed"):
            await directory.get("key", timeout_s=5.0)
        assert dict(node.pending_get_requests) == {b"open": {"search"}}

    asyncio.run(main())
