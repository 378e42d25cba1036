"""How a verdict changes a peer's place in the network."""

import dataclasses
from pathlib import Path

from collab.net.hivemind_net import NetworkSettings
from collab.net.startup import fitting_network
from collab.swarm.reachability import FIRST, Answer, Verdict, as_told, decide, relayed
from collab.types import PeerId, Reachability

NETWORK = NetworkSettings(identity_path=Path("key"), host="0.0.0.0")
HOME = ("/ip4/127.0.0.1/tcp/4000", "/ip4/192.168.1.5/tcp/4000")
ADDRESSES = ("/ip4/127.0.0.1/tcp/4000/p2p/us", "/ip4/192.168.1.5/tcp/4000/p2p/us")


def verdict_at(host: str, *, is_reached: bool = True) -> Verdict:
    answer = Answer(helper=PeerId("a"), host=host, is_reached=is_reached)
    return decide([answer], own_hosts={"127.0.0.1", "192.168.1.5"}, port=4000, trusted=(), num_asked=1)


def test_who_is_reached_at_an_address_of_its_own_changes_nothing() -> None:
    for verdict in (verdict_at("192.168.1.5"), FIRST, as_told(4000)):
        assert fitting_network(NETWORK, verdict, ADDRESSES) == NETWORK


def test_who_cannot_be_dialled_only_dials_and_listens_where_others_tried_so_that_its_like_get_through() -> None:
    verdict = verdict_at("8.8.8.8", is_reached=False)
    expected = dataclasses.replace(NETWORK, is_client=True, is_punching=True, port=4000, announce=HOME)
    assert fitting_network(NETWORK, verdict, ADDRESSES) == expected
    seen = (*ADDRESSES, "/ip4/8.8.8.8/tcp/4000/p2p/us")
    assert fitting_network(NETWORK, verdict, seen) == expected, "a dial there would block the way through the router"


def test_behind_a_router_that_passes_a_port_on_others_are_told_of_the_router_and_neighbours_of_the_machine() -> None:
    found = fitting_network(NETWORK, verdict_at("8.8.8.8"), ADDRESSES)
    assert found.port == 4000
    assert found.announce == ("/ip4/8.8.8.8/tcp/4000", "/ip4/192.168.1.5/tcp/4000")
    assert not found.is_client
    assert fitting_network(NETWORK, verdict_at("2001:4860::8"), ADDRESSES).announce[0] == "/ip6/2001:4860::8/tcp/4000"


def test_what_the_owner_announces_stays() -> None:
    told = dataclasses.replace(NETWORK, announce=("/ip4/1.2.3.4/tcp/5",))
    assert fitting_network(told, verdict_at("8.8.8.8"), ADDRESSES) == told


def test_a_place_at_a_relay_makes_a_client_relayed_and_no_place_changes_nothing() -> None:
    missed = verdict_at("8.8.8.8", is_reached=False)
    assert relayed(missed, 0) == missed
    found = relayed(missed, 2)
    assert found.reach is Reachability.RELAYED
    assert found.text.startswith(missed.text)
    assert "2 backbones" in found.text
    assert found.hint == missed.hint
