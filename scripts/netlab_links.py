"""Links and networks: what the peers of a benchmark stand on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What joins a peer to everybody else, full duplex."""

    up_mbit_per_s: float
    down_mbit_per_s: float
    delay_ms: float = 0.0
    """One way, peer to hub; a round trip between two peers is twice the sum of both."""

    @classmethod
    def parse(cls, text: str) -> "Link":
        """``20/100@15``: 20 Mbit/s up, 100 down, 15 ms; ``50``: the same both ways, no delay.

        Raises:
            ValueError: it is written otherwise.
        """
        rates, _, delay = text.partition("@")
        up, _, down = rates.partition("/")
        link = cls(up_mbit_per_s=float(up), down_mbit_per_s=float(down or up), delay_ms=float(delay or 0.0))
        if min(link.up_mbit_per_s, link.down_mbit_per_s) <= 0 or link.delay_ms < 0:
            raise ValueError(f"{text!r} is no link: rates are above zero, a delay is not below")
        return link

    def __str__(self) -> str:
        rates = f"{self.up_mbit_per_s:g}/{self.down_mbit_per_s:g}"
        return f"{rates}@{self.delay_ms:g}" if self.delay_ms else rates

    def scaled(self, factor: float) -> "Link":
        """The same with ``factor`` times its rates."""
        return Link(
            up_mbit_per_s=self.up_mbit_per_s * factor,
            down_mbit_per_s=self.down_mbit_per_s * factor,
            delay_ms=self.delay_ms,
        )


def parse_round_trips(text: str, num_peers: int) -> dict[tuple[int, int], float]:
    """``0-1:50,1-2:86.5``: milliseconds between the peers of each pair and back; each pair once.

    Raises:
        ValueError: it is written otherwise, or names peers that there are not.
    """
    found: dict[tuple[int, int], float] = {}
    for each in filter(None, text.split(",")):
        pair, _, ms = each.partition(":")
        one, _, other = pair.partition("-")
        low, high = sorted((int(one), int(other)))
        if not 0 <= low < high < num_peers or float(ms) < 0 or (low, high) in found:
            raise ValueError(f"{each!r} is no round trip: expected PEER-PEER:MS of two of {num_peers} peers, and once")
        found[low, high] = float(ms)
    return found


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes on one peer's link so far, headers included."""

    sent_bytes: int
    received_bytes: int


class Network(Protocol):
    """Where the peers of a benchmark run."""

    interface: str

    def host(self, index: int) -> str: ...

    def place(self, index: int) -> str:
        """The network namespace of peer ``index`` by its name; empty: the one we are in."""
        ...

    def wire_bytes(self) -> int:
        """Sent by all so far."""
        ...


class Loopback:
    """Implements ``Network`` without limits: everybody on 127.0.0.1, where other programs' bytes are counted, too."""

    interface = "lo"

    def host(self, index: int) -> str:
        return "127.0.0.1"

    def place(self, index: int) -> str:
        return ""

    def wire_bytes(self) -> int:
        return int(Path("/sys/class/net/lo/statistics/tx_bytes").read_text())
