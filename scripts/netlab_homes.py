"""A small internet on one machine: hosts that anybody can dial, and homes behind routers, as network namespaces.

    outside host  10.87.0.1...                                    each namespace has one interface, eth0
         |
    the hub's bridge --- wan [router: nftables] lan --- home host 192.168.88.2...

A router masquerades what leaves its home, and lets nothing in that nobody inside asked for, as routers in homes do;
what it does not let in gets no answer. The namespaces' names and their removal are those of ``netlab_namespaces``.
"""

import atexit
import shutil
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Self

from netlab_namespaces import (
    ENDINGS,
    LabFailed,
    clean,
    ending_by_signals,
    namespaces,
    own_tag,
    remove,
    require_root,
    run,
)

ROUTER_RULES = """
table ip home {
    chain leaving {
        type nat hook postrouting priority 100;
        oifname "wan" masquerade
    }
    chain entering {
        type nat hook prerouting priority -100;
    }
    chain through {
        type filter hook forward priority 0; policy drop;
        ct state established,related accept
        ct status dnat accept
        iifname "lan" accept
    }
    chain to_router {
        type filter hook input priority 0; policy drop;
        ct state established,related accept
        iifname "lan" accept
    }
}
"""


class Homes:
    """Outside hosts and homes; a context manager, for the main thread. Places are named by text: see ``command``."""

    def __init__(self, *, outside: int, homes: Sequence[int]) -> None:
        """
        Args:
            outside: hosts that anybody can dial.
            homes: for each home, how many hosts stand in it.
        """
        self._outside, self._homes = outside, list(homes)
        self._tag = own_tag()
        self._stack = ExitStack()

    def outside(self, index: int) -> list[str]:
        """What to put before a command, so that it runs at an outside host."""
        return self._at(f"out{index}")

    def at_home(self, home: int, index: int = 0) -> list[str]:
        """The same for a host behind the router of a home."""
        return self._at(f"home{home}x{index}")

    def outside_address(self, index: int) -> str:
        return f"10.87.0.{index + 1}"

    def router_address(self, home: int) -> str:
        """Where the outside sees everybody of a home."""
        return f"10.87.1.{home + 1}"

    def forward_port(self, home: int, port: int, index: int = 0) -> None:
        """Let a router pass a TCP port on to a host, as its owner may set it."""
        rule = ["iifname", "wan", "tcp", "dport", str(port), "dnat", "to", f"192.168.88.{index + 2}:{port}"]
        run(*self._at(f"router{home}"), "nft", "add", "rule", "ip", "home", "entering", *rule)

    def __enter__(self) -> Self:
        require_root()
        if shutil.which("nft") is None:
            raise LabFailed("nft not found: install the package nftables")
        with ExitStack() as stack:
            stack.enter_context(ending_by_signals())
            atexit.register(self._remove)  # a signal may come just before the body of the with statement
            stack.callback(atexit.unregister, self._remove)
            stack.callback(self._remove)
            clean()
            self._build()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _at(self, name: str) -> list[str]:
        return ["ip", "netns", "exec", f"{self._tag}-{name}"]

    def _build(self) -> None:
        hub = f"{self._tag}-wire"
        run("ip", "netns", "add", hub)
        run("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", hub, "link", "set", "bridge", "up")
        for index in range(self._outside):
            self._add(f"out{index}", "eth0", f"{self.outside_address(index)}/16", hub, f"o{index}", "bridge")
        for home, hosts in enumerate(self._homes):
            self._add_home(home, hosts, hub)

    def _add_home(self, home: int, hosts: int, hub: str) -> None:
        router = f"{self._tag}-router{home}"
        self._add(f"router{home}", "wan", f"{self.router_address(home)}/16", hub, f"r{home}", "bridge")
        run("ip", "-n", router, "link", "add", "lan", "type", "bridge")
        run("ip", "-n", router, "address", "add", "192.168.88.1/24", "dev", "lan")
        run("ip", "-n", router, "link", "set", "lan", "up")
        run(*self._at(f"router{home}"), "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        run(*self._at(f"router{home}"), "nft", ROUTER_RULES)
        for index in range(hosts):
            name = f"home{home}x{index}"
            self._add(name, "eth0", f"192.168.88.{index + 2}/24", router, f"l{index}", "lan")
            run("ip", "-n", f"{self._tag}-{name}", "route", "add", "default", "via", "192.168.88.1")

    def _add(self, name: str, device: str, address: str, other: str, other_device: str, bridge: str) -> None:
        """A namespace with one cable to a bridge in ``other``."""
        namespace = f"{self._tag}-{name}"
        run("ip", "netns", "add", namespace)
        ends = ["type", "veth", "peer", "name", device, "netns", namespace]
        run("ip", "-n", other, "link", "add", other_device, *ends)
        run("ip", "-n", other, "link", "set", other_device, "master", bridge, "up")
        run("ip", "-n", namespace, "link", "set", "lo", "up")
        run("ip", "-n", namespace, "address", "add", address, "dev", device)
        run("ip", "-n", namespace, "link", "set", device, "up")

    def _remove(self) -> None:
        """Everything that carries our name, however far the building came."""
        for signum in ENDINGS:
            signal.signal(signum, signal.SIG_IGN)  # a second signal must not stop this half-way
        remove([name for name in namespaces() if name.startswith(f"{self._tag}-")])
