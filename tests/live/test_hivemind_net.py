"""The real network under the contracts that the simulated one keeps."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from collab.clock import SystemClock
from collab.errors import NetworkError
from collab.net.hivemind_directory import HivemindDirectory, open_directory
from collab.net.hivemind_net import (
    HivemindTransport,
    NetworkSettings,
    open_transport,
)
from collab.net.hivemind_parts import MSGPackSerializer, routing
from collab.net.owned_records import OwnedRecords
from collab.swarm.identity import load_or_create_identity
from tests.contracts.directory_contract import Body as DirectoryBody, DirectoryContract
from tests.contracts.transport_contract import Body as TransportBody, TransportContract
from tests.live.processes import LIMIT_S, processes_about, wait_until

Peer = tuple[HivemindTransport, HivemindDirectory]


@asynccontextmanager
async def connected(peers: int, clients: int = 0) -> AsyncIterator[list[Peer]]:
    """Real peers in one event loop, each connected to the first."""
    found: list[Peer] = []
    async with AsyncExitStack() as stack:
        for index in range(peers):
            coming = newcomer(found, is_client=index >= peers - clients)
            found.append(await stack.enter_async_context(coming))
        yield found


@asynccontextmanager
async def newcomer(found: list[Peer], *, is_client: bool = False) -> AsyncIterator[Peer]:
    """One more real peer, connected to the first of ``found``."""
    with TemporaryDirectory() as folder:
        key = Path(folder) / "peer.key"
        identity = load_or_create_identity(key)
        settings = NetworkSettings(identity_path=key, host="127.0.0.1", is_client=is_client)
        async with open_transport(settings) as transport:
            addresses = await found[0][0].addresses() if found else ()
            known = [await transport.dial(address, timeout_s=LIMIT_S) for address in addresses]
            rules = OwnedRecords(identity, SystemClock().now)
            async with open_directory(transport, known, rules=rules, is_client=is_client) as directory:
                yield transport, directory


class TestHivemindTransport(TransportContract):
    def run(self, body: TransportBody, *, peers: int = 2, clients: int = 0) -> None:
        async def run() -> None:
            async with connected(peers, clients) as found:
                await body([transport for transport, _ in found])

        asyncio.run(run())


class TestHivemindDirectory(DirectoryContract):
    def run(self, body: DirectoryBody, *, peers: int = 2) -> None:
        async def run() -> None:
            async with connected(peers) as found:
                await body([directory for _, directory in found], SystemClock().now)

        asyncio.run(run())


def test_of_a_record_whose_writer_waits_no_longer_nothing_stays() -> None:
    """hivemind's own searches leave a task for each node that has answered, when they are cancelled, in a ring."""

    async def run() -> None:
        gc.disable()
        async with connected(4) as found:
            await found[0][1].store("key", "a", b"1", expires_at=SystemClock().now() + LIMIT_S, timeout_s=LIMIT_S)
            before = asyncio.all_tasks()
            frozen = found[-1][0]._p2p._child
            frozen.send_signal(signal.SIGSTOP)
            try:
                lasts_s = SystemClock().now() + LIMIT_S
                storing = found[0][1].store("key", "a", b"2", expires_at=lasts_s, timeout_s=LIMIT_S)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(storing, 1.0)
            finally:
                frozen.send_signal(signal.SIGCONT)
            async with asyncio.timeout(LIMIT_S):
                while asyncio.all_tasks() - before:
                    await asyncio.sleep(0.01)

    try:
        asyncio.run(run())
    finally:
        gc.enable()


def test_whoever_replaces_a_record_is_not_sent_what_is_kept_with_it() -> None:
    async def main() -> None:
        async with connected(3, clients=1) as peers:
            (_, _), (_, reader), (_, writer) = peers
            found: list[object] = []
            ask = writer._node.protocol.call_find

            async def asked(*args: object) -> object:
                answer = await ask(*args)
                found.extend(value for value, _ in (answer or {}).values())
                return answer

            writer._node.protocol.call_find = asked
            for number in range(2):
                end_s = SystemClock().now() + 60.0 + number
                assert await writer.store("key", writer.me, b"%d" % number, expires_at=end_s, timeout_s=LIMIT_S)
            assert found, "keepers were looked for"
            assert not [value for value in found if value is not None]
            for directory in (reader, writer):
                entry = (await directory.get("key", timeout_s=LIMIT_S))[writer.me]
                assert entry.value == b"1"
            assert [value for value in found if value is not None], "a reader is sent it"

    asyncio.run(main())


def test_no_question_has_an_answer_that_ends_the_daemon_of_whoever_is_asked() -> None:
    async def main() -> None:
        async with connected(2, clients=1) as peers:
            (asked, keeper), (_, asker) = peers
            pages = [routing.DHTID.generate(f"page {number}") for number in range(6)]
            for page in pages:
                for number in range(40):
                    end_s = SystemClock().now() + LIMIT_S
                    assert keeper._node.protocol.storage.store(page, bytes(30_000), end_s, subkey=f"name {number}")
            peer, find = keeper._node.protocol.p2p.peer_id, asker._node.protocol.call_find
            assert await find(peer, [routing.DHTID(number) for number in range(60_000)]) is None
            assert await find(peer, pages) is None, "all of them are more than a message"
            assert asked._p2p._child.returncode is None
            assert await find(peer, pages[:2]) is not None
            assert await asker.store("key", asker.me, b"1", expires_at=SystemClock().now() + 60.0, timeout_s=LIMIT_S)

    asyncio.run(main())


def test_whoever_replaces_a_record_each_second_asks_once_where_and_again_when_a_keeper_has_gone() -> None:
    async def main() -> None:
        async with connected(2, clients=1) as peers:
            (_, first), (_, writer) = peers
            asked: list[object] = []
            ask = writer._node.protocol.call_find

            async def counted(*args: object) -> object:
                asked.append(args)
                return await ask(*args)

            async def store(value: bytes) -> None:
                end_s = SystemClock().now() + 60.0 + len(value)
                assert await writer.store("key", writer.me, value, expires_at=end_s, timeout_s=LIMIT_S)

            writer._node.protocol.call_find = counted
            async with newcomer(peers) as (_, second):
                await store(b"1")
                once = len(asked)
                assert once >= 1
                for number in range(2, 6):
                    await store(b"1" * number)
                assert len(asked) == once
                for keeper in (first, second):
                    kept = keeper._node.protocol.storage.get(routing.DHTID.generate("key"))
                    assert kept.value.get(writer.me).value.startswith(MSGPackSerializer.dumps(b"1" * 5))
            for number in (6, 7):
                await store(b"1" * number)
            assert len(asked) > once, "the second was called in vain"
            assert (await first.get("key", timeout_s=LIMIT_S))[writer.me].value == b"1" * 7

    asyncio.run(main())


def test_a_record_that_only_its_author_keeps_is_taken() -> None:
    """What another keeper says then is all that hivemind's node tells."""

    async def run() -> None:
        async with connected(2) as found:
            author, other = found[0][1], found[1][1]
            other._node.protocol.record_validator.validate = lambda _: False
            lasts_s = SystemClock().now() + LIMIT_S
            assert not await author._node.store("key", b"1", lasts_s, subkey=author.me)
            assert await author.store("key", author.me, b"2", expires_at=lasts_s + 1.0, timeout_s=LIMIT_S)
            assert not await author.store("key", author.me, b"older", expires_at=lasts_s, timeout_s=LIMIT_S)

    asyncio.run(run())


def test_a_keeper_that_comes_late_is_handed_all_where_all_should_keep_everything() -> None:
    """Also what nobody says again, as who has said goodbye."""
    keys = [f"key {number}" for number in range(24)]

    async def run() -> None:
        async with connected(3) as found:
            author, lasts_s = found[0][1], SystemClock().now() + 10 * LIMIT_S
            for key in keys:
                assert await author.store(key, author.me, b"goodbye", expires_at=lasts_s, timeout_s=LIMIT_S)
            async with newcomer(found) as (_, late), asyncio.timeout(LIMIT_S):
                while len(late._node.protocol.storage) < len(keys):
                    await asyncio.sleep(0.01)

    asyncio.run(run())


def test_of_keys_that_were_asked_for_nothing_stays() -> None:
    async def run() -> None:
        async with connected(2) as found:
            directory = found[0][1]
            for number in range(5):
                await directory.get(f"key {number}", timeout_s=LIMIT_S)
            assert len(directory._node.pending_get_requests) <= 1, "of the last, whose search may be under way"

    asyncio.run(run())


def test_of_a_question_whose_asker_has_gone_nothing_stays() -> None:
    """hivemind itself keeps the task that was to answer it."""

    async def run() -> None:
        began, ended = asyncio.Event(), asyncio.Event()

        async def think(_: bytes, __: object) -> bytes:
            began.set()
            try:
                await asyncio.sleep(1000.0)
            finally:
                ended.set()
            return b""

        async with connected(2) as [(asked, _), (asker, _)]:
            await asked._p2p._client.add_unary_handler("slow", think)
            call = asyncio.create_task(asker._p2p._client.call_unary_handler(asked._p2p.peer_id, "slow", b"?"))
            await asyncio.wait_for(began.wait(), LIMIT_S)
            assert len(asked._p2p._client.control._handler_tasks) == 1
            call.cancel()
            await asyncio.wait_for(ended.wait(), LIMIT_S)
            async with asyncio.timeout(LIMIT_S):
                while asked._p2p._client.control._handler_tasks:
                    await asyncio.sleep(0.05)

    asyncio.run(run())


LONELY_PEER = """\
import asyncio, sys
from pathlib import Path
from collab.net.hivemind_net import NetworkSettings, open_transport
from collab.swarm.identity import load_or_create_identity

async def main():
    key = Path(sys.argv[1])
    load_or_create_identity(key)
    async with open_transport(NetworkSettings(identity_path=key, host="127.0.0.1")):
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def test_p2pd_dies_with_its_peer_even_after_sigkill(tmp_path: Path) -> None:
    key = tmp_path / "lonely.key"
    process = subprocess.Popen([sys.executable, "-c", LONELY_PEER, str(key)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    assert any("p2pd" in command for command in processes_about(key))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    wait_until(lambda: not processes_about(key), "p2pd to be gone")


def test_whoever_asks_a_dead_daemon_about_connections_hears_that_it_is_dead(tmp_path: Path) -> None:
    async def main() -> None:
        load_or_create_identity(tmp_path / "key")
        network = NetworkSettings(identity_path=tmp_path / "key", host="127.0.0.1")
        async with open_transport(network) as transport:
            assert await transport.through_holes() == frozenset()
            assert not await transport.hosts_outside()
            daemon = transport._p2p._child
            daemon.kill()
            await daemon.wait()
            for ask in (transport.connected_peers, transport.through_holes, transport.hosts_outside):
                with pytest.raises(NetworkError, match="has died"):
                    await ask()
            assert await transport.hosts_of(transport.peer_id) == frozenset()

    asyncio.run(main())
