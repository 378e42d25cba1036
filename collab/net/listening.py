"""Where a real peer can be dialled."""

import errno
import ipaddress
import re
import socket

from collab.errors import PortTaken

MULTIADDRESS = re.compile(r"/(ip4|ip6|dns|dns4|dns6)/([^/]+)/tcp/([0-9]{1,5})")
HOST_AND_PORT = re.compile(r"(?:\[(?P<ip6>[^/\]]+)\]|(?P<host>[^/:]+)):(?P<port>[0-9]{1,5})")
LABEL = r"(?!..--)[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
NAME = re.compile(rf"(?=.{{1,253}}$)(?:{LABEL}\.)*(?=[a-z]){LABEL}")
"""Of a machine, as multiaddresses have them. The last part of one begins with a letter: else it is an IP address that
was mistyped."""
NOT_OURS = (
    "this machine has no such address itself: leave --host out, and the backbone names the address under which others "
    "reach it with --announce"
)
REMEDIES = {errno.EADDRNOTAVAIL: NOT_OURS, errno.EACCES: "ports below 1024 are for root: choose another --port"}


def check_port(host: str, port: int) -> None:
    """p2pd itself starts happily, and deaf, where it cannot listen.

    Args:
        port: 0: any free one.

    Raises:
        PortTaken: somebody else listens there, or nobody can.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            usual = "choose another --port, or stop the process that listens there"
            text = f"cannot listen on {host}:{port}: {error.strerror}"
            raise PortTaken(text, hint=REMEDIES.get(error.errno or 0, usual)) from error


def to_listen(text: str) -> str:
    """The IPv4 address to listen on, of what a machine's owner typed: that, or ``localhost``.

    Raises:
        ValueError: it is neither: the transport would fail, without a word that helps.
    """
    try:
        return str(ipaddress.IPv4Address("127.0.0.1" if text.lower() == "localhost" else text))
    except ValueError:
        text = f"expected an IPv4 address of this machine, 0.0.0.0 for all that it has, or localhost, got {text!r}"
        raise ValueError(text) from None


def to_announce(text: str) -> str:
    """The multiaddress under which others are to dial this machine, of what its owner typed: that, or ``host:port``.

    Raises:
        ValueError: it is neither, or nobody could dial it.
    """
    kind, host, port = "", "", "0"
    if found := MULTIADDRESS.fullmatch(text):
        kind, host, port = found.groups()
    elif found := HOST_AND_PORT.fullmatch(text):
        host, port = found["ip6"] or found["host"], found["port"]
    host = host.lower()
    what = _kind_of(host)
    is_as_told = kind in ("", what) or (what == "dns4" and kind.startswith("dns"))
    if not what or not is_as_told or not 0 < int(port) < 65536:
        several = "; several are given one by one, in a variable with spaces between them" if "," in text else ""
        raise ValueError(
            f"expected an address of this machine with its TCP port, such as /ip4/203.0.113.7/tcp/4000, "
            f"203.0.113.7:4000 or example.org:4000, got {text!r}{several}"
        )
    return f"/{kind or what}/{host}/tcp/{int(port)}"


def _kind_of(host: str) -> str:
    """What a multiaddress calls such a host; empty: it is none, or stands for all addresses of a machine."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "dns4" if NAME.fullmatch(host) else ""  # a backbone listens on such addresses
    return "" if address.is_unspecified or "%" in host else f"ip{address.version}"


def host_in(address: str) -> str:
    """IP address in a multiaddress; empty: it names none, or that of a relay."""
    parts = address.split("/")
    if "p2p-circuit" in parts or parts[1:2] not in (["ip4"], ["ip6"]):
        return ""
    try:
        found = ipaddress.ip_address(parts[2])
    except (IndexError, ValueError):
        return ""
    return str(found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else str(found)


def tcp_port_in(address: str) -> int:
    """TCP port in a multiaddress; 0: it names none, or that of a relay."""
    parts = address.split("/")
    is_plain = "p2p-circuit" not in parts and parts[3:4] == ["tcp"]
    return int(parts[4]) if is_plain and parts[4:] and parts[4].isdigit() else 0


def at_home(address: str) -> str:
    """The same port and peer on this very machine; empty: the address names no port of a peer."""
    port, (_, is_named, peer) = tcp_port_in(address), address.rpartition("/p2p/")
    return f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer}" if port and is_named else ""


def is_loopback(address: str) -> bool:
    """Whether a multiaddress names this machine only."""
    host = host_in(address)
    return bool(host) and ipaddress.ip_address(host).is_loopback


def is_global(address: str) -> bool:
    """Whether a multiaddress is one of the internet."""
    host = host_in(address)
    return bool(host) and ipaddress.ip_address(host).is_global
