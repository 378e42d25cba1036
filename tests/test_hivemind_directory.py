"""What goes wrong inside hivemind's DHT node, as users of the directory see it."""

import asyncio
from collections import defaultdict
from types import SimpleNamespace

import pytest

from collab.errors import NetworkError
from collab.net.hivemind_directory import HivemindDirectory
from collab.net.hivemind_parts import PeerID
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


@pytest.mark.parametrize(
    ("is_client", "is_known", "is_greeted"),
    [(True, True, False), (True, False, True), (False, True, True), (False, False, True)],
)
def test_a_backbone_is_greeted_by_whoever_may_be_in_its_tables_or_lacks_it(
    is_client: bool, is_known: bool, is_greeted: bool
) -> None:
    backbone, greeted = PeerID(b"\0\1\2"), list[PeerID]()

    async def call_ping(peer: PeerID) -> None:
        greeted.append(peer)

    async def main() -> None:
        node = FailingNode()
        directory = HivemindDirectory(node, PeerId("me"))
        node.protocol.client_mode, node.protocol.call_ping = is_client, call_ping
        node.protocol.routing_table = {backbone: "its node"} if is_known else {}
        await directory.greet(PeerId(backbone.to_base58()))

    asyncio.run(main())
    assert greeted == ([backbone] if is_greeted else [])
