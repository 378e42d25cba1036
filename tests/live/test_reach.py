"""Reachability with real processes: on loopback, and behind routers in namespaces, which need root, as CI has it."""

import asyncio
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from collab.errors import PeerUnreachable
from collab.net import reaching
from collab.net.fresh_dial import who_answers
from collab.net.hivemind_net import NetworkSettings, open_transport
from collab.net.listening import tcp_port_in
from collab.net.punching import FORGOTTEN_S
from collab.net.startup import StartupSettings, start_peer
from collab.swarm.identity import load_or_create_identity
from collab.types import Reachability
from tests.fakes import FakeObserver
from tests.live.processes import LIMIT_S, Peer, live_swarm, wait_until
from tests.live.test_swarm_life import digits

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from netlab_homes import Homes

PORT = 47000


def test_a_daemon_proves_its_identity_to_a_stranger_and_other_listeners_cannot(tmp_path: Path) -> None:
    async def main() -> None:
        load_or_create_identity(tmp_path / "key")
        deaf = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        async with open_transport(NetworkSettings(identity_path=tmp_path / "key", host="127.0.0.1")) as transport:
            port = tcp_port_in((await transport.addresses())[0])
            assert await who_answers("127.0.0.1", port, timeout_s=LIMIT_S) == transport.peer_id
            assert await transport.answers(transport.peer_id, "127.0.0.1", port, timeout_s=LIMIT_S)
            with pytest.raises(PeerUnreachable):
                await who_answers("127.0.0.1", deaf.sockets[0].getsockname()[1], timeout_s=LIMIT_S)
        with pytest.raises(PeerUnreachable):
            await who_answers("127.0.0.1", port, timeout_s=LIMIT_S)
        deaf.close()
        await deaf.wait_closed()

    asyncio.run(main())


def test_on_loopback_a_peer_is_found_to_be_reachable_as_soon_as_all_have_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaching, "PATIENCE_S", LIMIT_S)

    async def main() -> None:
        first = StartupSettings(network=NetworkSettings(identity_path=tmp_path / "first", host="127.0.0.1"))
        async with start_peer(first, FakeObserver()) as server:
            network = NetworkSettings(identity_path=tmp_path / "second", host="127.0.0.1")
            settings = StartupSettings(network=network, bootstrap=await server.ports.transport.addresses())
            async with start_peer(settings, FakeObserver()) as newcomer:
                assert newcomer.verdict.reach is Reachability.DIRECT
                assert newcomer.verdict.num_reached == 1
                assert newcomer.verdict_s < LIMIT_S

    asyncio.run(main())


def verdict_of(peer: Peer) -> dict[str, Any]:
    """What it says of how others reach it."""
    wait_until(lambda: bool(peer.all("ReachDecided")), f"the verdict of {peer.name}", peer)
    return peer.all("ReachDecided")[0]


def reaches(peer: Peer) -> list[str]:
    """How others reached it, by its own word, in order."""
    return [verdict["reach"] for verdict in peer.all("ReachDecided")]


def has_contributed(peer: Peer) -> bool:
    return any(step["own_samples"] for step in peer.all("EpochFinished"))


def test_peers_behind_routers_join_without_flags_contribute_and_say_how_they_are_reached(tmp_path: Path) -> None:
    """Three homes with a router each: two trainers begin, whom nobody can dial; a third one gets their state all the
    same, through the backbone. A fourth home's router passes a port on; one more trainer stands outside.
    """
    with (
        Homes(outside=2, homes=[1, 1, 1, 1]) as lab,
        live_swarm(tmp_path / "run", digits(until=100000, every=100000)) as swarm,
    ):
        lab.forward_port(3, PORT)
        backbone = swarm.backbone("--port", str(PORT), place=lab.outside(0))
        first = [swarm.join(f"hidden-{home}", place=lab.at_home(home)) for home in (0, 1)]
        for peer in first:
            wait_until(lambda peer=peer: has_contributed(peer), f"{peer.name} to contribute", peer)
        late = swarm.join("late", place=lab.at_home(2))
        wait_until(lambda: bool(late.all("StateFetched")), "the late one to have a state", late)
        outside = swarm.join("outside", place=lab.outside(1))
        forwarded = swarm.join("forwarded", "--port", str(PORT), place=lab.at_home(3))
        for peer in (late, outside, forwarded):
            wait_until(lambda peer=peer: has_contributed(peer), f"{peer.name} to contribute", peer)
        verdicts = {peer.name: verdict_of(peer) for peer in (*first, late, outside, forwarded)}
        assert {name: (verdict["reach"], verdict["host"]) for name, verdict in verdicts.items()} == {
            "hidden-0": ("relayed", lab.router_address(0)),
            "hidden-1": ("relayed", lab.router_address(1)),
            "late": ("relayed", lab.router_address(2)),
            "outside": ("direct", lab.outside_address(1)),
            "forwarded": ("direct", lab.router_address(3)),
        }
        assert median(verdict["seconds"] for verdict in verdicts.values()) < reaching.PATIENCE_S + 1.0
        for peer in (*first, late):
            peer.wait_to_say("reach: relayed: others cannot dial this machine")
            peer.wait_to_say("  -> nothing needs to be done")
        status = swarm.status(place=lab.outside(1))["peers"]
        reach = {name: verdict["reach"] for name, verdict in verdicts.items()}
        assert {peer["name"]: peer["reach"] for peer in status} == {"backbone": "direct", **reach}
        donors = {donor for fetched in late.all("StateFetched") for donor in fetched["donors"] if fetched["epoch"] > 0}
        assert donors <= {peer["id"] for peer in status if peer["name"].startswith("hidden")}
        assert donors
        assert backbone.process.poll() is None


@pytest.mark.parametrize("first", ["outside", "hidden"])
def test_two_behind_routers_meet_through_a_backbone_and_get_a_direct_connection(first: str, tmp_path: Path) -> None:
    """Five peers outside, since the daemon believes no fewer than four about where it is seen from.

    When most of them come last, the two behind routers have met by then, in a circuit of which nothing could come.
    """
    with (
        Homes(outside=5, homes=[1, 1], delay_ms=10.0) as lab,
        live_swarm(tmp_path / "run", digits(until=100000, every=100000)) as swarm,
    ):
        swarm.backbone("--port", str(PORT), place=lab.outside(0))

        def outside() -> None:
            for index in range(1, 5):
                swarm.join(f"outside-{index}", "--role", "auxiliary", place=lab.outside(index))

        if first == "outside":
            outside()
        hidden = [swarm.join(f"hidden-{home}", place=lab.at_home(home)) for home in (0, 1)]
        if first == "hidden":
            for peer in hidden:
                peer.wait_to_contribute()
            outside()
        for peer in hidden:
            limit_s = FORGOTTEN_S + LIMIT_S  # on a busy machine the first attempt may come to nothing
            wait_until(lambda peer=peer: reaches(peer)[-1:] == ["hole-punched"], f"a way to {peer.name}", peer, limit_s)
        for peer in hidden:
            assert reaches(peer)[:2] == ["relayed", "hole-punched"]
            peer.wait_to_say("reach: hole-punched: others cannot dial this machine")

        def told() -> set[str]:
            status = swarm.status(place=lab.outside(1))["peers"]
            return {peer["reach"] for peer in status if peer["name"].startswith("hidden")}

        wait_until(lambda: told() == {"hole-punched"}, "everybody to hear of it")
