"""Whom a leader tells first follows from names, and not from the seed of Python's hashes."""

import asyncio
from typing import cast

from collab.averaging.conduct import Conductor
from collab.averaging.course import Course
from collab.averaging.silence import Silence
from collab.averaging.timeouts import FIRST, MeasuredTimeouts
from collab.net.base import Stream
from collab.net.wire import Message
from collab.types import PeerId
from tests.averaging.certifying import make_notary
from tests.averaging.course_lab import A, make_group
from tests.fakes import FakeNetwork, make_ports, run

LATE = [PeerId(f"late-{number}") for number in (5, 2, 7, 0, 3, 6, 1, 4)]


class Ear:
    """A member's stream that notes what it is told."""

    def __init__(self, peer: PeerId, told: list[tuple[PeerId, str]]) -> None:
        self._peer, self._told = peer, told

    async def send(self, message: Message, *, timeout_s: float) -> None:
        self._told.append((self._peer, message.kind))


def test_those_who_are_out_of_a_round_hear_it_in_the_order_of_their_names() -> None:
    told: list[tuple[PeerId, str]] = []

    async def main() -> None:
        async with FakeNetwork() as network:
            course, clock = Course.of(make_group()), asyncio.get_running_loop().time
            course.gone.update(dict.fromkeys(LATE, ("late", "it is")))
            streams = {peer: cast(Stream, Ear(peer, told)) for peer in LATE}
            notary, timeouts = make_notary(make_ports(network.join(A))), MeasuredTimeouts(clock, FIRST)
            await Conductor(course, streams, timeouts, Silence(clock, 3.0), notary)._tell_dropped()

    run(main())
    assert told == [(peer, "dropped") for peer in sorted(LATE)]
