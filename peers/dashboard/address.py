"""Where the dashboard is served: from what a person typed to a socket that listens."""

import ipaddress
import socket

from collab.errors import ConfigError, PortTaken

NOWHERE = "none"
"""As ``--dashboard``: there is none."""
HERE = "127.0.0.1"
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
USUAL_PORT = 8470
"""Unless something else is said; where it is taken, any free one."""
HOW = f"--dashboard [HOST:]PORT, as in {HERE}:{USUAL_PORT} for this machine only or 0.0.0.0:{USUAL_PORT} for everybody"


def listen(text: str) -> socket.socket | None:
    """A socket that listens where ``text`` says; empty: on this machine only; None for ``NOWHERE``.

    Raises:
        ConfigError: it is no address, or none of this machine.
        PortTaken: somebody else listens there.
    """
    if text == NOWHERE:
        return None
    if not text:
        try:
            return _bound(HERE, USUAL_PORT)
        except PortTaken:
            return _bound(HERE, 0)
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"--dashboard {text}: expected a host and a port", hint=HOW)
    return _bound(host.strip("[]") or HERE, int(port))


def url_of(listening: socket.socket) -> str:
    """What to open in a browser on this machine."""
    host, port = listening.getsockname()[:2]
    shown = HERE if ipaddress.ip_address(host).is_unspecified else host
    return f"http://[{shown}]:{port}/" if ":" in shown else f"http://{shown}:{port}/"


def is_for_this_machine(listening: socket.socket) -> bool:
    """Whether nobody else can get there."""
    return ipaddress.ip_address(listening.getsockname()[0]).is_loopback


def hosts_of(listening: socket.socket) -> frozenset[str]:
    """By which names a browser asks for it, where it is for this machine only; none: by any."""
    address = listening.getsockname()[0]
    own = f"[{address}]" if ":" in address else address
    return LOCAL_HOSTS | {own} if is_for_this_machine(listening) else frozenset()


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ConfigError(f"--dashboard {host}:{port}: there is no such host: {error}", hint=HOW) from error
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen()
    except OSError as error:
        listening.close()
        raise PortTaken(
            f"the dashboard cannot listen on {host}:{port}: {error.strerror}",
            hint=f"stop what listens there, name another port, or leave the page out: --dashboard {NOWHERE}",
        ) from error
    return listening
