"""Two versions meet: they train together, or say plainly who has to upgrade."""

import asyncio
from collections.abc import Iterable

import pytest

from collab.errors import VersionMismatch
from collab.net.base import Stream
from collab.net.hello import check_version, serve_hello
from collab.net.quotas import HELLO_PROTOCOL, QUOTAS
from collab.net.wire import Message
from collab.types import PeerId
from collab.version import VERSION
from tests.fakes import FakeNetwork

SERVER, CLIENT = PeerId("server"), PeerId("client")


def meet(version: str, protocols: Iterable[str]) -> VersionMismatch | None:
    """What somebody who joins a peer of that version is told."""

    async def main() -> VersionMismatch | None:
        async def answer(stream: Stream) -> None:
            await stream.receive(timeout_s=1)
            await stream.send(Message("hello", {"version": version, "protocols": list(protocols)}), timeout_s=1)

        async with FakeNetwork() as network:
            await network.join(SERVER).serve(HELLO_PROTOCOL, answer)
            try:
                await check_version(network.join(CLIENT), [SERVER])
            except VersionMismatch as error:
                return error
        return None

    return asyncio.run(main())


def test_a_version_that_speaks_all_that_we_speak_and_more_is_fine() -> None:
    assert meet("0.2.0", [*QUOTAS, "collab/dance/1"]) is None


@pytest.mark.parametrize(
    ("version", "advice"),
    [("99.0", "upgrade this machine"), ("0.0.1", "the run's peers are older"), ("?!", "upgrade this machine")],
)
def test_who_has_to_upgrade_is_told_with_both_versions(version: str, advice: str) -> None:
    spoken = [name for name in QUOTAS if not name.startswith("collab/round")]
    told = meet(version, spoken)
    assert told is not None
    assert f"runs collab {version}, this is {VERSION}: collab/round" in told.message
    assert advice in told.hint


@pytest.mark.parametrize("protocols", [["x" * 1000], ["x"] * 1000])
def test_a_hello_of_absurd_length_says_nothing(protocols: list[str]) -> None:
    assert meet("0.2.0", protocols) is None


def test_we_answer_in_a_way_that_we_understand() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            await serve_hello(network.join(SERVER))
            await check_version(network.join(CLIENT), [PeerId("nobody"), SERVER])

    asyncio.run(main())
