#!/usr/bin/env python3
"""A storm over a swarm: peers are killed, stopped, cut off and slowed at random, and the swarm is measured meanwhile.

    python scripts/storm.py --peers 8 --faults-per-hour 120 --minutes 10 --seed 1 --json
    python scripts/storm.py --virtual --peers 32 --faults-per-hour 125 --minutes 60 --seed 1 --json

Without --virtual: a backbone and trainers as real processes, each in a network namespace behind a link of its own;
needs root. With it: the same roles and the same schedule in virtual time. First the swarm is measured without faults,
then in the storm. What each figure means is in docs/storm.md.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench_processes import BenchFailed
from netlab_links import Link
from netlab_namespaces import LabFailed
from storm_figures import figures
from storm_ledger import Ledger
from storm_recovery import recovered_after_s, returned_after_s, whole_commits
from storm_schedule import Forecast, Kind
from storm_setup import Setup


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--virtual", action="store_true", help="in virtual time, with simulated links")
    parser.add_argument("--peers", type=int, default=8, help="trainers; a backbone comes on top")
    parser.add_argument("--faults-per-hour", type=float, default=120.0)
    parser.add_argument("--minutes", type=float, default=10.0, help="of the storm")
    parser.add_argument("--baseline-minutes", type=float, help="without faults; default: half the storm, at most 10")
    parser.add_argument("--kinds", default="kill,stop,partition,slow", help="of " + ", ".join(Kind))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest-s", type=float, default=60.0, help="of a stop, a partition, a slow link")
    parser.add_argument("--strike-backbone", action="store_true", help="the backbone is a victim like others")
    parser.add_argument("--max-struck", type=int, help="at the same time; default: a minority of the trainers")
    parser.add_argument("--max-cut", type=int, help="peers in a partition; default: as --max-struck")
    parser.add_argument("--same-identity", action="store_true", help="who replaces a killed peer has its key")
    parser.add_argument("--links", default="", help="up/down Mbit/s@delay ms of every trainer; see netlab.py")
    parser.add_argument("--hidden", default="", help="layers of the model, by commas")
    parser.add_argument("--pace-s", type=float, help="one microbatch of a trainer")
    parser.add_argument("--microbatch", type=int, default=8, help="its samples")
    parser.add_argument("--epoch-s", type=float, help="that the swarm computes for one step")
    parser.add_argument("--compression", default="auto", choices=("exact", "half", "auto", "sparse"))
    parser.add_argument("--warm-up-s", type=float, default=30.0, help="before the fault-free measurement")
    parser.add_argument(
        "--keep", type=Path, help="real peers: directory for their logs and data; default: none is kept"
    )
    parser.add_argument("--json", action="store_true", help="the last line of the output is one JSON object")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.kinds.split(",")) - set(Kind))
    if unknown:
        parser.error(f"no fault is called {', '.join(unknown)}: choose from {', '.join(Kind)}")
    try:
        options.setup = setup_from(options)
    except ValueError as error:
        parser.error(str(error))
    if not options.virtual and options.setup.link.delay_ms and "partition" in options.kinds.split(","):
        parser.error("real links with a delay cannot be cut: leave out the @ of --links, or partition of --kinds")
    return options


def setup_from(options: argparse.Namespace) -> Setup:
    """Raises ``ValueError``.

    Virtual links, models and paces are smaller by default, so that an hour of many peers costs minutes of a core; the
    round takes about as large a part of an epoch as with the defaults of real peers.
    """
    seconds = options.minutes * 60.0
    forecast = Forecast(
        seed=options.seed,
        peers=options.peers,
        faults_per_hour=options.faults_per_hour,
        seconds=seconds,
        kinds=tuple(Kind(name) for name in options.kinds.split(",")),
        longest_s=options.longest_s,
        strikes_backbone=options.strike_backbone,
        max_struck=options.max_struck,
        max_cut=options.max_cut,
    )
    baseline = options.baseline_minutes
    hidden = options.hidden or ("64" if options.virtual else "1024,256")
    return Setup(
        forecast=forecast,
        warm_up_s=options.warm_up_s,
        baseline_s=min(600.0, seconds / 2) if baseline is None else baseline * 60.0,
        pace_s=options.pace_s or (1.0 if options.virtual else 0.4),
        microbatch=options.microbatch,
        epoch_s=options.epoch_s or (15.0 if options.virtual else 6.0),
        hidden=tuple(int(size) for size in hidden.split(",")),
        link=Link.parse(options.links or ("1" if options.virtual else "25")),
        compression=options.compression,
        keeps_identity=options.same_identity,
    )


def report(ledger: Ledger, setup: Setup, *, is_virtual: bool, took_s: float) -> dict[str, Any]:
    """Everything that somebody needs to judge the figures."""
    whole = whole_commits(ledger)
    storm_s = ledger.ends_s["storm"][0]
    strikes = [
        {
            "at_s": round(strike.at_s - storm_s, 1),
            "kind": str(strike.fault.kind),
            "slots": list(strike.fault.slots),
            "duration_s": round(strike.fault.duration_s, 1),
            "recover_s": _tenths(recovered_after_s(strike, whole)),
            "return_s": _tenths(returned_after_s(ledger, strike)),
        }
        for strike in ledger.strikes
    ]
    return {
        "benchmark": "storm",
        "mode": "virtual" if is_virtual else "real",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": setup.forecast.seed,
        "setup": {
            **asdict(setup),
            "link": str(setup.link),
            "target_batch": setup.target_batch,
            "vector_bytes": setup.vector_bytes,
            "most_struck": setup.forecast.most_struck,
        },
        "versions": {"python": platform.python_version(), **{n: version(n) for n in ("collab", "hivemind", "torch")}},
        "machine": {"cores": os.cpu_count(), "load_after": round(os.getloadavg()[0], 2), "took_s": round(took_s, 1)},
        "figures": figures(ledger, setup.peers),
        "faults": strikes,
        "problems": ledger.problems[:20],
    }


def _tenths(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def measure(setup: Setup, *, is_virtual: bool, folder: Path) -> Ledger:
    """Play the storm.

    Raises:
        BenchFailed, LabFailed: the swarm could not be started.
    """
    started_s = time.monotonic()

    def tell(text: str) -> None:
        print(f"{time.monotonic() - started_s:7.1f} s  {text}", file=sys.stderr, flush=True)

    if is_virtual:
        import torch

        torch.set_num_threads(1)
        from storm_virtual import run_virtual

        return run_virtual(setup, folder, tell)
    from storm_live import run_live

    return run_live(setup, folder, tell)


def show(content: dict[str, Any]) -> None:
    """The most important of it as lines."""
    found = content["figures"]
    for name in (
        "samples_per_s",
        "computed_per_s",
        "throughput",
        "rounds",
        "epoch_s",
        "peers",
        "faults",
        "samples",
        "splits",
    ):
        print(f"{name}: {json.dumps(found[name])}")


def main() -> int:
    """Measure and print; the exit code, which is 2 when the swarm split."""
    options = parse_arguments()
    started_s = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="storm-") as temporary:
            folder = options.keep or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            ledger = measure(options.setup, is_virtual=options.virtual, folder=folder.resolve())
            took_s = time.monotonic() - started_s
            content = report(ledger, options.setup, is_virtual=options.virtual, took_s=took_s)
    except (BenchFailed, LabFailed) as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    show(content)
    if options.json:
        print(json.dumps(content))
    return 2 if any(content["figures"]["splits"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
