"""A newcomer knows its link after a second or two, whoever helps it."""

import asyncio

import pytest

from collab.averaging.flow import Links
from collab.averaging.probe import BUSY_S, LONGEST_S, PATIENCE_S, TRIES, Probe, Probed
from collab.averaging.probe_traffic import SECONDS
from collab.ports import LinkLimits, Ports
from collab.simulation.world import World
from collab.swarm.bandwidth import Rate
from tests.averaging.probe_lab import FAST, MBIT, PAUSE_S, ProbeLab, check, mbit, take_turns
from tests.simulation.rounds import link

FAR_S = 0.35
"""Two round trips to a peer 80 ms away, which is asked and gets ready before the parts."""


@pytest.fixture(autouse=True)
def fair_links(monkeypatch: pytest.MonkeyPatch) -> None:
    take_turns(monkeypatch)


# -- what it measures ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_helpers", [1, 2, 7])
@pytest.mark.parametrize(("up", "down"), [(2, 10), (10, 50), (25, 25), (30, 100)])
def test_a_link_narrower_than_others_is_measured_in_both_directions(up: float, down: float, num_helpers: int) -> None:
    its_link = link(up, down, delay_ms=5)
    lab = ProbeLab([its_link], [FAST] * num_helpers)
    check(lab.run(), its_link, off=0.05)
    assert lab.seconds[0] < 2.0


@pytest.mark.parametrize("num_helpers", [2, 4])
def test_a_wide_link_near_others_is_measured_too(num_helpers: int) -> None:
    its_link = link(200, delay_ms=5)
    lab = ProbeLab([its_link], [FAST] * num_helpers)
    check(lab.run(), its_link, off=0.05)
    assert lab.seconds[0] < 1.3


@pytest.mark.parametrize("one_way_ms", [5, 20, 40, 80])
def test_a_home_link_is_measured_over_long_ways(one_way_ms: float) -> None:
    its_link = link(10, 25, delay_ms=1)
    lab = ProbeLab([its_link], [link(1000, delay_ms=one_way_ms - 1)] * 4)
    check(lab.run(), its_link)
    assert lab.seconds[0] < LONGEST_S + FAR_S


@pytest.mark.parametrize("one_way_ms", [5, 80])
@pytest.mark.parametrize("rate", [2, 25, 200, 1000])
def test_more_is_never_measured_than_the_link_carries(rate: float, one_way_ms: float) -> None:
    lab = ProbeLab([link(rate, delay_ms=one_way_ms / 2)], [link(1000, delay_ms=one_way_ms / 2)] * 2)
    probed = lab.run()
    for found in (probed.up, probed.down):
        assert found is not None
        assert 0.85 * rate * found.is_limit <= mbit(found) <= 1.15 * rate
    assert lab.seconds[0] <= LONGEST_S + FAR_S


def test_a_link_that_carries_the_most_a_probe_sends_in_no_time_carries_at_least_so_much() -> None:
    probed = ProbeLab([FAST], [link(5000, delay_ms=1)] * 4).run()
    for found in (probed.up, probed.down):
        assert found is not None
        assert not found.is_limit
        assert 400 < mbit(found) < 1000


@pytest.mark.parametrize("num_helpers", [1, 2, 4])
@pytest.mark.parametrize("rate", [10, 40])
def test_helpers_narrower_than_the_newcomer_show_what_it_carries_at_least(rate: float, num_helpers: int) -> None:
    probed = ProbeLab([link(200, delay_ms=5)], [link(rate, delay_ms=5)] * num_helpers).run()
    assert probed.up == Rate(pytest.approx(rate * num_helpers * MBIT, rel=0.05), is_limit=False)
    assert probed.down == Rate(pytest.approx(rate * num_helpers * MBIT, rel=0.05), is_limit=False)


def test_one_wide_helper_among_narrow_ones_is_enough() -> None:
    its_link = link(25, 100, delay_ms=5)
    check(
        ProbeLab([its_link], [link(10, delay_ms=10), link(10, delay_ms=15), FAST, link(10, delay_ms=5)]).run(), its_link
    )


def test_what_helpers_that_do_not_know_their_own_links_show_is_no_limit() -> None:
    probed = ProbeLab([link(25, delay_ms=5)], [FAST] * 4, knows_links=False).run()
    assert probed.up == Rate(pytest.approx(25 * MBIT, rel=0.05), is_limit=False)
    assert probed.down == Rate(pytest.approx(25 * MBIT, rel=0.05), is_limit=False)


def test_a_link_that_seems_narrower_down_than_up_carries_at_least_so_much_down() -> None:
    """Helpers that have other things to send show the same."""
    probed = ProbeLab([link(100, 30, delay_ms=5)], [FAST] * 4).run()
    assert probed.up == Rate(pytest.approx(100 * MBIT, rel=0.05), is_limit=True)
    assert probed.down == Rate(pytest.approx(30 * MBIT, rel=0.05), is_limit=False)


def test_two_newcomers_at_once_are_both_measured() -> None:
    links = [link(10, 50, delay_ms=5), link(25, delay_ms=20)]
    lab = ProbeLab(links, [FAST] * 4)
    lab.run()
    for number, its_link in enumerate(links):
        check(lab.probed[number], its_link, off=0.05)


def test_of_many_newcomers_each_is_measured_or_learns_soon_that_nobody_has_time() -> None:
    lab = ProbeLab([link(10, delay_ms=5)] * 7, [FAST] * 2)
    lab.run()
    measured = [probed for probed in lab.probed.values() if probed.up is not None]
    assert len(measured) >= 6
    assert all(mbit(probed.up) == pytest.approx(10, rel=0.05) for probed in measured)
    waited_s = (TRIES - 1) * BUSY_S
    assert sum(waited_s <= seconds < waited_s + 0.2 for seconds in lab.seconds.values()) == 7 - len(measured)


def test_a_limited_newcomer_sends_and_takes_no_more_than_its_owner_allows() -> None:
    lab = ProbeLab(
        [link(100, delay_ms=5)], [FAST] * 4, limits=LinkLimits(up_bytes_per_s=5 * MBIT, down_bytes_per_s=8 * MBIT)
    )
    probed = lab.run()
    newcomer = lab.world.peers[4].transport.access
    assert mbit(probed.up) == pytest.approx(5, rel=0.1)
    assert mbit(probed.down) <= 8 * 1.05
    assert newcomer.sent_bytes <= 5 * MBIT * lab.seconds[0]
    assert newcomer.received_bytes <= 8 * MBIT * lab.seconds[0] + (512 << 10)  # taken, but not read yet


# -- who does not help -----------------------------------------------------------------------------------------------


def test_nobody_to_ask_costs_no_time_and_says_nothing() -> None:
    lab = ProbeLab([FAST], [])
    assert lab.run() == Probed()
    assert lab.seconds[0] == 0.0


@pytest.mark.parametrize("how", ["dead", "frozen"])
def test_one_peer_of_four_that_says_nothing_costs_a_fraction_of_a_second(how: str) -> None:
    its_link = link(25, delay_ms=5)
    lab = ProbeLab([its_link], [FAST] * 4, **{how: [1]})
    check(lab.run(), its_link, off=0.05)
    assert lab.seconds[0] < 1.5 * SECONDS + 0.3


def test_later_peers_stand_in_for_those_that_say_nothing() -> None:
    its_link = link(25, delay_ms=5)
    lab = ProbeLab([its_link], [FAST] * 8, frozen=[0, 2, 3], dead=[1, 6])
    check(lab.run(), its_link, off=0.05)
    assert lab.seconds[0] < 1.5 * SECONDS + 0.3


@pytest.mark.parametrize("how", ["dead", "frozen"])
def test_peers_that_all_say_nothing_cost_no_more_than_patience(how: str) -> None:
    lab = ProbeLab([FAST], [FAST] * 4, **{how: range(4)})
    assert lab.run() == Probed()
    assert lab.seconds[0] <= PATIENCE_S


# -- one after another -------------------------------------------------------------------------------------------------


def test_peers_that_helped_others_before_their_own_probe_are_measured_as_well() -> None:
    """Each sent a quarter of what came down another's link, which says nothing of its own."""
    world, probed, num_peers = World(1), dict[int, Probed](), 6

    async def peer(ports: Ports, index: int) -> None:
        probe = Probe(ports.transport, Links(ports.clock.monotonic))
        await probe.serve()
        await asyncio.sleep(PAUSE_S + 2.0 * index)
        probed[index] = await probe.measure([other.peer_id for other in world.peers if other.index != index])
        await asyncio.sleep(2.0 * num_peers)

    for index in range(num_peers):
        world.add_peer(lambda ports, index=index: peer(ports, index), link=link(25))
    world.run(until_s=60.0)
    for index, found in probed.items():
        assert found.up is not None, index
        assert mbit(found.up) == pytest.approx(25.0, rel=0.1), index
    assert len(probed) == num_peers
