"""Do two peers speak the same language? Asked once, at joining, so that who has to upgrade is told in words.

This protocol stays as it is for ever, whatever becomes of the others. A version that only adds fields to messages and
records keeps the protocols' names, and trains together with the one before; one that changes meanings renames them.
"""

from collections.abc import Collection, Iterable
from contextlib import suppress

from packaging.version import InvalidVersion, Version

from collab.errors import BadMessage, NetworkError, VersionMismatch
from collab.net.base import Stream, Transport
from collab.net.quotas import HELLO_PROTOCOL, QUOTAS
from collab.net.wire import Message
from collab.types import PeerId
from collab.version import VERSION

TIMEOUT_S = 5.0
"""Of one step: ten round trips of 300 ms, and the pauses of two busy machines; asked first of all, before anything is
measured."""
MAX_PROTOCOLS, MAX_CHARACTERS = 256, 64


async def serve_hello(transport: Transport) -> None:
    """Say which version we are, and what we speak."""

    async def answer(stream: Stream) -> None:
        await stream.receive(timeout_s=TIMEOUT_S)
        fields = {"version": VERSION, "protocols": sorted(QUOTAS)}
        await stream.send(Message("hello", fields), timeout_s=TIMEOUT_S)
        await stream.receive(timeout_s=TIMEOUT_S)  # "thanks": it was heard

    await transport.serve(HELLO_PROTOCOL, answer)


async def check_version(transport: Transport, peers: Iterable[PeerId]) -> None:
    """Make sure that the first of ``peers`` that answers understands all that we say; nobody answers: nothing is known.

    Raises:
        VersionMismatch: it does not; the message names both versions, and who has to upgrade.
    """
    for peer in peers:
        try:
            version, protocols = await _ask(transport, peer)
        except NetworkError:
            continue
        missing = sorted(QUOTAS.keys() - set(protocols))
        if missing:
            raise VersionMismatch(
                f"{peer} runs collab {version}, this is {VERSION}: {', '.join(missing)} is not understood there",
                hint=_advice(version),
            )
        return


async def _ask(transport: Transport, peer: PeerId) -> tuple[str, Collection[str]]:
    stream = await transport.open(peer, HELLO_PROTOCOL, timeout_s=TIMEOUT_S)
    try:
        await stream.send(Message("hello", {"version": VERSION}), timeout_s=TIMEOUT_S)
        answer = await stream.receive(timeout_s=TIMEOUT_S)
        version, protocols = answer.get("version", str), answer.texts("protocols")
        if len(protocols) > MAX_PROTOCOLS or max(map(len, (version, *protocols))) > MAX_CHARACTERS:
            raise BadMessage(f"{peer} says hello at too great length")
        with suppress(NetworkError):
            await stream.send(Message("thanks"), timeout_s=TIMEOUT_S)
        return version, protocols
    finally:
        stream.close()


def _advice(version: str) -> str:
    try:
        is_newer = Version(version) > Version(VERSION)
    except InvalidVersion:
        is_newer = True
    if is_newer:
        return f"upgrade this machine to collab {version} or later, with the line that the organiser has for it"
    return f"the run's peers are older: ask the organiser to upgrade, or for the line that installs collab {version}"
