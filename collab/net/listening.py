"""Where a real peer can be dialled."""

import ipaddress
import socket

from collab.errors import PortTaken


def check_port(host: str, port: int) -> None:
    """p2pd itself starts happily, and deaf, when its port is taken.

    Raises:
        PortTaken: somebody else listens there.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PortTaken(
                f"cannot listen on {host}:{port}: {error.strerror}",
                hint="choose another --port, or stop the process that listens there",
            ) from error


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


def is_loopback(address: str) -> bool:
    """Whether a multiaddress names this machine only."""
    host = host_in(address)
    return bool(host) and ipaddress.ip_address(host).is_loopback


def is_global(address: str) -> bool:
    """Whether a multiaddress is one of the internet."""
    host = host_in(address)
    return bool(host) and ipaddress.ip_address(host).is_global
