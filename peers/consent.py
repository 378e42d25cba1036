"""What a volunteer reads before a machine takes part in a run for the first time, and whether they agree."""

import asyncio
import json
import math
import sys
from dataclasses import dataclass
from typing import TextIO

from collab.averaging.contribution_plan import FIXED
from collab.averaging.shares import PeerLink, link_seconds
from collab.compression.base import codec_by_name
from collab.concurrency import run_until_first
from collab.config import About, BuiltinData, CausalLMTask, FilesData, HubData, Run, Solo, VcAsgd
from collab.errors import ConfigError
from collab.types import PeerId, Role
from peers.places import DataDir
from peers.reading import dataset_of

UNSAID = "the organiser does not say"
AUTO = ("float16", "float16")
"""What ``auto`` is taken for: it may send less, to 4 bits a number, where a link is thin, and more where it is not."""
FLOAT_BYTES = 4
DAY_S = 86_400.0
BYTES_PER_GB = 1e9
YES = ("y", "yes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What taking part asks of a line."""

    bytes_per_step: float
    """Sent and taken, together."""
    step_s: float
    """Of the swarm, or of a unit; infinite: nobody knows yet."""
    depends: str = ""
    """On what, in words."""
    step: str = "step"
    """What it is called."""

    @property
    def gb_per_day(self) -> float | None:
        """If it works all day; None: nobody knows."""
        if not math.isfinite(self.step_s) or self.step_s <= 0:
            return None
        return self.bytes_per_step * DAY_S / self.step_s / BYTES_PER_GB


@dataclass(frozen=True, slots=True, kw_only=True)
class Others:
    """Who is in a round beside this machine."""

    dialled: int = 0
    """Trainers that others can dial, so that they average."""
    dialling: int = 0
    """Trainers that only dial."""
    helpers: int = 0
    """Auxiliary and backbone peers that average."""


def load_of(
    run: Run, num_elements: int, others: Others, *, role: Role = Role.TRAINER, can_reduce: bool, step_s: float
) -> Load:
    """What the rounds of a run come to for one machine, by the bytes of ``link_seconds``.

    How much each of those that average takes follows from their measured links, which nobody knows beforehand: here
    all take as much.
    """
    if isinstance(run.strategy, Solo | VcAsgd):
        is_sent = role is Role.TRAINER and isinstance(run.strategy, VcAsgd)
        return Load(
            bytes_per_step=2.0 * FLOAT_BYTES * num_elements if is_sent else 0.0,
            step_s=step_s,
            depends="if this machine computes a unit as fast as others" if is_sent else "",
            step="unit" if is_sent else "step",
        )
    sent, result = (codec_by_name(n).encoded_bytes(num_elements) for n in FIXED.get(run.averaging.compression, AUTO))
    helpers = others.helpers or int(not (can_reduce or others.dialled))  # else there would be no round
    members = [  # who trains, and who averages; ourselves first
        (role is Role.TRAINER, can_reduce),
        *[(True, True)] * others.dialled,
        *[(True, False)] * others.dialling,
        *[(False, True)] * helpers,
    ]
    links = [
        PeerLink(
            peer=PeerId(""),
            up_bytes_per_s=1.0,
            down_bytes_per_s=1.0,
            payload_bytes=float(sent) if trains else 0.0,
            can_reduce=reduces,
            receives=trains,
        )
        for trains, reduces in members
    ]
    able = sum(reduces for _, reduces in members)
    up, down = link_seconds(links, [reduces / able for _, reduces in members], result)  # at a byte a second
    depends = f"while it is one of {able} that average for {sum(trains for trains, _ in members)} trainers"
    return Load(bytes_per_step=float(up[0] + down[0]), step_s=step_s, depends=depends if can_reduce else "")


def data_words(run: Run) -> str:
    """What is trained on."""
    if not isinstance(run.task, CausalLMTask):
        return f"what the task {run.task.name} brings along"
    match run.task.data:
        case BuiltinData():
            return "the source of Python's standard library on this machine (PSF licence)"
        case FilesData(path=path):
            return f"files on this machine: {path}"
        case HubData(dataset=dataset):
            return f"the dataset {dataset} of the Hugging Face Hub, which this machine downloads"


def terms(run: Run, role: Role = Role.TRAINER) -> str:
    """What a person should know before their machine takes part, but for the traffic: see ``row``."""
    pause = "'collab-peer pause', Ctrl+C, --when, --monthly-gb: see 'collab-peer join --help'"
    if role is Role.BACKBONE:
        pause = "a backbone never pauses; Ctrl+C ends it"
    about, is_bare = run.about, run.about == About()
    rows = [
        ("purpose", about.purpose or UNSAID),
        ("data", data_words(run) + (f"; licence: {about.data_license}" if about.data_license else "")),
        ("model", f"licence: {about.model_license or UNSAID}"),
        ("contact", about.contact or UNSAID),
        ("who sees you", "the peers of this run see this machine's IP address, its name, and how fast it is"),
        ("pause", pause),
    ]
    lines = [f"You are asked to take part in the run {run.run_id!r}."]
    lines += [row(name, value) for name, value in rows]
    if is_bare:
        lines.append("  (the organiser can say more under 'about' in the run file)")
    return "\n".join(lines)


def row(name: str, value: str) -> str:
    """One line of the terms."""
    return f"  {name:13} {_shown(value)}"


def traffic_words(load: Load | None) -> str:
    """The forecast."""
    if load is None:
        return "nobody can say before it has begun"
    step_mb = f"{load.bytes_per_step / 1e6:.3g} MB a {load.step}"
    if load.gb_per_day is None:
        return f"about {step_mb}, sent and taken; how many {load.step}s a day nobody knows yet"
    gigabytes = f"{load.gb_per_day:,.0f}" if load.gb_per_day >= 100 else f"{load.gb_per_day:.3g}"
    depends = f"; {load.depends}" if load.depends else ""
    return f"about {gigabytes} GB a day if it works all day, sent and taken ({step_mb}{depends})"


def download_words(run: Run) -> str:
    """What comes to that; empty: nothing."""
    if (data := dataset_of(run)) is None:
        return ""
    if isinstance(run.strategy, Solo) or data.placement == "local":
        return f", and once the dataset's download (of up to {data.max_megabytes:g} MB of text)"
    return ", and the dataset's download as it is trained on"


def _shown(text: str) -> str:
    """A stranger's words, without what a terminal would obey."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def has_agreed(place: DataDir, fingerprint: str) -> bool:
    """Whether this machine's owner has agreed to this very run before."""
    try:
        return bool(json.loads(place.agreed.read_text(encoding="utf-8"))["fingerprint"] == fingerprint)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def note_agreed(place: DataDir, fingerprint: str) -> None:
    """Nobody is asked again about this run.

    Raises:
        ConfigError: the directory does not take it.
    """
    try:
        place.agreed.write_text(json.dumps({"fingerprint": fingerprint}), encoding="utf-8")
    except OSError as error:
        text = f"cannot write {place.agreed}: {error.strerror}"
        raise ConfigError(text, hint="name a writable --data-dir") from error


def can_ask(asked: TextIO | None = None, shown: TextIO | None = None) -> bool:
    """Whether somebody sits there: a service, a notebook or a script has agreed by starting it."""
    streams = (sys.stdin if asked is None else asked, sys.stderr if shown is None else shown)
    return all(stream is not None and not stream.closed and stream.isatty() for stream in streams)


async def says_yes(stop: asyncio.Event, asked: TextIO | None = None) -> bool:
    """Wait for a line of the person at the terminal; False: no, the end of the file, or ``stop`` came first.

    The loop waits for the line and no thread does: one that reads would keep a process alive that is to end.
    """
    source = sys.stdin if asked is None else asked
    loop, answer = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(source.fileno(), answer.set)
    try:
        await run_until_first(answer.wait(), stop.wait())
    finally:
        loop.remove_reader(source.fileno())
    return answer.is_set() and not stop.is_set() and source.readline().strip().lower() in YES
