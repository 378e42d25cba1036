"""A download that was broken off goes on in the next life, with nothing fetched twice and nothing believed unread."""

import asyncio
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collab.errors import NoDonor
from collab.net.base import Stream
from collab.net.pieces import PIECE_BYTES
from collab.net.wire import Message
from collab.swarm.donation import STATE_PROTOCOL
from collab.swarm.partial import DATA_FILE, MANIFEST_FILE, Partial
from collab.swarm.snapshots import CHUNK_BYTES, PackedSnapshot, Snapshot, pack
from collab.swarm.state_transfer import Wanted, fetch_state
from collab.types import Lineage, PeerId
from tests.fakes import FakeCompute, FakeNetwork, run
from tests.swarm.test_state_transfer import donate, links

VALUES = np.random.default_rng(0).standard_normal(2_000_000, dtype=np.float32)
GOOD = pack(Snapshot(epoch=5, lineage=Lineage("l"), tensors={"model.a": VALUES}, scalars={}), fingerprint="f")
OTHER = pack(Snapshot(epoch=6, lineage=Lineage("m"), tensors={"model.a": VALUES + 1}, scalars={}), fingerprint="f")
DYING, DONOR = PeerId("dying"), PeerId("donor")
GIVEN = 3


async def give_some(stream: Stream) -> None:
    """A donor that dies after ``GIVEN`` chunks."""
    await stream.receive(timeout_s=1)
    await stream.send(GOOD.manifest.to_message(), timeout_s=1)
    num_given = 0
    while num_given < GIVEN:
        message = await stream.receive(timeout_s=60)
        if message.kind == "want":
            index, num_given = message.get("index", int), num_given + 1
            for start in range(0, GOOD.manifest.chunk_bytes(index), PIECE_BYTES):
                fields = {"index": index, "start": start, "sent_s": 0.0, "queue_s": 0.0}
                await stream.send(Message("piece", fields, GOOD.chunk(index)[start : start + PIECE_BYTES]), timeout_s=1)
    await asyncio.sleep(0.1)  # until the last one is there


async def fetch(network: FakeNetwork, donor: PeerId, root: Path) -> tuple[PackedSnapshot, int]:
    """By a peer that has just started; how much its donors brought."""
    me = network.join(f"life{len(network.peers)}")
    packed, brought = await fetch_state(
        me, links(), [donor], fingerprint="f", wanted=Wanted(), partial=Partial(root, FakeCompute())
    )
    return packed, sum(brought.values())


def broken_off(root: Path, then: Callable[[FakeNetwork], Awaitable[None]]) -> None:
    """A first life whose only donor dies midway, and what follows."""

    async def main() -> None:
        async with FakeNetwork() as network:
            await network.join(DYING).serve(STATE_PROTOCOL, give_some)
            with pytest.raises(NoDonor):
                await fetch(network, DYING, root)
            manifest = await Partial(root, FakeCompute()).manifest()
            assert manifest == GOOD.manifest
            await donate(network, DONOR, GOOD)
            await then(network)

    run(main())


def test_the_next_life_fetches_what_is_missing_and_nothing_else(tmp_path: Path) -> None:
    async def then(network: FakeNetwork) -> None:
        assert await fetch(network, DONOR, tmp_path / "d") == (GOOD, len(GOOD.data) - GIVEN * CHUNK_BYTES)

    broken_off(tmp_path / "d", then)


@pytest.mark.parametrize("damage", ["a flipped byte", "cut", "no data", "no manifest", "half a manifest"])
def test_what_was_damaged_on_the_disk_is_fetched_again(tmp_path: Path, damage: str) -> None:
    root = tmp_path / "d"

    async def then(network: FakeNetwork) -> None:
        data, manifest = root / DATA_FILE, root / MANIFEST_FILE
        again = GIVEN
        if damage == "a flipped byte":
            content = bytearray(data.read_bytes())
            content[CHUNK_BYTES + 5] ^= 1
            data.write_bytes(content)
            again = 1
        elif damage == "cut":
            data.write_bytes(data.read_bytes()[: CHUNK_BYTES + 5])
            again = GIVEN - 1
        elif damage == "no data":
            data.unlink()
        elif damage == "no manifest":
            manifest.unlink()
        else:
            manifest.write_bytes(manifest.read_bytes()[:100])
        missing = len(GOOD.data) - (GIVEN - again) * CHUNK_BYTES
        assert await fetch(network, DONOR, root) == (GOOD, missing)

    broken_off(root, then)


def test_another_state_begins_anew_and_the_old_one_is_deleted(tmp_path: Path) -> None:
    async def then(network: FakeNetwork) -> None:
        await donate(network, PeerId("newer"), OTHER)
        assert await fetch(network, PeerId("newer"), tmp_path / "d") == (OTHER, len(OTHER.data))
        assert await Partial(tmp_path / "d", FakeCompute()).manifest() == OTHER.manifest

    broken_off(tmp_path / "d", then)


def test_when_all_is_here_nothing_is_left_on_the_disk(tmp_path: Path) -> None:
    async def then(network: FakeNetwork) -> None:
        await Partial(tmp_path / "d", FakeCompute()).remove()
        assert not (tmp_path / "d").exists()
        assert await Partial(tmp_path / "d", FakeCompute()).manifest() is None

    broken_off(tmp_path / "d", then)


@pytest.mark.parametrize("fails", ["from the start", "midway"])
def test_a_full_disk_costs_the_download_nothing(tmp_path: Path, fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Path.open

    def full(self: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if mode == "r+b" or (fails == "from the start" and mode == "wb"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(self, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", full)

    async def main() -> None:
        async with FakeNetwork() as network:
            await donate(network, DONOR, GOOD)
            assert await fetch(network, DONOR, tmp_path / "d") == (GOOD, len(GOOD.data))

    run(main())
