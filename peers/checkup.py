"""What ``collab-peer doctor`` makes of what it found: a verdict and a remedy for each thing. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from packaging.requirements import InvalidRequirement, Requirement

from collab.compression.base import Codec
from collab.errors import CollabError
from collab.swarm.reachability import Verdict as ReachVerdict
from collab.swarm.time_sync import ALARMING_OFFSET_S
from collab.types import Reachability
from peers.free_memory import FreeMemory

OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)
BYTES_PER_GB = 1e9
LEAST_MEMORY_GB, ENOUGH_MEMORY_GB = 0.75, 2.0
"""torch and the daemon alone take half a gigabyte; a small language model and its optimiser as much again."""
LEAST_DISK_GB, ENOUGH_DISK_GB = 0.5, 5.0
"""Two copies of a small model's state, and encoded text; then of one with a hundred million parameters."""
OTHER_DATA, OTHER_CACHE = "set XDG_DATA_HOME, or name a --data-dir", "set XDG_CACHE_HOME to a directory"
SLOW_BYTES_PER_S = 1e6 / 8
BYTES_PER_MBIT = 1e6 / 8
SAMPLE_ELEMENTS = 1 << 16
ERRORS = {"none": 0.0, "float16": 1e-3, "bfloat16": 1e-2, "int8": 0.02, "int4": 0.2}
"""Most that an encoding may lose of normal numbers, as a share of their norm: twice what it does lose."""
ALL_LOST = 1.0


class Outcome(StrEnum):
    """Of one check."""

    OK = "ok"
    NOTE = "note"
    """It works; something could be better, or was not looked at."""
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line."""

    check: str
    outcome: Outcome
    text: str
    remedy: str = ""


def _ok(check: str, text: str) -> Finding:
    return Finding(check=check, outcome=Outcome.OK, text=text)


def _note(check: str, text: str, remedy: str = "") -> Finding:
    return Finding(check=check, outcome=Outcome.NOTE, text=text, remedy=remedy)


def _problem(check: str, text: str, remedy: str) -> Finding:
    return Finding(check=check, outcome=Outcome.PROBLEM, text=text, remedy=remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """What this machine computes on."""

    gpus: tuple[str, ...] = ()
    """With their memory, in words."""
    processors: int = 1
    has_driver: bool = False
    """Whether an NVIDIA driver is here, whatever torch makes of it."""
    error: str = ""
    """Why torch could not be loaded."""
    trouble: str = ""
    """Why nothing can be computed on the first GPU, which ``join`` takes unless it is told another; empty: it can."""
    remedy: str = ""
    """Of that."""


def system(python: tuple[int, int], platform: str, machine: str) -> Finding:
    """Python, and what hivemind's daemon runs on."""
    text = f"Python {python[0]}.{python[1]} on {platform} {machine}"
    if platform != "linux" or machine not in ("x86_64", "AMD64"):
        remedy = "on Windows use WSL2; elsewhere a linux/amd64 container"
        return _problem("system", f"{text}: libp2p's daemon is made for Linux on x86-64", remedy)
    if not OLDEST_PYTHON <= python <= NEWEST_PYTHON:
        text = f"{text}: made for 3.11 to 3.13"
        return _problem("system", text, "install one of these beside it")
    return _ok("system", text)


def versions(required: Sequence[str] | None, installed: Mapping[str, str | None]) -> Finding:
    """The packages that this one needs.

    Args:
        required: as in the package's metadata; None: it has none here.
        installed: version by name; None: not there.
    """
    wrong = []
    for line in required or ():
        try:
            needed = Requirement(line)
        except InvalidRequirement:
            continue
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        found = installed.get(needed.name)
        if found is None:
            wrong.append(f"{needed.name} is missing")
        elif not needed.specifier.contains(found, prereleases=True):
            wrong.append(f"{needed.name} {found} is there, {needed.specifier} is needed")
    if wrong:
        remedy = "type the line that installed collab once more; ask the organiser for it"
        return _problem("versions", "; ".join(wrong), remedy)
    told = ", ".join(f"{name} {version}" for name, version in installed.items() if version is not None)
    if required is None:
        text = f"{told}; collab itself is not installed, so nothing says what it needs"
        return _note("versions", text, "pip install -e . in the checkout")
    return _ok("versions", told)


def device(found: Devices) -> Finding:
    """What would be computed on."""
    if found.error:
        remedy = "install PyTorch again, from the index that fits this machine"
        return _problem("device", f"torch does not load: {found.error}", remedy)
    if found.trouble:
        text = f"{'; '.join(found.gpus)}: {found.trouble}; a peer would compute on the processor"
        return _note("device", text, found.remedy)
    if found.gpus:
        return _ok("device", "; ".join(found.gpus))
    text = f"no GPU; {found.processors} processor{'s' if found.processors != 1 else ''}"
    if found.has_driver:
        remedy = "this PyTorch is made for processors, or for a newer driver: install the one for this machine's CUDA"
        return _note("device", f"{text}, though a driver for one is here", remedy)
    return _ok("device", text)


def memory(free: FreeMemory | None) -> Finding:
    """Of the machine, or of the container on it."""
    if free is None:
        return _note("memory", "this system does not say how much is free")
    words = "of memory are free", "end other programs"
    if free.is_limited:
        within = "within the limit of this container, or of another control group"
        words = f"of memory are free {within}", "end other programs in it, or have its limit raised"
    return _enough("memory", free.free_bytes / BYTES_PER_GB, LEAST_MEMORY_GB, ENOUGH_MEMORY_GB, words)


def disk(place: str, elsewhere: str, free_bytes: int | None, error: str = "") -> Finding:
    """Where a peer keeps its things.

    Args:
        elsewhere: how another place is named.
    """
    if error:
        return _problem("disk", f"{place} cannot be written: {error}", f"{elsewhere} that can be written")
    free_gb = (free_bytes or 0) / BYTES_PER_GB
    words = f"are free at {place}", f"make room, or {elsewhere} on another disk"
    return _enough("disk", free_gb, LEAST_DISK_GB, ENOUGH_DISK_GB, words)


def _enough(check: str, there_gb: float, least_gb: float, enough_gb: float, words: tuple[str, str]) -> Finding:
    text, remedy = f"{there_gb:.1f} GB {words[0]}", words[1]
    if there_gb < least_gb:
        return _problem(check, f"{text}; {least_gb:g} are needed at least", remedy)
    if there_gb < enough_gb:
        return _note(check, f"{text}; enough for small models", remedy)
    return _ok(check, text)


def clock(offset_s: float | None) -> Finding:
    """Against the swarm's; None: nobody was asked."""
    if offset_s is None:
        return _note("clock", "not compared: that takes an invite")
    if abs(offset_s) > ALARMING_OFFSET_S:
        way = "slow" if offset_s > 0 else "fast"
        text = f"{abs(offset_s):.1f} s {way}; corrected while a peer runs"
        return _note("clock", text, "timedatectl set-ntp true")
    return _ok("clock", f"{offset_s:+.2f} s from the swarm's")


def failed(check: str, error: CollabError) -> Finding:
    """What could not be done, with the error's own next step."""
    return _problem(check, error.message, error.hint or "see the message")


def unexpected(check: str, error: Exception) -> Finding:
    """A look that has ended as nobody has thought of."""
    text = f"could not be looked at: {type(error).__name__}: {error}"
    return _problem(check, text, "mend what it names; if that is nothing of this machine, report it")


def no_temporary_files(check: str, error: OSError) -> Finding:
    """What needs a file for a moment has no place for it."""
    text = f"there is no place for temporary files: {error.strerror or error}"
    return _problem(check, text, "make room in /tmp, or set TMPDIR to a directory that can be written")


def reach(verdict: ReachVerdict | None) -> Finding:
    """How others reach this machine; None: nobody was asked."""
    if verdict is None:
        return _note("NAT", "not tried: that takes an invite, whose peers dial back")
    outcome = Outcome.OK if verdict.reach is Reachability.DIRECT else Outcome.NOTE
    return Finding(check="NAT", outcome=outcome, text=f"{verdict.reach}: {verdict.text}", remedy=verdict.hint)


def bandwidth(up_bytes_per_s: float | None, down_bytes_per_s: float | None, *, is_asked: bool) -> Finding:
    """Of this machine's link; None: nobody could measure it."""
    if up_bytes_per_s is None or down_bytes_per_s is None:
        why = "no peer had time to measure it; rounds will" if is_asked else "not measured: that takes an invite"
        return _note("bandwidth", why)
    up, down = up_bytes_per_s / BYTES_PER_MBIT, down_bytes_per_s / BYTES_PER_MBIT
    text = f"{up:.1f} Mbit/s up, {down:.1f} down, to this run's peers"
    if min(up_bytes_per_s, down_bytes_per_s) < SLOW_BYTES_PER_S:
        remedy = "its work counts all the same, in every few rounds; a cable in place of Wi-Fi would help"
        return _note("bandwidth", f"{text}: very little", remedy)
    return _ok("bandwidth", text)


def codecs(every: Sequence[Codec]) -> Finding:
    """Whether what travels comes back."""
    values = np.random.default_rng(0).standard_normal(SAMPLE_ELEMENTS).astype(np.float32)
    wrong = []
    for codec in every:
        try:
            back = codec.decode(bytes(codec.encode(values)), SAMPLE_ELEMENTS)
            lost = float(np.linalg.norm(back - values) / np.linalg.norm(values))
            if not lost <= ERRORS.get(codec.name, ALL_LOST):
                wrong.append(f"{codec.name} loses {lost:.3f} of a vector")
        except (CollabError, ValueError, TypeError, OverflowError) as error:
            wrong.append(f"{codec.name}: {error}")
    if wrong:
        remedy = "numpy does not fit this processor or this package: install numpy again"
        return _problem("codecs", "; ".join(wrong), remedy)
    return _ok("codecs", f"{len(every)} encodings come back as they should")
