#!/usr/bin/env python3
"""Whether what collab promises of GPUs holds on the one of this machine. Takes some minutes, and the whole card.

    python scripts/check_gpu.py [--device cuda] [--only NAME ...] [--folder DIR]

Prints a line for each check as soon as it is made, then one JSON line; exit code 1 where one does not hold.

    doctor      names the device and has computed on it
    arithmetic  losses in each precision beside those of the processor; a loss scale that is too large finds down
    optimisers  steps of each optimiser beside those of the processor
    moving      a replica of each strategy that leaves the card with work in it leaves nothing there
    speeds      samples a second: a loop of forward and backward, and a replica
    swarm       real peers, a language model: the microbatch grows and stays below --gpu-memory; how many samples a
                second a trainer computes of what the card would do; pausing frees the card, the others go on, and
                resuming works; a microbatch that does not fit is made smaller; a model that does not fit is an error
                with a next step; where others have the card a newcomer computes on the processor and says so, and who
                computes on the card goes on; a goodbye takes less than five seconds

With ``--device cpu`` what is about a card's memory is left out: so tests run it.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import torch
from bench_processes import Household
from gpu_arithmetic import Figures, arithmetic, moving, optimisers, speeds
from gpu_swarm import Scale, check_swarm

ROOT = Path(__file__).resolve().parent.parent
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.pop(variable, None)  # set where benchmarks share processors; these peers have theirs as people's do


def doctor(device: torch.device) -> Figures:
    """What ``collab-peer doctor`` says of the device."""
    words = [sys.executable, "-m", "peers.cli", "doctor", "--json"]
    asked = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)
    found = {check["check"]: check for check in json.loads(asked.stdout)["checks"]}
    told = found["device"]
    names = device.type == "cpu" or torch.cuda.get_device_name(device) in told["text"]
    return {"holds": told["outcome"] == "ok" and names, "text": told["text"], "outcome": told["outcome"]}


def swarm(device: torch.device, folder: Path, scale: Scale) -> Figures:
    """See ``gpu_swarm``."""
    with closing(Household(folder)) as household:
        return check_swarm(household, device, scale)


def setup(device: torch.device) -> dict[str, Any]:
    """What was looked at."""
    told = {"device": str(device), "torch": torch.__version__, "python": platform.python_version()}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        told |= {"gpu": properties.name, "memory_gb": f"{properties.total_memory / 1e9:.1f}"}
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        if shutil.which("nvidia-smi"):
            told["driver"] = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return told


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="Check what collab promises of GPUs.")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu: only what needs no card")
    parser.add_argument("--only", nargs="*", default=[], help="names of checks; default: all")
    parser.add_argument("--folder", type=Path, help="where the peers keep their logs; default: a temporary one")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch sees no GPU here")
    scale = Scale.of_card() if device.type == "cuda" else Scale.of_processor()
    with tempfile.TemporaryDirectory(prefix="collab-gpu-") as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        checks: dict[str, Callable[[], Figures]] = {
            "doctor": partial(doctor, device),
            "arithmetic": partial(arithmetic, device),
            "optimisers": partial(optimisers, device),
            "moving": partial(moving, device),
            "speeds": partial(speeds, device, scale.width, scale.layers, scale.sizes),
            "swarm": partial(swarm, device, folder, scale),
        }
        found = {name: made(name, checks[name]) for name in checks if name in (arguments.only or checks)}
    print(json.dumps({"setup": setup(device), "checks": found}), flush=True)
    sys.exit(0 if all(figures["holds"] for figures in found.values()) else 1)


def made(name: str, check: Callable[[], Figures]) -> Figures:
    """One check; one that fails does not keep the others from being made."""
    began_s = time.monotonic()
    try:
        figures = check()
    except Exception as error:  # noqa: BLE001 - whatever goes wrong on a card is what is looked for
        traceback.print_exc()
        figures = {"holds": False, "error": f"{type(error).__name__}: {error}"}
    torch.cuda.empty_cache()  # where there is one
    figures["seconds"] = round(time.monotonic() - began_s, 1)
    print(f"{name}: {'holds' if figures['holds'] else 'DOES NOT HOLD'} {figures}", file=sys.stderr, flush=True)
    return figures


if __name__ == "__main__":
    main()
