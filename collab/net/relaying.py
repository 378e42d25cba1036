"""Circuits through a relay: how two peers meet that nobody can dial (libp2p's circuit relay, version 2).

Who cannot be dialled reserves a place at a relay that it is connected to; another asks the relay for a circuit to it,
and both shake hands through that as over any connection, so that the relay sees nothing and can pretend nothing. The
daemon carries circuits by itself; the two messages of a reservation are spoken here, so that we know what is granted.
"""

import asyncio
import math
from dataclasses import dataclass

import base58

from collab.errors import BadMessage, PeerUnreachable, TimedOut
from collab.net.hivemind_parts import P2P, ControlFailure, Multiaddr, P2PDaemonError, PeerID
from collab.types import PeerId

HOP_PROTOCOL = "/libp2p/circuit/relay/0.2.0/hop"
PUNCHING_PROTOCOL = "/libp2p/dcutr"
RESERVE = bytes((2, 0x08, 0))
"""A message of two bytes: field 1, the kind, is 0."""
KIND_FIELD, LIMIT_FIELD, STATUS_FIELD, TIME_FIELD, DATA_FIELD = 1, 4, 5, 1, 2
STATUS_KIND, STATUS_OK = 2, 100
"""Source of these: libp2p specifications, relay/circuit-v2.md, "Hop protocol" and its protobuf."""
LARGEST_ANSWER_BYTES = 4096
P2P_CODE, CIRCUIT_CODE = bytes((0xA5, 0x03)), bytes((0xA2, 0x02))
"""Of multiaddresses, as variable-length integers: 421 and 290."""

LEAST_DATA_BYTES = 16 << 20
"""A relay that grants less is of no use: a snapshot's chunk has 1 MiB, and rounds' results may be larger."""
STATES_PER_CIRCUIT = 2
"""One whole state, and as much again of rounds that were missed meanwhile."""
SLOWEST_BYTES_PER_S = 250_000.0
SHORTEST_TIME_S, LONGEST_TIME_S = 120.0, 3600.0
CIRCUITS_OF_A_PEER = 16
"""A newcomer takes the state from up to eight donors, and is soon asked for it by as many."""
PLACES = 1024
"""In an hour: a place stays taken for that long, also when its peer has left; if that comes back, it takes another."""
BUFFER_BYTES = 64 << 10
"""The daemon's own default, 16 MiB for each direction of each circuit, is 512 MiB for a peer with all its circuits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayLimits:
    """What one backbone passes on for others."""

    data_bytes: int
    """Over one circuit, in each direction; then it breaks."""
    time_s: int
    """So does one that has lasted for so long."""
    circuits_of_a_peer: int = CIRCUITS_OF_A_PEER
    places: int = PLACES
    """Given away in an hour, one of them to ourselves when the daemon starts."""

    def arguments(self) -> dict[str, object]:
        """For the daemon's command line."""
        return {
            "relayDataLimit": self.data_bytes,
            "relayTimeLimit": f"{self.time_s}s",
            "relayMaxCircuits": self.circuits_of_a_peer,
            "relayMaxReservations": self.places,
            "relayBufferSize": BUFFER_BYTES,
        }


def limits_for(state_bytes: int) -> RelayLimits:
    """Limits under which a newcomer gets a run's state over one circuit at 2 Mbit/s, and not much more.

    Args:
        state_bytes: of a snapshot: parameters, buffers and optimiser state.
    """
    data_bytes = max(STATES_PER_CIRCUIT * state_bytes, LEAST_DATA_BYTES)
    time_s = min(max(data_bytes / SLOWEST_BYTES_PER_S, SHORTEST_TIME_S), LONGEST_TIME_S)
    return RelayLimits(data_bytes=data_bytes, time_s=math.ceil(time_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A place at a relay."""

    data_bytes: int
    """0: without a limit."""
    time_s: int
    """0: without a limit."""

    @property
    def is_useful(self) -> bool:
        return not 0 < self.data_bytes < LEAST_DATA_BYTES


async def reserve(p2p: P2P, relay: PeerId, *, timeout_s: float) -> Reservation:
    """Ask for a place at ``relay``, to which we are connected; it is ours for an hour, as long as the connection lasts.

    Raises:
        PeerUnreachable: it is no relay, or has no place for us.
        BadMessage: its answer makes no sense.
        TimedOut: no answer within ``timeout_s``.
    """
    try:
        async with asyncio.timeout(timeout_s):
            _, reader, writer = await p2p._client.stream_open(PeerID.from_base58(relay), (HOP_PROTOCOL,))
            try:
                writer.write(RESERVE)
                answer = await _read_message(reader)
            finally:
                writer.close()
    except TimeoutError:
        raise TimedOut(f"no answer from the relay {relay} within {timeout_s:.1f} s") from None
    except (ControlFailure, P2PDaemonError, OSError, asyncio.IncompleteReadError) as error:
        raise PeerUnreachable(f"{relay} is no relay: {error}") from error
    return read_reservation(answer)


async def _read_message(reader: asyncio.StreamReader) -> bytes:
    length = shift = 0
    while True:
        byte = (await reader.readexactly(1))[0]
        length |= (byte & 0x7F) << shift
        shift += 7
        if length > LARGEST_ANSWER_BYTES or shift > 21:
            raise BadMessage("a relay's answer is too long")
        if not byte & 0x80:
            return await reader.readexactly(length)


def read_reservation(answer: bytes) -> Reservation:
    """What a relay grants.

    Args:
        answer: its message, without the length before it.

    Raises:
        PeerUnreachable: it refuses.
        BadMessage: it makes no sense.
    """
    fields = read_fields(answer)
    status = fields.get(STATUS_FIELD)
    if fields.get(KIND_FIELD) != STATUS_KIND or not isinstance(status, int):
        raise BadMessage("a relay's answer holds no status")
    if status != STATUS_OK:
        raise PeerUnreachable(f"the relay has no place for us: status {status}")
    limit = fields.get(LIMIT_FIELD, b"")
    granted = read_fields(limit) if isinstance(limit, bytes) else {}
    data_bytes, time_s = granted.get(DATA_FIELD, 0), granted.get(TIME_FIELD, 0)
    if not isinstance(data_bytes, int) or not isinstance(time_s, int):
        raise BadMessage("a relay's limits are no numbers")
    return Reservation(data_bytes=data_bytes, time_s=time_s)


def read_fields(message: bytes) -> dict[int, int | bytes]:
    """Fields of a protobuf message by number; of a repeated one the last. Other kinds of fields are none of ours.

    Raises:
        BadMessage: it is cut, or holds such a field.
    """
    fields: dict[int, int | bytes] = {}
    place = 0

    def number() -> int:
        nonlocal place
        value = shift = 0
        while True:
            if place >= len(message) or shift > 63:
                raise BadMessage("a relay's message is cut")
            byte = message[place]
            place += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    while place < len(message):
        tag = number()
        value = number()
        if tag & 7 == 0:
            fields[tag >> 3] = value
        elif tag & 7 == 2 and place + value <= len(message):
            fields[tag >> 3] = message[place : place + value]
            place += value
        else:
            raise BadMessage("a relay's message is cut")
    return fields


class _Circuit(Multiaddr):  # type: ignore[misc]  # hivemind is untyped
    """``/p2p/<relay>/p2p-circuit``; hivemind writes the relay's id as a CID there, which the daemon does not read."""

    def __init__(self, relay: PeerId) -> None:
        identity = base58.b58decode(relay)
        self._content = P2P_CODE + bytes((len(identity),)) + identity + CIRCUIT_CODE

    def to_bytes(self) -> bytes:
        return self._content


async def connect_through(p2p: P2P, relay: PeerId, peer: PeerId) -> None:
    """Connect to ``peer`` through ``relay``, to which we are connected.

    Raises:
        ControlFailure: the relay knows no such peer, or its limits are reached.
    """
    await p2p._client.connect(PeerID.from_base58(peer), [_Circuit(relay)])
