"""Addresses of this machine, as its owner types them."""

import errno
import os
from typing import Any

import pytest

from collab.errors import PortTaken
from collab.net import listening
from collab.net.hivemind_parts import Multiaddr
from collab.net.listening import at_home, check_port, to_announce, to_listen


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("/ip4/203.0.113.7/tcp/4000", "/ip4/203.0.113.7/tcp/4000"),
        ("203.0.113.7:4000", "/ip4/203.0.113.7/tcp/4000"),
        ("/ip6/2001:db8::7/tcp/4000", "/ip6/2001:db8::7/tcp/4000"),
        ("[2001:db8::7]:4000", "/ip6/2001:db8::7/tcp/4000"),
        ("/dns/example.org/tcp/4000", "/dns/example.org/tcp/4000"),
        ("/dns6/example.org/tcp/4000", "/dns6/example.org/tcp/4000"),
        ("Home-7.example.org:4000", "/dns4/home-7.example.org/tcp/4000"),
        ("localhost:04000", "/dns4/localhost/tcp/4000"),
    ],
)
def test_an_address_is_a_multiaddress_or_host_and_port(text: str, address: str) -> None:
    assert to_announce(text) == address
    assert str(Multiaddr(address)) == address, "the transport takes it"


@pytest.mark.parametrize(
    "text",
    [
        "", "4000", ":4000", "203.0.113.7", "/ip4/203.0.113.7", "/ip4/203.0.113.7/tcp", "/ip4/203.0.113.7/tcp/",
        "/ip4/203.0.113.7/udp/4000", "/ip4/203.0.113.7/tcp/4000/p2p/12D3", "/tcp/4000", "ip4/203.0.113.7/tcp/4000",
        "/ip4/203.0.113/tcp/4000", "203.0.113:4000", "999.0.0.1:4000", "/ip4/example.org/tcp/4000",
        "/ip6/203.0.113.7/tcp/4000", "/dns4/203.0.113.7/tcp/4000", "2001:db8::7:4000", "[fe80::1%eth0]:4000",
        "http://example.org:4000", "ex ample:4000", "example.org:http", "0.0.0.0:4000", "[::]:4000", "1.2.3.4:0",
        "1.2.3.4:65536", "1.2.3.4:\u0664\u0660", "1.2.3.4:40 ", "1.2.3.4:40\n",
        "-a.org:1", "a-.org:1", "a..org:1", "ab--cd.org:1", f"{'a' * 64}.org:1",
    ],
)  # fmt: skip
def test_what_nobody_could_dial_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"such as /ip4/203\.0\.113\.7/tcp/4000, 203\.0\.113\.7:4000 or "):
        to_announce(text)


@pytest.mark.parametrize(
    ("text", "address"), [("0.0.0.0", "0.0.0.0"), ("127.0.0.1", "127.0.0.1"), ("LocalHost", "127.0.0.1")]
)
def test_a_machine_listens_on_an_address_or_for_itself_only(text: str, address: str) -> None:
    assert to_listen(text) == address
    assert str(Multiaddr(f"/ip4/{to_listen(text)}/tcp/0")) == f"/ip4/{address}/tcp/0", "the transport takes it"


@pytest.mark.parametrize(
    "text", ["", "example.org", "::", "::1", "127.0.0", "127.0.0.1:4000", "127.0.0.1 ", "300.0.0.1"]
)
def test_what_the_transport_cannot_listen_on_is_refused_with_what_it_can(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected an IPv4 address of this machine, .* or localhost"):
        to_listen(text)


@pytest.mark.parametrize("port", [0, 27_613])
def test_an_address_of_another_machine_is_no_port_that_is_taken(port: int) -> None:
    """Of the router, say, as its owner knows it from outside."""
    with pytest.raises(PortTaken, match="Cannot assign requested address") as refused:
        check_port("203.0.113.7", port)
    assert "leave --host out" in refused.value.hint
    assert "--announce" in refused.value.hint


def test_a_port_that_is_for_root_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(listening.socket.socket, "bind", forbidden)
    with pytest.raises(PortTaken) as refused:
        check_port("127.0.0.1", 443)
    assert refused.value.hint == "ports below 1024 are for root: choose another --port"


@pytest.mark.parametrize(
    ("address", "here"),
    [
        ("/ip4/203.0.113.7/tcp/4000/p2p/12D3", "/ip4/127.0.0.1/tcp/4000/p2p/12D3"),
        ("/dns4/example.org/tcp/4000/p2p/12D3", "/ip4/127.0.0.1/tcp/4000/p2p/12D3"),
        ("/ip4/127.0.0.1/tcp/4000/p2p/12D3", "/ip4/127.0.0.1/tcp/4000/p2p/12D3"),
        ("/ip4/203.0.113.7/tcp/4000/p2p/12D3/p2p-circuit/p2p/12D4", ""), ("/ip4/203.0.113.7/tcp/4000", ""),
        ("/ip4/203.0.113.7/udp/4000/p2p/12D3", ""), ("nonsense", ""), ("", ""),
    ],
)  # fmt: skip
def test_a_peer_of_this_machine_is_at_the_same_port_of_it(address: str, here: str) -> None:
    assert at_home(address) == here
