"""What a relay grants: read from its answer, set from the run's size, and asked for again and again."""

import asyncio
from typing import cast

import pytest
from hypothesis import given, strategies as st

from collab.errors import BadMessage, NetworkError, PeerUnreachable
from collab.net.hivemind_net import HivemindTransport
from collab.net.reaching import RENEW_S, keep_places, reserve_places
from collab.net.relaying import (
    LEAST_DATA_BYTES,
    LONGEST_TIME_S,
    SHORTEST_TIME_S,
    Reservation,
    limits_for,
    read_fields,
    read_reservation,
)
from collab.types import PeerId
from tests.fakes import run


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def answer(*, status: int = 100, kind: int = 2, limit: bytes | None = None) -> bytes:
    """A relay's message."""
    body = b"\x08" + varint(kind)
    if limit is not None:
        body += b"\x22" + varint(len(limit)) + limit
    return body + b"\x28" + varint(status)


def limit(time_s: int, data_bytes: int) -> bytes:
    return b"\x08" + varint(time_s) + b"\x10" + varint(data_bytes)


def test_a_place_is_read_with_its_limits() -> None:
    assert read_reservation(answer(limit=limit(77, 33_554_432))) == Reservation(data_bytes=33_554_432, time_s=77)
    assert read_reservation(answer()) == Reservation(data_bytes=0, time_s=0)


@pytest.mark.parametrize("status", [200, 201, 204, 400, 0])
def test_a_refusal_is_no_place(status: int) -> None:
    with pytest.raises(PeerUnreachable, match=str(status)):
        read_reservation(answer(status=status))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        answer(kind=1),
        answer()[:-1],
        answer(limit=b"\x08"),
        answer(limit=b"\x0a\x01x"),
        b"\x08\x02\x2a\x01d",
        b"\x22\xff\x7f",
        b"\x0d\x00\x00\x00\x00",
        b"\xff" * 20,
    ],
)
def test_an_answer_that_makes_no_sense_is_refused(message: bytes) -> None:
    with pytest.raises(BadMessage):
        read_reservation(message)


@given(st.binary(max_size=64))
def test_any_answer_is_refused_or_makes_sense(message: bytes) -> None:
    try:
        found = read_reservation(message)
    except NetworkError:
        return
    assert found.data_bytes >= 0
    assert found.time_s >= 0


def test_of_a_repeated_field_the_last_counts() -> None:
    assert read_fields(b"\x08\x01\x08\x02") == {1: 2}


def test_a_place_with_the_daemons_built_in_limits_is_of_no_use() -> None:
    assert not Reservation(data_bytes=1 << 17, time_s=120).is_useful
    assert Reservation(data_bytes=LEAST_DATA_BYTES, time_s=120).is_useful
    assert Reservation(data_bytes=0, time_s=0).is_useful


@pytest.mark.parametrize("state_bytes", [0, 10_000, 24_000_000, 1_500_000_000, 10**12])
def test_a_circuit_carries_a_whole_state_in_the_time_it_has_and_not_much_more(state_bytes: int) -> None:
    limits = limits_for(state_bytes)
    assert limits.data_bytes >= 2 * state_bytes
    assert limits.data_bytes <= max(2 * state_bytes, LEAST_DATA_BYTES)
    assert SHORTEST_TIME_S <= limits.time_s <= LONGEST_TIME_S
    assert Reservation(data_bytes=limits.data_bytes, time_s=limits.time_s).is_useful
    if limits.time_s < LONGEST_TIME_S:
        assert limits.data_bytes / limits.time_s <= 250_000.0, "2 Mbit/s are enough"


class Daemon:
    """Has places at those relays that are up."""

    def __init__(self) -> None:
        self.up = {"a", "b"}
        self.asked: list[str] = []

    async def reserve(self, relay: PeerId, *, timeout_s: float) -> Reservation:
        self.asked.append(relay)
        if relay not in self.up:
            raise PeerUnreachable(f"{relay} is gone")
        return Reservation(data_bytes=0, time_s=0)


def test_places_are_asked_for_again_also_at_a_relay_that_was_away() -> None:
    async def main() -> None:
        daemon = Daemon()
        transport = cast(HivemindTransport, daemon)
        relays = [PeerId(name) for name in "abca"]
        assert await reserve_places(transport, relays) == 2
        assert sorted(daemon.asked) == ["a", "b", "c"]
        keeping = asyncio.create_task(keep_places(transport, relays))
        daemon.up = set()
        await asyncio.sleep(RENEW_S + 1.0)
        daemon.up = {"a"}
        await asyncio.sleep(RENEW_S)
        keeping.cancel()
        assert len(daemon.asked) == 9

    run(main())
