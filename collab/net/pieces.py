"""Bytes of any number over a stream: in pieces small enough that everything else of a peer passes between them."""

from collab.errors import BadMessage
from collab.net.base import Stream
from collab.net.wire import Message

PIECE_BYTES = 64 << 10


async def send_bytes(stream: Stream, data: bytes | bytearray | memoryview, *, timeout_s: float) -> None:
    """Send ``data`` to whoever knows its length.

    Args:
        timeout_s: of each piece.

    Raises:
        StreamClosed, TimedOut: as ``Stream.send``.
    """
    view = memoryview(data).cast("B")
    for start in range(0, len(view), PIECE_BYTES):
        await stream.send(Message("piece", {"start": start}, view[start : start + PIECE_BYTES]), timeout_s=timeout_s)


async def receive_bytes(stream: Stream, num_bytes: int, *, timeout_s: float) -> bytearray:
    """What ``send_bytes`` sent; nothing in it is checked but its length.

    Args:
        timeout_s: of each piece.

    Raises:
        BadMessage: something else came, or another number of bytes.
        StreamClosed, TimedOut: as ``Stream.receive``.
    """
    data = bytearray()
    while len(data) < num_bytes:
        message = await stream.receive(timeout_s=timeout_s)
        expected = min(PIECE_BYTES, num_bytes - len(data))
        payload = memoryview(message.payload)
        if message.kind != "piece" or message.get("start", int) != len(data) or payload.nbytes != expected:
            raise BadMessage(f"expected {expected} bytes from {len(data)}, got {message.kind}")
        data += payload
    return data
