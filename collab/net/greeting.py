"""What a peer says first over a stream that it opens, where it was invited: who it is to the run's owner."""

from collab.errors import AccessDenied
from collab.net.around import AroundStream, AroundTransport
from collab.net.base import Barred, Stream, Transport
from collab.net.wire import Message
from collab.ports import Entrance
from collab.types import PeerId

GREETING, BARRED = "greeting", "barred"
MAX_WORDS = 300
"""Characters of a refusal that are shown."""


def credential_in(message: Message) -> bytes:
    """Of a greeting."""
    return message.get("credential", bytes)


def barred_message(barred: Barred) -> Message:
    """The answer to a peer that may not come in."""
    return Message(BARRED, {"reason": barred.reason, "text": barred.text})


class _GreetedStream(AroundStream):
    """Implements ``Stream``: one that the other side may refuse in words."""

    async def receive(self, *, timeout_s: float) -> Message:
        message = await super().receive(timeout_s=timeout_s)
        if message.kind == BARRED:
            self.close()
            text = message.get("text", str)[:MAX_WORDS]
            raise AccessDenied(f"{self.remote} refuses us: {text}", hint="ask the organiser for an invite of your own")
        return message


class GreetingTransport(AroundTransport):
    """Implements ``Transport``: another one, over which every stream begins with our pass, if we have one."""

    def __init__(self, outer: Transport, entrance: Entrance) -> None:
        super().__init__(outer)
        self._entrance = entrance

    async def open(self, peer: PeerId, protocol: str, *, timeout_s: float) -> Stream:
        stream = await super().open(peer, protocol, timeout_s=timeout_s)
        credential = self._entrance.credential()
        if credential and peer != self.peer_id:
            await stream.send(Message(GREETING, {"credential": credential}), timeout_s=timeout_s)
        return _GreetedStream(stream)
