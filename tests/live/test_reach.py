"""Reachability with real processes: on loopback, and behind routers in namespaces, which need root, as CI has it."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from collab.errors import PeerUnreachable
from collab.net.fresh_dial import who_answers
from collab.net.hivemind_net import NetworkSettings, open_transport
from collab.net.listening import tcp_port_in
from collab.net.startup import StartupSettings, start_peer
from collab.swarm.identity import load_or_create_identity
from collab.types import Reachability
from tests.fakes import FakeObserver
from tests.live.processes import Peer, live_swarm, wait_until
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
            assert await who_answers("127.0.0.1", port, timeout_s=5.0) == transport.peer_id
            assert await transport.answers(transport.peer_id, "127.0.0.1", port, timeout_s=5.0)
            with pytest.raises(PeerUnreachable):
                await who_answers("127.0.0.1", deaf.sockets[0].getsockname()[1], timeout_s=5.0)
        with pytest.raises(PeerUnreachable):
            await who_answers("127.0.0.1", port, timeout_s=5.0)
        deaf.close()
        await deaf.wait_closed()

    asyncio.run(main())


def test_on_loopback_a_peer_is_found_to_be_reachable_in_a_moment(tmp_path: Path) -> None:
    async def main() -> None:
        first = StartupSettings(network=NetworkSettings(identity_path=tmp_path / "first", host="127.0.0.1"))
        async with start_peer(first, FakeObserver()) as server:
            network = NetworkSettings(identity_path=tmp_path / "second", host="127.0.0.1")
            settings = StartupSettings(network=network, bootstrap=await server.ports.transport.addresses())
            async with start_peer(settings, FakeObserver()) as newcomer:
                assert newcomer.verdict.reach is Reachability.DIRECT
                assert newcomer.verdict.num_reached == 1
                assert newcomer.verdict_s < 2.0

    asyncio.run(main())


def verdict_of(peer: Peer) -> dict[str, Any]:
    """What it says of how others reach it."""
    wait_until(lambda: bool(peer.all("ReachDecided")), f"the verdict of {peer.name}", peer)
    return peer.all("ReachDecided")[0]


def has_contributed(peer: Peer) -> bool:
    return any(step["own_samples"] for step in peer.all("EpochFinished"))


def test_peers_behind_routers_join_without_flags_contribute_and_say_how_they_are_reached(tmp_path: Path) -> None:
    """Two homes with a router each, one of which passes a port on; a backbone and a trainer stand outside."""
    with (
        Homes(outside=2, homes=[1, 1, 1]) as lab,
        live_swarm(tmp_path / "run", digits(until=100000, every=1000)) as swarm,
    ):
        lab.forward_port(2, PORT)
        swarm.backbone("--port", str(PORT), place=lab.outside(0))
        outside = swarm.join("outside", place=lab.outside(1))
        hidden = [swarm.join(f"hidden-{home}", place=lab.at_home(home)) for home in (0, 1)]
        forwarded = swarm.join("forwarded", "--port", str(PORT), place=lab.at_home(2))
        peers = [outside, *hidden, forwarded]
        verdicts = {peer.name: verdict_of(peer) for peer in peers}
        words = {name: (verdict["reach"], verdict["host"]) for name, verdict in verdicts.items()}
        assert words == {
            "outside": ("direct", lab.outside_address(1)),
            "hidden-0": ("client", lab.router_address(0)),
            "hidden-1": ("client", lab.router_address(1)),
            "forwarded": ("direct", lab.router_address(2)),
        }
        assert max(verdict["seconds"] for verdict in verdicts.values()) < 3.0
        for peer in peers:
            wait_until(lambda peer=peer: has_contributed(peer), f"{peer.name} to contribute", peer)
        for peer in hidden:
            assert "reach: client: others cannot dial this machine" in peer.tail()
            assert "  -> nothing needs to be done" in peer.tail()
        shown = {peer["name"]: peer["reach"] for peer in swarm.status(place=lab.outside(1))["peers"]}
        assert shown == {"backbone": "direct", **{name: reach for name, (reach, _) in words.items()}}
