"""What every implementation of ``Directory`` must do. Join it in three lines::

    class TestMyDirectory(DirectoryContract):
        def run(self, body, *, peers=2): ...
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from collab.net.base import Directory
from collab.types import PeerId

PATIENCE_S = 30.0
LIFETIME_S = 60.0
"""Longer than any of these tests takes."""



class OwnDirectory(Directory, Protocol):
    """A directory that says whose it is."""

    me: PeerId


Now = Callable[[], float]
Body = Callable[[Sequence[OwnDirectory], Now], Awaitable[None]]


class DirectoryContract:
    """The tests; a subclass says how to run one."""

    def run(self, body: Body, *, peers: int = 2) -> None:
        """Run ``body`` with the directories of ``peers`` connected peers and a function that tells swarm time."""
        raise NotImplementedError

    def test_a_missing_key_has_no_entries(self) -> None:
        async def body(directories: Sequence[OwnDirectory], now: Now) -> None:
            assert dict(await directories[1].get("nothing", timeout_s=PATIENCE_S)) == {}

        self.run(body)

    def test_everybody_sees_all_subkeys_with_their_expiry(self) -> None:
        async def body(directories: Sequence[OwnDirectory], now: Now) -> None:
            expires_at = now() + LIFETIME_S
            for number, directory in enumerate(directories):
                assert await directory.store("key", directory.me, bytes([number]) * 10, expires_at=expires_at,
                                             timeout_s=PATIENCE_S)
            for directory in directories:
                entries = await directory.get("key", timeout_s=PATIENCE_S)
                assert {subkey: entry.value for subkey, entry in entries.items()} == {
                    one.me: bytes([number]) * 10 for number, one in enumerate(directories)
                }
                assert all(abs(entry.expires_at - expires_at) < 1e-3 for entry in entries.values())

        self.run(body, peers=3)

    def test_keys_do_not_mix(self) -> None:
        async def body(directories: Sequence[OwnDirectory], now: Now) -> None:
            for key in ("one", "other"):
                await directories[0].store(key, directories[0].me, key.encode(), expires_at=now() + LIFETIME_S,
                                           timeout_s=PATIENCE_S)
            for key in ("one", "other"):
                entries = await directories[1].get(key, timeout_s=PATIENCE_S)
                assert {subkey: entry.value for subkey, entry in entries.items()} == {directories[0].me: key.encode()}

        self.run(body)

    def test_a_value_that_expires_later_replaces_an_earlier_one(self) -> None:
        async def body(directories: Sequence[OwnDirectory], now: Now) -> None:
            start = now()
            for number in range(3):
                assert await directories[0].store("key", directories[0].me, b"%d" % number, timeout_s=PATIENCE_S,
                                                  expires_at=start + LIFETIME_S + number)
            entries = await directories[1].get("key", timeout_s=PATIENCE_S)
            assert entries[directories[0].me].value == b"2"

        self.run(body)

    def test_a_record_that_is_there_already_is_taken_and_another_one_with_its_end_is_not(self) -> None:
        """Keepers that get to know each other send each other what they have, at the same time as its author does."""

        async def body(directories: Sequence[OwnDirectory], now: Now) -> None:
            author, expires_at = directories[0], now() + LIFETIME_S
            for value, is_taken in ((b"1", True), (b"1", True), (b"2", False)):
                stored = await author.store("key", author.me, value, expires_at=expires_at, timeout_s=PATIENCE_S)
                assert stored is is_taken
            assert (await directories[1].get("key", timeout_s=PATIENCE_S))[author.me].value == b"1"

        self.run(body)

    def test_a_value_that_expires_earlier_is_refused(self) -> None:
        async def body(directories: Sequence[OwnDirectory], now: Now) -> None:
            start = now()
            await directories[0].store("key", directories[0].me, b"later", expires_at=start + 2 * LIFETIME_S,
                                       timeout_s=PATIENCE_S)
            taken = await directories[0].store("key", directories[0].me, b"earlier", expires_at=start + LIFETIME_S,
                                               timeout_s=PATIENCE_S)
            entries = await directories[1].get("key", timeout_s=PATIENCE_S)
            assert not taken
            assert entries[directories[0].me].value == b"later"

        self.run(body)

    def test_a_value_that_has_expired_already_is_refused(self) -> None:
        async def body(directories: Sequence[OwnDirectory], now: Now) -> None:
            taken = await directories[0].store("key", directories[0].me, b"old", expires_at=now() - LIFETIME_S,
                                               timeout_s=PATIENCE_S)
            assert not taken
            assert dict(await directories[1].get("key", timeout_s=PATIENCE_S)) == {}

        self.run(body)

    def test_an_expired_value_is_invisible_and_its_neighbours_stay(self) -> None:
        async def body(directories: Sequence[OwnDirectory], now: Now) -> None:
            end = now() + 3.0  # time enough for both stores on a busy machine
            brief, long = f"brief:{directories[0].me}", f"long:{directories[0].me}"
            assert await directories[0].store("key", brief, b"x", expires_at=end, timeout_s=PATIENCE_S)
            assert await directories[0].store("key", long, b"y", expires_at=now() + LIFETIME_S, timeout_s=PATIENCE_S)
            assert set(await directories[1].get("key", timeout_s=PATIENCE_S)) == {brief, long}
            await asyncio.sleep(end - now() + 0.5)
            assert set(await directories[1].get("key", timeout_s=PATIENCE_S)) == {long}

        self.run(body)

    def test_an_expired_value_gives_way_to_a_new_one(self) -> None:
        async def body(directories: Sequence[OwnDirectory], now: Now) -> None:
            end, me = now() + 1.5, directories[0].me
            assert await directories[0].store("key", me, b"old", expires_at=end, timeout_s=PATIENCE_S)
            await asyncio.sleep(end - now() + 0.5)
            assert await directories[0].store("key", me, b"new", expires_at=now() + LIFETIME_S,
                                              timeout_s=PATIENCE_S)
            assert (await directories[1].get("key", timeout_s=PATIENCE_S))[me].value == b"new"

        self.run(body)

    def test_nobody_stores_under_anothers_name(self) -> None:
        async def body(directories: Sequence[OwnDirectory], now: Now) -> None:
            liar, victim, reader = directories
            early, late = now() + LIFETIME_S, now() + 2 * LIFETIME_S
            assert await victim.store("key", victim.me, b"true", expires_at=early, timeout_s=PATIENCE_S)
            for name in (victim.me, f"about:{victim.me}", "nobody", ""):
                assert not await liar.store("key", name, b"false", expires_at=late, timeout_s=PATIENCE_S)
            entries = await reader.get("key", timeout_s=PATIENCE_S)
            assert {name: entry.value for name, entry in entries.items()} == {victim.me: b"true"}

        self.run(body, peers=3)

    def test_nothing_is_kept_for_ever(self) -> None:
        async def body(directories: Sequence[OwnDirectory], now: Now) -> None:
            me = directories[0].me
            assert not await directories[0].store("key", me, b"x", expires_at=now() + 1e6, timeout_s=PATIENCE_S)
            assert await directories[0].store("key", me, b"y", expires_at=now() + LIFETIME_S, timeout_s=PATIENCE_S)

        self.run(body)
