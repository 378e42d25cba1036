"""Ports that stay those of one peer while it is away."""

import itertools
import os

from collab.errors import PortTaken
from collab.net.listening import check_port

FIRST, BLOCK, BLOCKS = 20000, 1000, 12
"""Below those that Linux gives to whoever listens or calls without naming one (32768 to 60999): such a port can be
somebody else's as soon as its peer has ended."""
_numbers = itertools.count()


def own_port() -> str:
    """A port of this machine that no other test asks for, in whichever of the runner's processes it is."""
    block = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % BLOCKS
    while True:
        port = FIRST + block * BLOCK + next(_numbers) % BLOCK
        try:
            check_port("127.0.0.1", port)
        except PortTaken:
            continue
        return str(port)
