"""Looking for a way through one's router: whom to meet, when, and what is said once it is found."""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable, Collection

import pytest

from collab.errors import NetworkError, PeerUnreachable, TimedOut
from collab.net.punching import FIRST_PAUSE_S, LOOK_S, RENEWALS, find_hole
from collab.swarm.progress import SwarmView
from collab.swarm.reachability import Answer, Reaching, Verdict, decide, relayed
from collab.types import PeerId, Reachability
from tests.fakes import run
from tests.swarm.people import PEOPLE, record

ME = PEOPLE[0].peer_id
HIDDEN = [record(n, reach=Reachability.RELAYED, can_be_dialled=False) for n in (0, 1, 2)]


class FakeBurrow:
    """A daemon that punches through to ``open_to``, once it knows where it is seen."""

    def __init__(
        self, open_to: Collection[PeerId] = (), *, seen_from_s: float = 0.0, error: NetworkError | None = None
    ) -> None:
        self.open_to, self.seen_from_s, self.error = open_to, seen_from_s, error
        self.met: list[tuple[float, PeerId]] = []
        self.connected: set[PeerId] = set()

    async def is_seen_outside(self) -> bool:
        return asyncio.get_running_loop().time() >= self.seen_from_s

    async def through_holes(self) -> frozenset[PeerId]:
        return frozenset(peer for _, peer in self.met if peer in self.open_to)

    async def connected_peers(self) -> frozenset[PeerId]:
        return frozenset(self.connected)

    async def meet(self, peer: PeerId, *, timeout_s: float) -> None:
        self.met.append((asyncio.get_running_loop().time(), peer))
        if self.error is not None:
            raise self.error


def first_verdict() -> Verdict:
    answer = Answer(helper=PEOPLE[5].peer_id, host="8.8.8.8", is_reached=False)
    return relayed(decide([answer], own_hosts=(), port=4000, trusted=(), num_asked=1), 1)


def look_for(
    burrow: FakeBurrow, records: Callable[[], list[object]] = lambda: list(HIDDEN), *, for_s: float = 600.0
) -> list[Verdict]:
    """Verdicts of ``for_s`` seconds."""
    told: list[Verdict] = []

    async def main() -> None:
        reaching = Reaching(first_verdict())
        reaching.follow(told.append)

        async def look() -> SwarmView:
            return SwarmView(tuple(records()), 0.0)  # type: ignore[arg-type]

        try:
            async with asyncio.timeout(for_s):
                await find_hole(burrow, look, ME, random.Random(0), reaching)
        except TimeoutError:
            pass
        else:
            assert reaching.verdict.reach is Reachability.HOLE_PUNCHED

    run(main())
    return told


def test_a_way_to_another_hidden_peer_is_found_and_said_once() -> None:
    burrow = FakeBurrow(open_to=[PEOPLE[1].peer_id, PEOPLE[2].peer_id])
    (verdict,) = look_for(burrow)
    assert verdict.reach is Reachability.HOLE_PUNCHED
    assert verdict.text == first_verdict().text + ", and directly from then on: its router lets them through"
    assert [at_s for at_s, _ in burrow.met] == [LOOK_S], "one was enough"


def test_nobody_is_met_before_we_know_where_others_see_us() -> None:
    burrow = FakeBurrow(open_to=[PEOPLE[1].peer_id, PEOPLE[2].peer_id], seen_from_s=100.0)
    look_for(burrow)
    assert burrow.met[0][0] == pytest.approx(100.0)


@pytest.mark.parametrize("error", [None, PeerUnreachable("no place"), TimedOut("no answer")])
def test_all_are_tried_in_turn_and_ever_more_rarely(error: NetworkError | None) -> None:
    burrow = FakeBurrow(error=error)
    assert look_for(burrow, for_s=1000.0) == []
    times, peers = zip(*burrow.met, strict=True)
    assert set(peers[:2]) == {PEOPLE[1].peer_id, PEOPLE[2].peer_id}
    assert set(peers[2:4]) == set(peers[:2])
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert pauses == [pytest.approx(FIRST_PAUSE_S * 2**n, abs=LOOK_S) for n in range(1, len(pauses) + 1)]


def test_who_can_be_dialled_or_has_no_relay_is_left_alone() -> None:
    burrow = FakeBurrow(open_to=[peer.peer_id for peer in PEOPLE])
    direct = record(3, reach=Reachability.DIRECT)
    client = record(4, reach=Reachability.CLIENT, can_be_dialled=False)
    assert look_for(burrow, lambda: [HIDDEN[0], direct, client]) == []
    assert burrow.met == []


def test_a_circuit_that_came_before_we_knew_where_we_are_seen_is_made_anew_by_one_of_both_ends() -> None:
    burrow = FakeBurrow(seen_from_s=100.0)
    burrow.connected = {PEOPLE[1].peer_id, PEOPLE[2].peer_id}
    assert look_for(burrow, for_s=20_000.0) == []
    ours = {peer for peer in burrow.connected if peer > ME}
    assert Counter(peer for _, peer in burrow.met) == Counter(dict.fromkeys(ours, RENEWALS))


def test_who_comes_later_is_found_without_a_long_pause() -> None:
    burrow = FakeBurrow(open_to=[PEOPLE[1].peer_id])
    look_for(burrow, lambda: list(HIDDEN[:2]) if asyncio.get_running_loop().time() > 300.0 else [HIDDEN[0]])
    assert burrow.met[0][0] <= 300.0 + FIRST_PAUSE_S + LOOK_S


def test_a_directory_that_does_not_answer_ends_nothing() -> None:
    def records() -> list[object]:
        if asyncio.get_running_loop().time() < 100.0:
            raise TimedOut("mute")
        return list(HIDDEN)

    burrow = FakeBurrow(open_to=[PEOPLE[1].peer_id, PEOPLE[2].peer_id])
    assert len(look_for(burrow, records)) == 1
