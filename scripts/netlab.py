#!/usr/bin/env python3
"""Peers behind links of their own, on one machine: a network namespace for each, joined in a hub.

    python scripts/netlab.py --links 20/100,50,200@15 -- ping -c 3 {ip0}      # root; up/down Mbit/s, @one-way delay ms
    python scripts/netlab.py --links 100,100,100 --round-trips 0-1:50,1-2:86,0-2:130 -- ping -c 3 {ip0}         # sites
    python scripts/netlab.py --clean                                          # what a killed program left behind

        peer i: eth0, 10.88.x.y  <-- veth -->  h<i> in the hub: a bridge, or delay_switch.c when any link has a delay

A token bucket on eth0 is the peer's upload, one on h<i> its download; the two are independent. The command runs once
in each namespace, with {i} {n} {ip} {ip0} filled in. Nothing of the machine's own network is touched, and all is
removed at the end, by an exception and by SIGINT, SIGTERM and SIGHUP too. A program that is killed leaves namespaces,
whose names carry its pid; each start removes those of dead programs.

Measured with (other kernels differ): buckets under 10 ms lose rate, since timers wake late; 20 ms gives 95-97 %.
"""

import argparse
import atexit
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from netlab_links import Link, Traffic, parse_round_trips
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

BUCKET_S = 0.02
MIN_BUCKET_BYTES = 16_000
QUEUE_S = 0.2
"""What a home router holds before it drops."""
MIN_QUEUE_BYTES = 64_000
CONGESTION_CONTROL = "cubic"
"""What volunteers' machines use; set by route, since a namespace may not choose what its host does not allow."""
SWITCH_SOURCE = Path(__file__).with_name("delay_switch.c")


class Lab:
    """Implements ``Network`` with a namespace for each peer; a context manager, for the main thread."""

    interface = "eth0"

    def __init__(self, links: Sequence[Link], round_trips_ms: Mapping[tuple[int, int], float] | None = None) -> None:
        """
        Args:
            round_trips_ms: of pairs of peers, beside what the delays of their links make; pairs left out have none.
        """
        self._links = list(links)
        self._pairs = dict(round_trips_ms or {})
        self._tag = own_tag()
        self._hub = f"{self._tag}-hub"
        self._keeper: subprocess.Popen[str] | None = None
        self._switch: subprocess.Popen[str] | None = None
        self._stack = ExitStack()

    @property
    def links(self) -> tuple[Link, ...]:
        """As they are now."""
        return tuple(self._links)

    def host(self, index: int) -> str:
        return f"10.88.{index // 250}.{index % 250 + 1}"

    def place(self, index: int) -> str:
        return self._name(index)

    def command(self, index: int, arguments: Sequence[str]) -> list[str]:
        """What to start, so that ``arguments`` run at peer ``index``."""
        return ["ip", "netns", "exec", self._name(index), *arguments]

    def set_link(self, index: int, link: Link) -> None:
        """Change a peer's rates, also while traffic flows. Its delay stays what it was at the start."""
        ends = ((self._name(index), "eth0", link.up_mbit_per_s), (self._hub, f"h{index}", link.down_mbit_per_s))
        for namespace, device, mbit_per_s in ends:
            bytes_per_s = mbit_per_s * 1e6 / 8
            bucket = max(MIN_BUCKET_BYTES, int(bytes_per_s * BUCKET_S))
            queue = max(MIN_QUEUE_BYTES, int(bytes_per_s * QUEUE_S))
            shape = ["rate", f"{int(mbit_per_s * 1e6)}bit", "burst", str(bucket), "limit", str(queue)]
            run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "handle", "1:", "tbf", *shape)
        self._links[index] = link

    def cut_off(self, indices: Iterable[int]) -> None:
        """Let these peers reach each other and nobody else, until :meth:`rejoin`; frames between the two are dropped.

        Raises:
            LabFailed: the lab has delays: its switch knows no islands.
        """
        if self._switch is not None:
            raise LabFailed("a lab with delays cannot be cut: leave out the @ of the links")
        for index in indices:
            run("ip", "-n", self._hub, "link", "set", f"h{index}", "master", "island")

    def rejoin(self, indices: Iterable[int]) -> None:
        """End what :meth:`cut_off` began."""
        for index in indices:
            run("ip", "-n", self._hub, "link", "set", f"h{index}", "master", "bridge")

    def traffic(self) -> tuple[Traffic, ...]:
        """Of every peer, in order; takes a fraction of a millisecond, so it may be asked often."""
        if self._keeper is None:
            raise LabFailed("the lab is not open")
        lines = Path(f"/proc/{self._keeper.pid}/net/dev").read_text().splitlines()[2:]
        counts = {name.strip(): fields.split() for name, _, fields in (line.partition(":") for line in lines)}
        ends = (counts[f"h{index}"] for index in range(len(self._links)))  # what the hub receives, the peer has sent
        return tuple(Traffic(sent_bytes=int(end[0]), received_bytes=int(end[8])) for end in ends)

    def wire_bytes(self) -> int:
        return sum(each.sent_bytes for each in self.traffic())

    def __enter__(self) -> Self:
        require_root()
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

    def _name(self, index: int) -> str:
        return f"{self._tag}-{index}"

    def _build(self) -> None:
        is_delayed = bool(self._pairs) or any(link.delay_ms for link in self._links)
        run("ip", "netns", "add", self._hub)
        run("ip", "netns", "exec", self._hub, "sh", "-c", NO_IPV6)
        if not is_delayed:
            for name in ("bridge", "island"):
                run("ip", "-n", self._hub, "link", "add", name, "type", "bridge")
                run("ip", "-n", self._hub, "link", "set", name, "up")
        for index, link in enumerate(self._links):
            self._add_peer(index)
            if not is_delayed:
                run("ip", "-n", self._hub, "link", "set", f"h{index}", "master", "bridge")
            self.set_link(index, link)
        self._keeper = start_and_await([*self._in_hub(), "sh", "-c", "echo ready; exec cat"])
        if is_delayed:
            ports = [f"h{index}:{link.delay_ms:g}" for index, link in enumerate(self._links)]
            pairs = [f"{one}-{other}:{ms / 2:g}" for (one, other), ms in self._pairs.items()]
            self._switch = start_and_await([*self._in_hub(), str(compiled_switch()), *ports, *pairs])

    def _in_hub(self) -> list[str]:
        return ["ip", "netns", "exec", self._hub]

    def _add_peer(self, index: int) -> None:
        name, address = self._name(index), self.host(index)
        run("ip", "netns", "add", name)
        run("ip", "netns", "exec", name, "sh", "-c", NO_IPV6)
        ends = ["type", "veth", "peer", "name", "eth0", "netns", name, "address", mac_address(index)]
        run("ip", "-n", self._hub, "link", "add", f"h{index}", *ends)
        run("ip", "-n", self._hub, "link", "set", f"h{index}", "up")
        run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", name, "address", "add", f"{address}/16", "dev", "eth0", "noprefixroute")
        run("ip", "-n", name, "link", "set", "eth0", "up")
        run("ip", "-n", name, "route", "add", "10.88.0.0/16", "dev", "eth0", "congctl", CONGESTION_CONTROL)

    def _remove(self) -> None:
        """Everything that carries our name, however far the building came."""
        for signum in ENDINGS:
            signal.signal(signum, signal.SIG_IGN)  # a second signal must not stop this half-way
        remove([name for name in namespaces() if name.startswith(f"{self._tag}-")])
        for process in (self._keeper, self._switch):
            if process is not None:
                process.communicate()  # waits, and closes the pipes


NO_IPV6 = "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6 || true"
"""Its router solicitations would be counted as traffic; a kernel without it has nothing to switch off."""


def mac_address(index: int) -> str:
    """The switch finds a frame's port in the last two bytes."""
    return f"02:88:00:00:{index // 256:02x}:{index % 256:02x}"


def compiled_switch() -> Path:
    """The delay switch; compiled when its source has changed, where only this user can write."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "collab"
    program = cache / f"delay_switch-{hashlib.sha256(SWITCH_SOURCE.read_bytes()).hexdigest()[:16]}"
    if not program.exists():
        if shutil.which("cc") is None:
            raise LabFailed("delays need a C compiler: install gcc, or leave out the @ of the links")
        cache.mkdir(parents=True, exist_ok=True)
        unfinished = program.with_suffix(f".{os.getpid()}")
        run("cc", "-O2", "-Wall", "-Wextra", "-o", str(unfinished), str(SWITCH_SOURCE))
        unfinished.rename(program)
    return program


def main() -> int:
    """Body of the program; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", default="", help="up/down Mbit/s, @one-way delay in ms, separated by commas")
    parser.add_argument("--round-trips", default="", help="ms between two peers: 0-1:50,0-2:130; beside links' delays")
    parser.add_argument("--clean", action="store_true", help="remove what killed programs left, and end")
    parser.add_argument("--limit-s", type=float, default=300.0, help="for the commands; then they are killed")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    try:
        if options.clean:
            require_root()
            print("\n".join(f"removed {name}" for name in clean()) or "nothing was left behind")
            return 0
        links = [Link.parse(text) for text in options.links.split(",") if text]
        if not links or not command:
            parser.error("--links and a command are needed")
        return run_everywhere(Lab(links, parse_round_trips(options.round_trips, len(links))), command, options.limit_s)
    except (LabFailed, ValueError) as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def run_everywhere(lab: Lab, command: Sequence[str], limit_s: float) -> int:
    """Run ``command`` in every namespace to its end; 0 when each ended well."""
    links = lab.links
    with lab:
        processes = []
        for index in range(len(links)):
            words = {"i": str(index), "n": str(len(links)), "ip": lab.host(index), "ip0": lab.host(0)}
            processes.append(subprocess.Popen(lab.command(index, [fill(word, words) for word in command])))
        give_up_s = time.monotonic() + limit_s
        codes = []
        for process in processes:
            try:
                codes.append(process.wait(max(0.0, give_up_s - time.monotonic())))
            except subprocess.TimeoutExpired:
                codes.append(124)
        for index, count in enumerate(lab.traffic()):
            sizes = f"sent {count.sent_bytes / 1e6:.2f} MB, received {count.received_bytes / 1e6:.2f} MB"
            print(f"peer {index} ({links[index]}): {sizes}, code {codes[index]}", file=sys.stderr)
        return 0 if not any(codes) else 1


def fill(word: str, words: dict[str, str]) -> str:
    for name, value in words.items():
        word = word.replace(f"{{{name}}}", value)
    return word


if __name__ == "__main__":
    sys.exit(main())
