"""Counters of a benchmark's peers: CPU seconds, bytes on the wire, memory at its largest."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench_processes import Seen, family

RESET_PEAK = "5"
"""Written to /proc/PID/clear_refs: the peak of a process begins anew from what it holds, see proc(5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """Counters of one engine's peers."""

    cpu_s: Mapping[Seen, float]
    """Of every process so far."""
    wire_bytes: int

    def cpu_since(self, earlier: "Meter") -> dict[str, float]:
        """CPU seconds by program, of those that still live: what a killed peer spent is lost with it."""
        spent_s = {"python": 0.0, "p2pd": 0.0}
        for seen, seconds in self.cpu_s.items():
            with suppress(OSError):
                spent_s[program(seen.pid)] += seconds - earlier.cpu_s.get(seen, 0.0)
        return spent_s


def program(pid: int) -> str:
    """Python or p2pd. Raises ``OSError`` when the process is gone."""
    name = Path(f"/proc/{pid}/comm").read_text().strip()
    return "p2pd" if name == "p2pd" else "python"


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a peer's processes hold; what they share counts in each."""

    python_bytes: int
    p2pd_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Of all of them."""
        return self.python_bytes + self.p2pd_bytes


def peak_memory(pid: int) -> Memory:
    """The most that a process and its descendants have held, each since its start or since ``reset_peak``."""
    held = {"python": 0, "p2pd": 0}
    for seen in family([pid]):
        with suppress(OSError):
            status = Path(f"/proc/{seen.pid}/status").read_text()
            lines = [line for line in status.splitlines() if line.startswith("VmHWM:")]
            held[program(seen.pid)] += sum(int(line.split()[1]) * 1024 for line in lines)
    return Memory(python_bytes=held["python"], p2pd_bytes=held["p2pd"])


def reset_peak(pid: int) -> Memory:
    """Forget the peaks so far; what is held now."""
    for seen in family([pid]):
        with suppress(OSError):
            Path(f"/proc/{seen.pid}/clear_refs").write_text(RESET_PEAK)
    return peak_memory(pid)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """What one peer's Python held in a round; making the vector before it and checking the mean after it do not count.

    Ratios are by the size of the vector; 1 would be a mean that takes no memory at all, 0 is a peer without a vector.
    """

    peer: int
    idle_bytes: int
    """Before the first vector was made."""
    before_bytes: int
    """Before the round, the vector included, and whatever earlier rounds left behind."""
    peak_bytes: int
    vector_bytes: int
    """0: it had none."""

    @property
    def ratio(self) -> float:
        """What the round took, and the vector."""
        return (self.peak_bytes - self.before_bytes) / self.vector_bytes + 1.0 if self.vector_bytes else 0.0

    @property
    def ratio_in_all(self) -> float:
        """All that was held beyond the idle process: the round, the vector, and what earlier rounds left behind."""
        return (self.peak_bytes - self.idle_bytes) / self.vector_bytes if self.vector_bytes else 0.0
