"""Addresses of this machine, as its owner types them."""

import pytest

from collab.net.hivemind_parts import Multiaddr
from collab.net.listening import to_announce


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("/ip4/203.0.113.7/tcp/4000", "/ip4/203.0.113.7/tcp/4000"),
        ("203.0.113.7:4000", "/ip4/203.0.113.7/tcp/4000"),
        ("/ip6/2001:db8::7/tcp/4000", "/ip6/2001:db8::7/tcp/4000"),
        ("[2001:db8::7]:4000", "/ip6/2001:db8::7/tcp/4000"),
        ("/dns/example.org/tcp/4000", "/dns/example.org/tcp/4000"),
        ("/dns6/example.org/tcp/4000", "/dns6/example.org/tcp/4000"),
        ("Home-7.example.org:4000", "/dns4/Home-7.example.org/tcp/4000"),
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
    ],
)  # fmt: skip
def test_what_nobody_could_dial_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="such as /ip4/203.0.113.7/tcp/4000, 203.0.113.7:4000 or example.org:4000"):
        to_announce(text)
