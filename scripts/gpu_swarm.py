"""Real peers on one GPU: what ``check_gpu.py`` looks at in a swarm."""

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from bench_processes import BenchFailed, Child, Household, await_invite

RUN = """\
run_id: card
microbatch_size: {microbatch}
task:
  name: causal_lm
  model:
    {{model_type: gpt2, n_layer: {layers}, n_head: {heads}, n_embd: {width},
     resid_pdrop: 0.0, embd_pdrop: 0.0, attn_pdrop: 0.0}}
  sequence_length: {length}
  vocab_size: 2048
  data: {{source: builtin, max_megabytes: 2.0}}
optimizer: {{name: adamw, learning_rate: 0.0005}}
strategy: {{name: dedloc, target_batch_size: {target}}}
checkpoints: {{every_epochs: 20, keep: 1}}
"""
LIMIT_S = 120.0
WATCHED_S = 10.0
"""Over which a trainer's speed is looked at."""
PAUSE_S, GOODBYE_S = 5.0, 5.0
LIMITED_GB, TIGHT_GB, TOO_LITTLE_GB = 6.0, 1.5, 0.1
CONTEXT_GB = 1.0
"""What CUDA and its libraries take for a process that uses them, at most, beside what PyTorch asks for."""
HOG = """\
import sys, torch
torch.ones(1, device={device!r})
free, _ = torch.cuda.mem_get_info()
held = torch.empty(max(free - int({leave_mb}e6), 0), dtype=torch.uint8, device={device!r})
print("holds", held.numel(), flush=True)
sys.stdin.read()
"""
Figures = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large a model, and how large its steps."""

    width: int
    layers: int
    length: int
    target: int
    sizes: tuple[int, ...]
    """Microbatches whose speed is looked at."""

    @classmethod
    def of_card(cls) -> "Scale":
        """Some 20 million parameters: steps of a few seconds."""
        return cls(width=512, layers=6, length=256, target=4096, sizes=(8, 64, 256))

    @classmethod
    def of_processor(cls) -> "Scale":
        """For tests."""
        return cls(width=64, layers=1, length=64, target=64, sizes=(8,))

    def run_text(self) -> str:
        """The run file."""
        heads = max(self.width // 64, 1)
        return RUN.format(
            microbatch=8, layers=self.layers, heads=heads, width=self.width, length=self.length, target=self.target
        )


class Volunteer:
    """A peer as somebody starts it; what it tells as JSON is kept."""

    def __init__(self, household: Household, invite: Path, name: str, *options: str) -> None:
        self.name, self.place = name, household.folder / name
        words = ["-m", "peers.cli", "join", str(invite), "--name", name, "--data-dir", str(self.place), "--json"]
        self.child: Child = household.start([*words, *options], goodbye=signal.SIGTERM, is_fresh=True)
        self._events: list[dict[str, Any]] = []
        self._reading = threading.Lock()

    @property
    def events(self) -> list[dict[str, Any]]:
        """All that it has told so far."""
        with self._reading:
            self._events += self.child.heard()
            return list(self._events)

    def told(self, kind: str) -> list[dict[str, Any]]:
        """Its events of one kind."""
        return [event for event in self.events if event.get("event") == kind]

    @property
    def own_steps(self) -> int:
        """Steps with samples of its own."""
        return sum(1 for step in self.told("EpochFinished") if step["own_samples"])

    def says(self, text: str) -> bool:
        """Whether a note of it has ``text``."""
        return any(text in str(note.get("text", "")) for note in self.told("Notice"))

    def wait(self, is_so: Callable[[], bool], what: str) -> None:
        """
        Raises:
            BenchFailed: it is not so in time, or the peer has ended.
        """
        give_up_s = time.monotonic() + LIMIT_S
        while not is_so():
            if time.monotonic() > give_up_s or self.child.process.poll() is not None:
                raise BenchFailed(f"{self.name}: waited for {what}; the end of its log:\n{self.child.log_tail()}")
            time.sleep(0.02)

    def gigabytes(self) -> float | None:
        """Of the card's memory that the driver says it holds; None: it cannot be asked."""
        if shutil.which("nvidia-smi") is None:
            return None
        asked = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
        lines = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
        held = dict(line.split(", ") for line in lines)
        return float(held.get(str(self.child.process.pid), 0)) * 2**20 / 1e9


def check_swarm(household: Household, device: torch.device, scale: Scale) -> Figures:
    """All of it, in one swarm; ``holds`` is whether each part does."""
    has_card = device.type == "cuda"
    invite, backbone = household.start_backbone(
        scale.run_text(), "--json", "--track", "none", "--dashboard", "none", is_fresh=True
    )
    await_invite(invite, backbone, LIMIT_S)
    limited = ["--gpu-memory", str(LIMITED_GB)] if has_card else []
    first = Volunteer(household, invite, "first", "--device", device.type, *limited)
    first.wait(lambda: first.own_steps >= 3, "three steps")
    found: dict[str, Figures] = {"alone": alone(first, has_card)}
    second = Volunteer(household, invite, "second", "--device", device.type)
    second.wait(lambda: second.own_steps >= 1, "its first step")
    found["pause"] = paused_and_resumed(first, second, has_card)
    if has_card:
        found["tight"] = tight(household, invite)
        found["too_little"] = too_little(household, invite)
        found["taken"] = taken(household, invite, device, first)
    found["goodbye"] = goodbye(first)
    steps = second.own_steps
    second.wait(lambda: second.own_steps > steps, "a step without the first")
    return {"holds": all(figures["holds"] for figures in found.values()), **found}


def peer_samples(done: list[dict[str, Any]]) -> int:
    """Of so many microbatches."""
    return sum(int(one["samples"]) for one in done)


def alone(peer: Volunteer, has_card: bool) -> Figures:
    """How large its microbatches have become, what it holds, and how fast it is with steps and rounds and all."""
    sizes = [int(done["samples"]) for done in peer.told("MicrobatchDone")]
    before, began_s, steps = len(sizes), time.monotonic(), len(peer.told("EpochFinished"))
    time.sleep(WATCHED_S)
    done, seconds = peer.told("MicrobatchDone")[before:], time.monotonic() - began_s
    computed_s = sum(float(one["seconds"]) for one in done)
    rounds_s = [round(float(one["seconds"]), 2) for one in peer.told("RoundEnded")[-3:]]
    rate = peer_samples(done) / seconds
    gigabytes = peer.gigabytes() if has_card else None
    is_within = gigabytes is None or gigabytes <= LIMITED_GB + CONTEXT_GB
    return {
        "holds": rate > 0 and is_within and (not has_card or max(sizes) > sizes[0]),
        "microbatch_first_and_largest": [sizes[0], max(sizes)],
        "samples_per_s": round(rate, 1),
        "samples_per_s_of_microbatches": round(peer_samples(done) / computed_s, 1) if computed_s else 0.0,
        "share_of_time_in_microbatches": round(computed_s / seconds, 3),
        "last_rounds_s": rounds_s,
        "steps_meanwhile": len(peer.told("EpochFinished")) - steps,
        "gigabytes": gigabytes,
    }


def paused_and_resumed(peer: Volunteer, other: Volunteer, has_card: bool) -> Figures:
    """``collab-peer pause`` and ``resume``, as the owner of the machine types them.

    While it brings what it has computed to the next step the process keeps what CUDA takes for it; then nothing.
    """
    before = peer.gigabytes() if has_card else None
    began_s = time.monotonic()
    _command("pause", "--data-dir", str(peer.place))
    pause_s = time.monotonic() - began_s
    after = peer.gigabytes() if has_card else None
    peer.wait(lambda: bool(peer.told("Paused")), "its word of the pause")
    own_s = float(peer.told("Paused")[0]["seconds"])
    steps = other.own_steps
    other.wait(lambda: other.own_steps >= steps + 2, "two steps while the other is paused")
    if has_card:
        peer.wait(lambda: peer.gigabytes() == 0.0, "nothing of it to be on the card")
    left = peer.gigabytes() if has_card else None
    began_s, had = time.monotonic(), peer.own_steps
    _command("resume", "--data-dir", str(peer.place))
    peer.wait(lambda: peer.own_steps > had, "a step after the pause")
    is_free = before is None or after is None or (after <= CONTEXT_GB < before and left == 0.0)
    return {
        "holds": pause_s < PAUSE_S and is_free,
        "command_s": round(pause_s, 2),
        "free_after_s": round(own_s, 2),
        "gigabytes_before_after_and_at_rest": [before, after, left],
        "of_use_again_after_s": round(time.monotonic() - began_s, 1),
    }


def tight(household: Household, invite: Path) -> Figures:
    """Microbatches that do not fit what the card may give."""
    peer = Volunteer(household, invite, "tight", "--gpu-memory", str(TIGHT_GB), "--microbatch-size", "512")
    peer.wait(lambda: peer.own_steps >= 1, "a step with smaller microbatches")
    notes = [str(note["text"]) for note in peer.told("Notice") if "too many" in str(note["text"])]
    gigabytes = peer.gigabytes()
    peer.child.leave()
    code = peer.child.process.wait(LIMIT_S)
    is_within = gigabytes is None or gigabytes <= TIGHT_GB + CONTEXT_GB
    return {"holds": bool(notes) and is_within and code == 0, "notes": notes, "gigabytes": gigabytes, "code": code}


def too_little(household: Household, invite: Path) -> Figures:
    """A model that does not fit."""
    peer = Volunteer(household, invite, "too-little", "--gpu-memory", str(TOO_LITTLE_GB))
    code = peer.child.process.wait(LIMIT_S)
    errors = [line for line in peer.child.log.read_text(errors="replace").splitlines() if line.startswith("error:")]
    return {"holds": code == 1 and "memory is too small" in " ".join(errors), "code": code, "errors": errors}


def taken(household: Household, invite: Path, device: torch.device, running: Volunteer) -> Figures:
    """Another program takes all the rest of the card."""
    script = HOG.format(device=str(device), leave_mb=50)
    hog = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, stderr=subprocess.PIPE
    )
    try:
        held = hog.stdout.readline().strip() if hog.stdout else ""
        steps = running.own_steps
        newcomer = Volunteer(household, invite, "newcomer")
        newcomer.wait(lambda: newcomer.says("computes on its processor"), "its word that the card is taken")
        running.wait(lambda: running.own_steps >= steps + 2, "two steps of who was there before")
        note = next(str(n["text"]) for n in newcomer.told("Notice") if "processor" in str(n["text"]))
        newcomer.child.leave()
        newcomer.child.process.wait(LIMIT_S)
    finally:
        hog.communicate(timeout=LIMIT_S)  # the end of its input ends it
    return {"holds": held.startswith("holds") and newcomer.child.process.poll() == 0, "note": note, "hog": held}


def goodbye(peer: Volunteer) -> Figures:
    """As Ctrl+C."""
    began_s = time.monotonic()
    peer.child.process.send_signal(signal.SIGINT)
    code = peer.child.process.wait(LIMIT_S)
    seconds = time.monotonic() - began_s
    return {"holds": code == 0 and seconds < GOODBYE_S, "seconds": round(seconds, 2), "code": code}


def _command(*words: str) -> None:
    asked = subprocess.run(
        [sys.executable, "-m", "peers.cli", *words],
        capture_output=True,
        text=True,
        cwd=Path(__file__).resolve().parent.parent,
        check=False,
    )
    if asked.returncode != 0:
        raise BenchFailed(f"{json.dumps(words)}: {asked.stderr}")
