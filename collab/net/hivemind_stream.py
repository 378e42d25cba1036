"""One raw libp2p stream, as the daemon hands it over."""

import asyncio
from contextlib import suppress
from typing import cast

from collab.errors import TimedOut
from collab.net.frames import FrameProtocol
from collab.net.wire import Largest, Message
from collab.types import PeerId


class HivemindStream:
    """Implements ``Stream`` on one raw libp2p stream."""

    def __init__(
        self,
        remote: PeerId,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        largest: Largest | None = None,
    ) -> None:
        """
        Args:
            largest: see ``FrameProtocol``.
        """
        self._remote = remote
        self._writer = writer  # closes its connection when it is collected
        self._frames = FrameProtocol(remote, largest)
        early = bytes(reader._buffer)  # type: ignore[attr-defined]  # whoever opened the stream has read ahead
        reader._buffer.clear()  # type: ignore[attr-defined]
        self._frames.take_over(cast(asyncio.Transport, writer.transport), early, is_over=reader.at_eof())

    @property
    def remote(self) -> PeerId:
        return self._remote

    async def send(self, message: Message, *, timeout_s: float) -> None:
        self._frames.write(message)
        if self._frames.is_writable:
            return
        with suppress(TimeoutError):  # an error raised from its block would hold this task through it
            async with asyncio.timeout(timeout_s):
                await self._frames.drain()
                return
        self.close()
        raise TimedOut(f"{message.kind} to {self._remote} was not taken within {timeout_s:.1f} s")

    async def receive(self, *, timeout_s: float) -> Message:
        if self._frames.has_message:
            return await self._frames.next()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                return await self._frames.next()
        self.close()
        raise TimedOut(f"nothing from {self._remote} within {timeout_s:.1f} s")

    def close(self) -> None:
        self._frames.close()
