"""A DHT node waits for a dead keeper as long as living ones were seen to take."""

import asyncio
import math

import pytest

from collab.answers import ENOUGH
from collab.net import keeper_calls
from collab.net.hivemind_parts import PeerID
from collab.net.keeper_calls import NEARBY_S, Found, KeeperCalls, Nearest, OnFound, Unresponsive
from collab.net.lookups import CALL_FIRST_S, CALL_LONGEST_S, CALL_SHORTEST_S
from tests.fakes import run

MINE = PeerID(b"\0\1\1")


class FakeProtocol:
    """Of hivemind's ``DHTProtocol`` what is used: each call looks at the limit first, and None means no answer."""

    node_id = "me"

    def __init__(self) -> None:
        self.wait_timeout = 77.0

    async def call_find(self, peer: str, keys: list[str], *, takes_s: float) -> Found | None:
        limit_s = self.wait_timeout
        await asyncio.sleep(min(takes_s, limit_s))
        return {key: (peer, {"me": MINE, "other": MINE}) for key in keys} if takes_s <= limit_s else None

    async def call_store(
        self, peer: str, *, takes_s: float, is_taken: bool = True, subkeys: tuple[str, ...] = ()
    ) -> list[bool] | None:
        return None if await self.call_find(peer, [], takes_s=takes_s) is None else [is_taken]

    call_ping = call_store


async def waited_s(protocol: FakeProtocol) -> float:
    """For a keeper that is dead."""
    began_s = asyncio.get_running_loop().time()
    assert await protocol.call_find("dead", ["key"], takes_s=math.inf) is None
    return asyncio.get_running_loop().time() - began_s


def test_a_dead_keeper_is_waited_for_as_long_as_the_others_justify() -> None:
    async def main() -> None:
        protocol = FakeProtocol()
        KeeperCalls(protocol)
        assert await waited_s(protocol) == pytest.approx(CALL_FIRST_S)
        for _ in range(ENOUGH):
            assert await protocol.call_find("near", ["key"], takes_s=0.02) == {"key": ("near", {"other": MINE})}
        assert await waited_s(protocol) == pytest.approx(CALL_SHORTEST_S)
        assert await waited_s(protocol) == pytest.approx(CALL_SHORTEST_S), "no answer measures nothing"
        assert await protocol.call_store("far", takes_s=0.9) == [True]
        assert await waited_s(protocol) == pytest.approx(3 * 0.9)
        assert await protocol.call_ping("farther", takes_s=1.5) == [True]
        assert await waited_s(protocol) == pytest.approx(CALL_LONGEST_S)

    run(main())


def test_a_call_never_takes_all_that_its_question_may() -> None:
    async def main() -> None:
        protocol = FakeProtocol()
        calls = KeeperCalls(protocol)
        calls.question_s = 2.0
        assert await waited_s(protocol) == pytest.approx(1.0)

    run(main())


class FakeSearch:
    """For where to store: two nodes are near every key; how often it was made."""

    def __init__(self) -> None:
        self.made = 0

    async def __call__(
        self,
        queries: list[str],
        *,
        node_to_peer_id: dict[str, PeerID] | None,
        found_callback: OnFound | None,
        k_nearest: int,
    ) -> Nearest:
        self.made += 1
        if node_to_peer_id is not None:
            node_to_peer_id.update(near=MINE, far=MINE)
        for key in queries:
            if found_callback is not None:
                await found_callback(key, ["near", "far"], {"near", "far", "farther"})
        return {key: {"near": MINE} for key in queries}


def test_where_a_record_is_stored_is_not_asked_again_for_some_seconds_unless_a_call_was_in_vain() -> None:
    async def main() -> None:
        protocol, search = FakeProtocol(), FakeSearch()
        find = KeeperCalls(protocol).remembering(search)
        told: list[tuple[str, list[str]]] = []

        async def store(key: str) -> None:
            peers: dict[str, PeerID] = {}

            async def on_found(key: str, nearest: list[str], _visited: set[str]) -> None:
                assert all(node in peers for node in nearest), "hivemind calls them by these"
                told.append((key, nearest))

            await find([key], node_to_peer_id=peers, found_callback=on_found, k_nearest=1)

        for _ in range(3):
            await store("a")
        assert search.made == 1
        assert told == [("a", ["near", "far"])] * 3, "all of them: the nearest may not answer"
        await store("b")
        assert search.made == 2
        await asyncio.sleep(NEARBY_S + 0.1)
        await store("a")
        assert search.made == 3
        await protocol.call_store("near", takes_s=0.1)
        await store("a")
        assert search.made == 3
        await protocol.call_store("near", takes_s=math.inf)
        await store("a")
        assert search.made == 4
        for _ in range(2):
            assert await find(["a"], k_nearest=1) == {"a": {"near": MINE}}, "no store: a table is looked after"
        assert search.made == 6

    run(main())


@pytest.mark.parametrize("taken", [(True, True), (True, False), (False, True), (False, False), ()])
def test_a_record_is_taken_if_any_keeper_takes_it_whoever_answers_last(taken: tuple[bool, ...]) -> None:
    async def main() -> None:
        protocol = FakeProtocol()
        calls = KeeperCalls(protocol)

        async def store() -> bool:
            """As hivemind does: in tasks, and what is told last counts."""
            asked = [
                asyncio.create_task(
                    protocol.call_store("keeper", takes_s=float(number), is_taken=is_taken, subkeys=("me",))
                )
                for number, is_taken in enumerate(taken)
            ]
            handing_over = asyncio.create_task(protocol.call_store("new", takes_s=0.1))  # what others said
            asked.append(asyncio.create_task(protocol.call_store("dead", takes_s=math.inf)))
            await handing_over
            answers = [answer for task in asked if (answer := await task) is not None]
            return bool(answers) and answers[-1][0]

        other = asyncio.create_task(calls.is_taken(protocol_takes(protocol)))
        assert await asyncio.create_task(calls.is_taken(store())) is any(taken)
        assert await other is True

    run(main())


async def protocol_takes(protocol: FakeProtocol) -> bool:
    """Another record that is stored at the same time."""
    return await protocol.call_store("another", takes_s=0.5) == [True]


def test_of_keepers_that_went_for_good_only_those_of_late_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_calls, "FAILURES_REMEMBERED", 3)
    keepers = [PeerID(bytes((0, 1, number))) for number in range(10)]

    async def main() -> None:
        silent = Unresponsive(5.0, 2.0)
        for keeper in keepers[:9]:
            silent.register_failure(keeper)
        assert list(silent.ban_counter) == keepers[6:9]
        assert keepers[0] in silent, "it is left out as long as any other"
        del silent.banned_peers[keepers[6]]
        for keeper in (keepers[6], keepers[9]):
            silent.register_failure(keeper)
        assert dict(silent.ban_counter) == {keepers[8]: 1, keepers[6]: 2, keepers[9]: 1}, "those that failed last"
        silent.register_success(keepers[8])
        silent.register_success(keepers[0])
        assert keepers[8] not in silent
        assert set(silent.ban_counter) == {keepers[6], keepers[9]}
        await asyncio.sleep(keeper_calls.FORGOTTEN_S + 1.0)
        silent.banned_peers.clear()
        silent.register_failure(keepers[6])
        assert dict(silent.ban_counter) == {keepers[6]: 1}, "it was long ago"

    run(main())
