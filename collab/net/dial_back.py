"""Dialling a newcomer back, so that it learns whether others can reach it.

Nobody can make us dial anybody else: the asker names a port and no host, and what is dialled is the address that its
own connection comes from. It learns whether *it* answered there, and nothing about whoever else may.
"""

from collections import OrderedDict
from collections.abc import Collection
from enum import StrEnum
from ipaddress import ip_address
from typing import Protocol

from collab.errors import BadMessage, DialBackRefused
from collab.net.base import Stream, Transport
from collab.net.buckets import Bucket, Pace
from collab.net.quotas import REACH_PROTOCOL
from collab.net.wire import Message
from collab.ports import Clock
from collab.swarm.reachability import Answer
from collab.types import PeerId

LOWEST_PORT, HIGHEST_PORT = 1024, 65535
"""Below are services of machines, which no stranger shall have us knock at."""
DIAL_TIMEOUT_S = 1.5
"""Three round trips to the far side of the Earth, and a lost packet."""
ANSWER_TIMEOUT_S = 5.0
"""Of one step: ``DIAL_TIMEOUT_S`` for each address that is tried, and ten round trips of 200 ms. Asked when a peer
joins, before it has measured anything."""
MAX_DIALS = 8
"""At once, for all askers together."""
PER_HOST = Pace(burst=16, per_s=0.2)
"""Dials to one address, whoever asks: identities are free, and many volunteers may stand behind one router."""
HOSTS_REMEMBERED = 1024
MAX_HOSTS = 2
"""Addresses of one asker that are tried: it may have come over two networks."""


class Refusal(StrEnum):
    """Why nobody was dialled."""

    BAD_PORT = "bad_port"
    ALREADY_DIALLING = "already_dialling"
    """This very asker."""
    TOO_MANY = "too_many"
    TOO_OFTEN = "too_often"
    """To this address."""
    NO_ADDRESS = "no_address"
    """The asker's connection comes through a relay, or is gone."""


class Vantage(Protocol):
    """Where we stand in the network."""

    async def hosts_of(self, peer: PeerId) -> Collection[str]:
        """IP addresses that live connections of ``peer`` come from; not those of relays in between."""
        ...

    async def answers(self, peer: PeerId, host: str, port: int, *, timeout_s: float) -> bool:
        """Whether ``peer`` itself answers there, over a connection of its own."""
        ...


class DialBack:
    """Answers newcomers that ask to be dialled."""

    def __init__(self, vantage: Vantage, clock: Clock) -> None:
        self._vantage, self._clock = vantage, clock
        self._dialling: set[PeerId] = set()
        self._paces: OrderedDict[str, Bucket] = OrderedDict()

    async def serve(self, transport: Transport) -> None:
        """Answer whoever asks."""
        await transport.serve(REACH_PROTOCOL, self._answer)

    async def _answer(self, stream: Stream) -> None:
        question = await stream.receive(timeout_s=ANSWER_TIMEOUT_S)
        try:
            answer = await self._dialled(stream.remote, question.get("port", int))
        except DialBackRefused as refusal:
            answer = Message("refused", {"reason": refusal.reason, "text": refusal.message})
        await stream.send(answer, timeout_s=ANSWER_TIMEOUT_S)
        await stream.receive(timeout_s=ANSWER_TIMEOUT_S)  # "thanks": everything arrived

    async def _dialled(self, asker: PeerId, port: int) -> Message:
        if not LOWEST_PORT <= port <= HIGHEST_PORT:
            text = f"ports from {LOWEST_PORT} to {HIGHEST_PORT} are dialled, not {port}"
            raise DialBackRefused(Refusal.BAD_PORT, text)
        if asker in self._dialling:
            raise DialBackRefused(Refusal.ALREADY_DIALLING, "you are being dialled; wait for that answer")
        if len(self._dialling) >= MAX_DIALS:
            raise DialBackRefused(Refusal.TOO_MANY, f"{MAX_DIALS} others are being dialled; ask somebody else")
        self._dialling.add(asker)
        try:
            hosts = sorted(await self._vantage.hosts_of(asker))[:MAX_HOSTS]
            if not hosts:
                raise DialBackRefused(Refusal.NO_ADDRESS, "your connection shows no address that could be dialled")
            for host in hosts:
                if not self._may_dial(host):
                    raise DialBackRefused(Refusal.TOO_OFTEN, f"{host} was dialled too often of late; ask somebody else")
                if await self._vantage.answers(asker, host, port, timeout_s=DIAL_TIMEOUT_S):
                    return Message("reached", {"host": host})
            return Message("missed", {"host": hosts[0]})
        finally:
            self._dialling.discard(asker)

    def _may_dial(self, host: str) -> bool:
        now_s = self._clock.monotonic()
        pace = self._paces.setdefault(host, Bucket(PER_HOST, now_s))
        self._paces.move_to_end(host)
        while len(self._paces) > HOSTS_REMEMBERED:
            self._paces.popitem(last=False)
        return pace.take(now_s)


async def ask_to_dial_back(transport: Transport, helper: PeerId, port: int) -> Answer:
    """What ``helper`` finds when it dials us where it sees us.

    Args:
        port: TCP port that we listen on.

    Raises:
        DialBackRefused: it will not try; the reason is one of ``Refusal``, or unknown.
        NetworkError: it does not answer, or nonsense.
    """
    stream = await transport.open(helper, REACH_PROTOCOL, timeout_s=ANSWER_TIMEOUT_S)
    try:
        await stream.send(Message("dial me", {"port": port}), timeout_s=ANSWER_TIMEOUT_S)
        answer = await stream.receive(timeout_s=ANSWER_TIMEOUT_S)
        with_host = _checked(helper, answer)
        await stream.send(Message("thanks"), timeout_s=ANSWER_TIMEOUT_S)
        return with_host
    finally:
        stream.close()


def _checked(helper: PeerId, answer: Message) -> Answer:
    if answer.kind == "refused":
        reason = answer.get("reason", str)
        known = reason if reason in set(Refusal) else "unknown"
        raise DialBackRefused(known, f"{helper} does not dial us: {known}")
    if answer.kind not in ("reached", "missed"):
        raise BadMessage(f"expected whether we were reached, got {answer.kind!r:.40}")
    host = answer.get("host", str)
    try:
        host = str(ip_address(host))
    except ValueError as error:
        raise BadMessage(f"{host!r:.60} is no IP address") from error
    return Answer(helper=helper, host=host, is_reached=answer.kind == "reached")
