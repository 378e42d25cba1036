"""Where a real peer can be dialled."""

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
