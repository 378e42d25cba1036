"""Looking for a way through one's router: whom to meet, when, and what is said once it is found."""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping

import pytest

from collab.errors import NetworkError, PeerUnreachable, TimedOut
from collab.net.punching import FIRST_PAUSE_S, FORGOTTEN_S, LOOK_S, OUTSIDE_HOSTS, RENEWALS, find_hole
from collab.swarm.progress import SwarmView
from collab.swarm.reachability import Answer, Reaching, Verdict, decide, relayed
from collab.types import PeerId, Reachability
from tests.fakes import run
from tests.swarm.people import PEOPLE, record

ME = PEOPLE[0].peer_id
OTHERS = [PEOPLE[1].peer_id, PEOPLE[2].peer_id]
HIDDEN = [record(n, reach=Reachability.RELAYED, can_be_dialled=False) for n in (0, 1, 2)]


class FakeBurrow:
    """Daemons that punch through to ``open_to``, when both of them know where they are seen as their circuit begins."""

    def __init__(
        self,
        open_to: Collection[PeerId] = (),
        *,
        seen_from_s: float = 0.0,
        others_from_s: float = 0.0,
        begun: Mapping[PeerId, float] | None = None,
        error: NetworkError | None = None,
    ) -> None:
        self.open_to, self.error = open_to, error
        self.seen_from_s, self.others_from_s = seen_from_s, others_from_s
        self.begun = dict(begun or {})
        """When others begin a circuit."""
        self.met: list[tuple[float, PeerId]] = []
        self.connected: set[PeerId] = set()
        self.through: set[PeerId] = set()

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def hosts_outside(self) -> frozenset[str]:
        return frozenset(f"8.8.8.{n}" for n in range(OUTSIDE_HOSTS if self.now() >= self.seen_from_s else 3))

    async def through_holes(self) -> frozenset[PeerId]:
        return frozenset(self.through)

    async def connected_peers(self) -> frozenset[PeerId]:
        return frozenset(self.connected | {peer for peer, at_s in self.begun.items() if self.now() >= at_s})

    async def is_punching(self, peer: PeerId, *, timeout_s: float) -> bool:
        assert peer in await self.connected_peers()
        return self.now() >= self.others_from_s

    async def meet(self, peer: PeerId, *, timeout_s: float) -> None:
        self.met.append((self.now(), peer))
        if self.error is not None:
            raise self.error
        self.connected.add(peer)
        if peer in self.open_to and self.now() >= max(self.seen_from_s, self.others_from_s):
            self.through.add(peer)


def first_verdict() -> Verdict:
    answer = Answer(helper=PEOPLE[5].peer_id, host="8.8.8.8", is_reached=False)
    return relayed(decide([answer], own_hosts=(), port=4000, trusted=(), num_asked=1), 1)


def look_for(
    burrow: FakeBurrow,
    records: Callable[[], list[object]] = lambda: list(HIDDEN),
    *,
    for_s: float = 600.0,
    me: PeerId = ME,
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
                await find_hole(burrow, look, me, random.Random(0), reaching)
        except TimeoutError:
            pass
        else:
            assert reaching.verdict.reach is Reachability.HOLE_PUNCHED

    run(main())
    return told


def test_a_way_to_another_hidden_peer_is_found_and_said_once() -> None:
    burrow = FakeBurrow(open_to=OTHERS)
    (verdict,) = look_for(burrow)
    assert verdict.reach is Reachability.HOLE_PUNCHED
    assert verdict.text == first_verdict().text + ", and directly from then on: its router lets them through"
    assert [at_s for at_s, _ in burrow.met] == [2 * LOOK_S], "one was enough"


def test_nobody_is_met_before_we_know_where_others_see_us() -> None:
    burrow = FakeBurrow(open_to=OTHERS, seen_from_s=100.0)
    look_for(burrow)
    assert burrow.met[0][0] == pytest.approx(100.0 + LOOK_S)


@pytest.mark.parametrize("error", [None, PeerUnreachable("no place"), TimedOut("no answer")])
def test_all_are_tried_in_turn_and_ever_more_rarely(error: NetworkError | None) -> None:
    burrow = FakeBurrow(error=error)
    assert look_for(burrow, for_s=2000.0) == []
    times, peers = zip(*burrow.met, strict=True)
    assert set(peers[:2]) == set(peers[2:4]) == set(OTHERS)
    for peer in OTHERS:
        own = [at_s for at_s, other in burrow.met if other == peer]
        assert all(after - before >= FORGOTTEN_S for before, after in itertools.pairwise(own)), "routers forget first"
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert all(pause >= FIRST_PAUSE_S * 2**n for n, pause in enumerate(pauses))


def test_who_can_be_dialled_or_has_no_relay_is_left_alone() -> None:
    burrow = FakeBurrow(open_to=[peer.peer_id for peer in PEOPLE])
    direct = record(3, reach=Reachability.DIRECT)
    client = record(4, reach=Reachability.CLIENT, can_be_dialled=False)
    assert look_for(burrow, lambda: [HIDDEN[0], direct, client]) == []
    assert burrow.met == []


def test_a_circuit_that_came_before_we_knew_where_we_are_seen_is_made_anew_at_once_and_seldom_again() -> None:
    burrow = FakeBurrow(seen_from_s=100.0)
    burrow.connected = set(OTHERS)
    assert look_for(burrow, for_s=20_000.0) == []
    assert burrow.met[0][0] == pytest.approx(100.0 + LOOK_S)
    assert Counter(peer for _, peer in burrow.met) == Counter(dict.fromkeys(OTHERS, RENEWALS))


def test_a_circuit_that_somebody_else_began_when_all_were_seen_is_left_alone_until_routers_forget() -> None:
    burrow = FakeBurrow(begun={PEOPLE[1].peer_id: 14.0})
    look_for(burrow, lambda: HIDDEN[: 2 if burrow.now() > 14.0 else 1], for_s=400.0)
    assert burrow.met[0][0] == pytest.approx(15.0 + FORGOTTEN_S, abs=LOOK_S)


def test_a_circuit_is_made_anew_once_its_other_end_knows_where_it_is_seen() -> None:
    burrow = FakeBurrow(open_to=OTHERS, others_from_s=100.0)
    (verdict,) = look_for(burrow)
    assert verdict.reach is Reachability.HOLE_PUNCHED
    assert 100.0 <= burrow.met[-1][0] <= 100.0 + FIRST_PAUSE_S + LOOK_S


def test_one_of_both_ends_begins_circuits() -> None:
    burrow = FakeBurrow(open_to=OTHERS)
    assert look_for(burrow, me=max(OTHERS)) == []
    assert max(OTHERS) not in {peer for _, peer in burrow.met}


def test_who_comes_later_is_found_without_a_long_pause() -> None:
    burrow = FakeBurrow(open_to=[PEOPLE[1].peer_id])
    look_for(burrow, lambda: list(HIDDEN[:2]) if asyncio.get_running_loop().time() > 300.0 else [HIDDEN[0]])
    assert burrow.met[0][0] <= 300.0 + FIRST_PAUSE_S + LOOK_S


def test_a_directory_that_does_not_answer_ends_nothing() -> None:
    def records() -> list[object]:
        if asyncio.get_running_loop().time() < 100.0:
            raise TimedOut("mute")
        return list(HIDDEN)

    burrow = FakeBurrow(open_to=OTHERS)
    assert len(look_for(burrow, records)) == 1
