"""``collab-peer doctor``: can this machine take part, and what would make it more useful."""

import asyncio
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from collab.compression.base import all_codecs
from collab.errors import CollabError, InviteError
from collab.net.hivemind_net import NetworkSettings, open_transport
from collab.net.listening import check_port
from collab.swarm.identity import load_or_create_identity
from peers import checkup
from peers.checkup import Finding, Outcome
from peers.free_memory import free_memory
from peers.places import cache_dir, data_home
from peers.process import leaves
from peers.terminal import as_text
from peers.visiting import Tell, visit

TOLD = ("torch", "hivemind", "transformers", "numpy", "protobuf", "datasets", "huggingface_hub")
"""Packages whose versions are shown: those that other programs on a machine have opinions about."""
MARKS = {Outcome.OK: "ok", Outcome.NOTE: "note", Outcome.PROBLEM: "PROBLEM"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What is looked at."""

    invite: str = ""
    """Empty: this machine alone."""
    data_dir: Path | None = None
    port: int = 0
    as_json: bool = False


async def examine(examination: Examination) -> bool:
    """Look at everything, and print a line for each as soon as it is known; whether this machine can take part."""
    findings: list[Finding] = []

    def tell(finding: Finding) -> None:
        findings.append(finding)
        if not examination.as_json:
            with suppress(OSError):  # of the terminal, and no fault of the check: the last line fails with it
                print(line_of(finding), flush=True)  # noqa: T201

    for check, look in local_checks(examination):
        with failures_told(check, tell):
            tell(look())
    with failures_told("libp2p", tell):
        tell(await start_daemon())
    with failures_told("join", tell):
        await look_at_the_run(examination, tell)
    is_able = all(finding.outcome is not Outcome.PROBLEM for finding in findings)
    print(for_programs(findings) if examination.as_json else verdict(findings), flush=True)  # noqa: T201
    return is_able


@contextmanager
def failures_told(check: str, tell: Tell) -> Iterator[None]:
    """A check that fails is a problem found, whatever it fails with; those after it are made all the same."""
    try:
        yield
    except* CollabError as errors:
        for error in leaves(errors):
            tell(checkup.failed("invite" if isinstance(error, InviteError) else check, error))
    except* Exception as errors:  # noqa: BLE001 - what is wrong with a machine may show itself in any way
        tell(checkup.unexpected(check, leaves(errors)[0]))


def local_checks(examination: Examination) -> list[tuple[str, Callable[[], Finding]]]:
    """What needs no network, by name."""
    return [
        ("system", lambda: checkup.system(sys.version_info[:2], sys.platform, platform.machine())),
        ("versions", look_at_versions),
        ("device", look_at_device),
        ("memory", lambda: checkup.memory(free_memory())),
        ("disk", lambda: look_at_disk(examination.data_dir or data_home(), checkup.OTHER_DATA)),
        ("disk", lambda: look_at_disk(cache_dir(), checkup.OTHER_CACHE)),
        ("ports", lambda: look_at_port(examination.port)),
        ("codecs", lambda: checkup.codecs(all_codecs())),
    ]


def look_at_versions() -> Finding:
    try:
        required = [line for line in metadata.requires("collab") or () if "extra ==" not in line]
    except metadata.PackageNotFoundError:
        required = None
    names = {Requirement(line).name for line in required or ()} | set(TOLD)
    installed = {name: _version(name) for name in sorted(names, key=lambda name: (name not in TOLD, name))}
    return checkup.versions(required, installed)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def look_at_device() -> Finding:
    has_driver = Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None
    try:
        import torch
    except (ImportError, OSError, RuntimeError) as error:
        return checkup.device(checkup.Devices(has_driver=has_driver, error=str(error)))
    gpus: tuple[str, ...] = ()
    trouble = remedy = ""
    if torch.cuda.is_available():  # as ``join`` asks; cards may be counted that torch cannot use
        from peers.gpu import choose_device, in_words

        gpus = tuple(map(in_words, range(torch.cuda.device_count())))
        try:
            choose_device(None)
        except CollabError as error:
            trouble, remedy = error.message, error.hint
    processors = len(os.sched_getaffinity(0))
    devices = checkup.Devices(gpus=gpus, processors=processors, has_driver=has_driver, trouble=trouble, remedy=remedy)
    return checkup.device(devices)


def look_at_disk(place: Path, elsewhere: str) -> Finding:
    """The nearest directory that is there already is where it would be made.

    Args:
        elsewhere: see ``checkup.disk``.
    """
    nearest = next(folder for folder in (place, *place.absolute().parents) if folder.is_dir())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            free_bytes = shutil.disk_usage(nearest).free
    except OSError as error:
        return checkup.disk(str(place), elsewhere, None, error.strerror or str(error))
    return checkup.disk(str(place), elsewhere, free_bytes)


def look_at_port(port: int) -> Finding:
    """Whether the one that was asked for, or any, can be listened on."""
    try:
        check_port("0.0.0.0", port)  # noqa: S104 - for a moment, as a peer would
    except CollabError as error:
        return checkup.failed("ports", error)
    which = f"TCP port {port} is" if port else "a TCP port is"
    return Finding(check="ports", outcome=Outcome.OK, text=f"{which} free to listen on")


async def start_daemon() -> Finding:
    """Whether libp2p runs here at all."""
    try:
        with tempfile.TemporaryDirectory(prefix="collab-doctor-") as folder:
            key = Path(folder) / "identity.key"
            load_or_create_identity(key)
            async with open_transport(NetworkSettings(identity_path=key, host="127.0.0.1")):
                return Finding(check="libp2p", outcome=Outcome.OK, text="the daemon starts")
    except CollabError as error:
        return checkup.failed("libp2p", error)
    except OSError as error:  # also FileNotFoundError, of a disk on which nothing can be written
        return checkup.no_temporary_files("libp2p", error)


async def look_at_the_run(examination: Examination, tell: Tell) -> None:
    """What only the peers of a run can tell.

    Raises:
        CollabError: it cannot be visited.
    """
    if examination.invite:
        await visit(examination.invite, examination.data_dir, examination.port, tell)
        return
    text = "not tried: name an invite, and its run is asked"
    joins = Finding(check="join", outcome=Outcome.NOTE, text=text)
    for finding in (checkup.clock(None), checkup.reach(None), checkup.bandwidth(None, None, is_asked=False), joins):
        tell(finding)


def for_programs(findings: Sequence[Finding]) -> str:
    """As JSON."""
    is_able = all(finding.outcome is not Outcome.PROBLEM for finding in findings)
    return json.dumps({"is_able": is_able, "checks": [asdict(finding) for finding in findings]})


def for_people(findings: Sequence[Finding]) -> str:
    """A line each, and whether all is well."""
    return "\n".join([*map(line_of, findings), verdict(findings)])


def line_of(finding: Finding) -> str:
    """What was found and, where there is something to do, a remedy."""
    line = f"{MARKS[finding.outcome]:8}{finding.check:10} {finding.text}"
    return as_text(f"{line}\n{'':18} -> {finding.remedy}" if finding.remedy else line)


def verdict(findings: Sequence[Finding]) -> str:
    """The last line."""
    problems = sum(finding.outcome is Outcome.PROBLEM for finding in findings)
    return "this machine can take part" if not problems else f"{problems} to be mended before it can take part"


def run_doctor(examination: Examination) -> bool:
    """Blocking form for the command line."""
    return asyncio.run(examine(examination))
