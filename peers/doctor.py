"""``collab-peer doctor``: can this machine take part, and what would make it more useful."""

import asyncio
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from collab.averaging.assistant import Assistant, assisting_engine
from collab.compression.base import all_codecs
from collab.config import ForeignTask
from collab.errors import BadMessage, CollabError, InviteError
from collab.net.hivemind_net import NetworkSettings, open_transport
from collab.net.listening import check_port
from collab.net.startup import Started
from collab.swarm.access import read_grant, read_pass
from collab.swarm.board import ProgressBoard
from collab.swarm.bundle import Bundle
from collab.swarm.identity import load_or_create_identity
from collab.swarm.invite import Invite
from collab.swarm.membership import Membership
from collab.swarm.progress import SwarmView
from collab.swarm.records import PeerRecord, PeerState
from collab.swarm.statutes import Statutes
from collab.types import Role
from peers import checkup
from peers.checkup import Finding, Outcome
from peers.event_words import count
from peers.hub_lookup import apart, word_of
from peers.joining import Relay
from peers.places import cache_dir, claim_data_dir, data_home
from peers.process import leaves
from peers.wiring import Reach, invite_from, start_from_invite

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
    """Look at everything, and print a line for each; whether this machine can take part."""
    findings = [look() for look in local_checks(examination)]
    findings.append(await start_daemon())
    findings += await look_at_the_run(examination)
    is_able = all(finding.outcome is not Outcome.PROBLEM for finding in findings)
    print(for_programs(findings) if examination.as_json else for_people(findings))  # noqa: T201
    return is_able


def local_checks(examination: Examination) -> list[Callable[[], Finding]]:
    """What needs no network."""
    return [
        lambda: checkup.system(sys.version_info[:2], sys.platform, platform.machine()),
        look_at_versions,
        look_at_device,
        lambda: checkup.memory(available_memory()),
        lambda: look_at_disk(examination.data_dir or data_home()),
        lambda: look_at_disk(cache_dir()),
        lambda: look_at_port(examination.port),
        lambda: checkup.codecs(all_codecs()),
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

        known = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    except (ImportError, OSError, RuntimeError) as error:
        return checkup.device(checkup.Devices(has_driver=has_driver, error=str(error)))
    gpus = tuple(f"{one.name}, {one.total_memory / checkup.BYTES_PER_GB:.1f} GB" for one in known)
    trouble = remedy = ""
    if gpus:
        from peers.gpu import choose_device

        try:
            choose_device(None)
        except CollabError as error:
            trouble, remedy = error.message, error.hint
    processors = len(os.sched_getaffinity(0))
    devices = checkup.Devices(gpus=gpus, processors=processors, has_driver=has_driver, trouble=trouble, remedy=remedy)
    return checkup.device(devices)


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Bytes that programs can still have; None: this system does not say."""
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError, IndexError):
        return None


def look_at_disk(place: Path) -> Finding:
    """The nearest directory that is there already is where it would be made."""
    nearest = next(folder for folder in (place, *place.absolute().parents) if folder.is_dir())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            free_bytes = shutil.disk_usage(nearest).free
    except OSError as error:
        return checkup.disk(str(place), None, error.strerror or str(error))
    return checkup.disk(str(place), free_bytes)


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
    with tempfile.TemporaryDirectory(prefix="collab-doctor-") as folder:
        key = Path(folder) / "identity.key"
        try:
            load_or_create_identity(key)
            async with open_transport(NetworkSettings(identity_path=key, host="127.0.0.1")):
                return Finding(check="libp2p", outcome=Outcome.OK, text="the daemon starts")
        except CollabError as error:
            return checkup.failed("libp2p", error)


async def look_at_the_run(examination: Examination) -> list[Finding]:
    """What only the peers of a run can tell, as a guest that dials them."""
    if not examination.invite:
        text = "not tried: name an invite, and its run is asked"
        joins = Finding(check="join", outcome=Outcome.NOTE, text=text)
        return [checkup.clock(None), checkup.reach(None), checkup.bandwidth(None, None, is_asked=False), joins]
    findings: list[Finding] = []
    try:
        invite = invite_from(await apart(lambda: word_of(examination.invite)))
        with claim_data_dir(None, invite.run_id, "guest") as place:
            reach = Reach(port=examination.port)
            async with start_from_invite(invite, place, reach, Relay(), is_guest=True) as (started, bundle):
                findings += await ask_the_run(started, bundle, invite)
    except* CollabError as errors:
        for error in leaves(errors):
            findings.append(checkup.failed("invite" if isinstance(error, InviteError) else "join", error))
    return findings


async def ask_the_run(started: Started, bundle: Bundle, invite: Invite) -> list[Finding]:
    """Clock, ways in, link, and whether there is anything to join."""
    ports, statutes = started.ports, Statutes(started.ports, bundle)

    def record() -> PeerRecord:
        """Of nobody: a guest is never in the swarm."""
        return PeerRecord(
            peer=ports.transport.peer_id,
            fingerprint=bundle.fingerprint,
            name="",
            role=Role.AUXILIARY,
            state=PeerState.LEFT,
            said_at=ports.clock.now(),
            can_be_dialled=False,
        )

    board = ProgressBoard(ports, started.identity, bundle.fingerprint, statutes)
    membership = Membership(board, ports.clock, record)
    await membership.look()
    engine = assisting_engine(ports, statutes, membership, Assistant())
    probed = await engine.probe.measure(membership.dialable() or list(started.bootstrap_peers))
    up, down = (rate.bytes_per_s if rate is not None else None for rate in (probed.up, probed.down))
    return [
        checkup.clock(started.clock_offset_s),
        checkup.reach(started.verdict),
        checkup.bandwidth(up, down, is_asked=True),
        can_join(bundle, membership.view, invite),
    ]


def can_join(bundle: Bundle, view: SwarmView, invite: Invite) -> Finding:
    """Whoever gets this far was let in to look."""
    run = bundle.run
    text = f"{run.run_id}: {view.num_trainers} trainers, {len(view.helpers())} helpers"
    if run.until_epoch is not None and view.is_over(run.until_epoch):
        remedy = "ask its organiser for another one"
        return Finding(check="join", outcome=Outcome.PROBLEM, text=f"{text}; the run is over", remedy=remedy)
    if isinstance(run.task, ForeignTask):
        remedy = f"install it, read it, and join with --allow {run.task.module}"
        text = f"{text}; it needs the module {run.task.module}"
        return Finding(check="join", outcome=Outcome.NOTE, text=text, remedy=remedy)
    if full := used_up(bundle, view, invite):
        remedy = "if that is this machine, all is well; else stop one of them before this machine joins"
        return Finding(check="join", outcome=Outcome.NOTE, text=f"{text}; {full}", remedy=remedy)
    return Finding(check="join", outcome=Outcome.OK, text=f"{text}; this machine was let in")


def used_up(bundle: Bundle, view: SwarmView, invite: Invite) -> str:
    """Who uses the invite, if it is in use on as many devices as it is for; else empty."""
    if invite.papers is None:
        return ""
    ours, names = read_grant(invite.papers.grant, bundle.fingerprint, bundle.owner), []
    for record in view.records:
        with suppress(BadMessage):
            if read_pass(record.credential, bundle.fingerprint, bundle.owner).grant.key == ours.key:
                names.append(record.name)
    if len(names) < ours.devices:
        return ""
    return f"the invite is for {count(ours.devices, 'device')}, and in use by {', '.join(sorted(names))}"


def for_programs(findings: Sequence[Finding]) -> str:
    """As JSON."""
    is_able = all(finding.outcome is not Outcome.PROBLEM for finding in findings)
    return json.dumps({"is_able": is_able, "checks": [asdict(finding) for finding in findings]})


def for_people(findings: Sequence[Finding]) -> str:
    """A verdict and, where there is something to do, a remedy each."""
    lines = []
    for finding in findings:
        lines.append(f"{MARKS[finding.outcome]:8}{finding.check:10} {finding.text}")
        if finding.remedy:
            lines.append(f"{'':18} -> {finding.remedy}")
    problems = sum(finding.outcome is Outcome.PROBLEM for finding in findings)
    lines.append("this machine can take part" if not problems else f"{problems} to be mended before it can take part")
    return "\n".join(lines)


def run_doctor(examination: Examination) -> bool:
    """Blocking form for the command line."""
    return asyncio.run(examine(examination))
