"""A small internet on one machine: hosts that anybody can dial, and homes behind routers, as network namespaces.

    outside host  11.87.0.1...                                    each namespace has one interface, eth0
         |
    the hub: a bridge, or delay_switch.c --- wan [router: nftables] lan --- home host 192.168.88.2...

The outside's addresses are such as libp2p takes for public; the machine's own network is out of reach. A router
masquerades what leaves its home, and lets nothing in that nobody inside asked for, as routers in homes do; what it does
not let in gets no answer. The namespaces' names and their removal are those of ``netlab_namespaces``.
"""

import atexit
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Self

from netlab import compiled_switch, mac_address
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
    start_and_await,
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
    """Outside hosts and homes; a context manager, for the main thread. Places are names for ``ip netns exec``."""

    def __init__(self, *, outside: int, homes: Sequence[int], delay_ms: float = 0.0) -> None:
        """
        Args:
            outside: hosts that anybody can dial.
            homes: for each home, how many hosts stand in it.
            delay_ms: one way, of the cable of each outside host and of each router.
        """
        self._outside, self._homes = outside, list(homes)
        self._delay_ms = delay_ms
        self._tag = own_tag()
        self._ports: list[str] = []
        """Of the hub."""
        self._switch: subprocess.Popen[str] | None = None
        self._stack = ExitStack()

    def outside(self, index: int) -> str:
        """Namespace of an outside host."""
        return f"{self._tag}-out{index}"

    def at_home(self, home: int, index: int = 0) -> str:
        """Namespace of a host behind the router of a home."""
        return f"{self._tag}-home{home}x{index}"

    def outside_address(self, index: int) -> str:
        return f"11.87.0.{index + 1}"

    def router_address(self, home: int) -> str:
        """Where the outside sees everybody of a home."""
        return f"11.87.1.{home + 1}"

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
        if not self._delay_ms:
            run("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
            run("ip", "-n", hub, "link", "set", "bridge", "up")
        for index in range(self._outside):
            self._add_to_hub(f"out{index}", "eth0", self.outside_address(index), hub)
        for home, hosts in enumerate(self._homes):
            self._add_home(home, hosts, hub)
        if self._delay_ms:
            ports = [f"{port}:{self._delay_ms}" for port in self._ports]
            self._switch = start_and_await(["ip", "netns", "exec", hub, str(compiled_switch()), *ports])

    def _add_home(self, home: int, hosts: int, hub: str) -> None:
        router = f"{self._tag}-router{home}"
        self._add_to_hub(f"router{home}", "wan", self.router_address(home), hub)
        run("ip", "-n", router, "link", "add", "lan", "type", "bridge")
        run("ip", "-n", router, "address", "add", "192.168.88.1/24", "dev", "lan")
        run("ip", "-n", router, "link", "set", "lan", "up")
        run(*self._at(f"router{home}"), "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        run(*self._at(f"router{home}"), "nft", ROUTER_RULES)
        for index in range(hosts):
            name = f"home{home}x{index}"
            self._add(name, "eth0", f"192.168.88.{index + 2}/24", router, f"l{index}")
            run("ip", "-n", router, "link", "set", f"l{index}", "master", "lan")
            run("ip", "-n", f"{self._tag}-{name}", "route", "add", "default", "via", "192.168.88.1")

    def _add_to_hub(self, name: str, device: str, address: str, hub: str) -> None:
        port = f"p{len(self._ports)}"
        known_as = mac_address(len(self._ports))
        self._ports.append(port)
        self._add(name, device, f"{address}/16", hub, port)
        run("ip", "-n", f"{self._tag}-{name}", "link", "set", device, "address", known_as)
        if not self._delay_ms:
            run("ip", "-n", hub, "link", "set", port, "master", "bridge")

    def _add(self, name: str, device: str, address: str, other: str, other_device: str) -> None:
        """A namespace with one cable to ``other``."""
        namespace = f"{self._tag}-{name}"
        run("ip", "netns", "add", namespace)
        ends = ["type", "veth", "peer", "name", device, "netns", namespace]
        run("ip", "-n", other, "link", "add", other_device, *ends)
        run("ip", "-n", other, "link", "set", other_device, "up")
        run("ip", "-n", namespace, "link", "set", "lo", "up")
        run("ip", "-n", namespace, "address", "add", address, "dev", device)
        run("ip", "-n", namespace, "link", "set", device, "up")

    def _remove(self) -> None:
        """Everything that carries our name, however far the building came."""
        for signum in ENDINGS:
            signal.signal(signum, signal.SIG_IGN)  # a second signal must not stop this half-way
        remove([name for name in namespaces() if name.startswith(f"{self._tag}-")])
        if self._switch is not None:
            self._switch.communicate()  # waits, and closes the pipes
