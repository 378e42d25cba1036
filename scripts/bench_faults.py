#!/usr/bin/env python3
"""What a peer that dies or freezes in the middle of a round costs the others, in one long-lived swarm of real peers.

    python scripts/bench_faults.py --peers 8 --mbit 25 --mb 8 --kinds kill,stop,leader,p2pd --seeds 20 --seed 1 --json
    python scripts/bench_faults.py --kinds stop-leader --seeds 3 --window 0,0.1 --keep logs      # root, all of these

Each peer is a process behind its own link (see netlab.py) with the engine, the records and the DHT of a trainer, and a
known vector in place of a gradient. They take one global step after another: for each seed some that nobody disturbs,
for reference, then one with a fault of each kind, at a moment drawn from the duration of an undisturbed one. A round of
everybody, who was replaced included, follows each fault.

    kill, leader        all of a peer's processes get SIGKILL: of whoever the seed says, of who leads the round
    stop, stop-leader   the same with SIGSTOP; SIGCONT when the others have their result
    p2pd                a peer's network daemon gets SIGKILL, and its Python lives on

    extra_s             from everybody's wish to average until the last survivor holds a result, beyond the median of
                        undisturbed rounds; further attempts are in it
    survivors_equal     all survivors hold the same bytes, and the same lineage
    fraction_averaged   of the survivors' vectors, by weight and elements: what the mean is made of by its numbers
    victim_share        of the victim's vector, in the same way
    back_s              until the swarm was whole again: a stranger has started and joined in the place of the dead, or
                        the frozen one has found out by itself what it missed
    missed              faults that came when the round was over; their seeds draw again, and they do not count

The dead are replaced by strangers with another identity. The exit code is 2 when peers held different bytes.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from averaging_setup import BYTES_PER_ELEMENT, MB
from bench_processes import BenchFailed, Household
from faults_crew import Crew
from faults_figures import describe, is_sound, report, show
from faults_mean import MOST_PEERS, RUN_ELEMENTS
from faults_rounds import Course, Tell, reference_s
from faults_setup import Fault, Kind, Setup
from netlab import Lab
from netlab_links import Link
from netlab_namespaces import LabFailed, other_labs

MOST_MISSES = 10
"""Of one seed; then something is wrong with the moments."""
SHOWN = ("victim", "led", "struck_s", "extra_s", "survivors_equal", "fraction_averaged", "victim_share", "back_s")


def measure(setup: Setup, folder: Path, tell: Tell) -> Course:
    """One swarm from its beginning to its end.

    Raises:
        BenchFailed: it did not come up; when it fails later, the course says so.
        LabFailed: there are no namespaces to be had.
    """
    link = Link(up_mbit_per_s=setup.mbit_per_s, down_mbit_per_s=setup.mbit_per_s)
    with Lab([link] * setup.peers) as lab, ExitStack() as stack:
        if other_labs():
            tell("warning: another lab is up on this machine; both will measure too little")
        household = Household(folder)
        stack.callback(household.close)
        crew = Crew(setup, lab, household)
        tell(f"starting {setup.peers} peers")
        crew.start()
        course = Course(setup, crew, tell)
        try:
            course.warm_up()
            for number in range(setup.seeds):
                for _ in range(setup.rest):
                    course.rest(is_first=False)
                for kind in setup.kinds:
                    strike(course, setup, kind, setup.seed + number, tell)
        except BenchFailed as failure:
            course.problem = str(failure)
        return course


def strike(course: Course, setup: Setup, kind: Kind, seed: int, tell: Tell) -> None:
    """One fault that counts. Raises ``BenchFailed``."""
    for attempt in range(MOST_MISSES):
        case = course.suffer(Fault.draw(setup, kind, seed, attempt))
        found = describe(case, reference_s(course.calm))
        tell(f"{kind}, seed {seed}: " + (case.miss or ", ".join(f"{name} {found[name]}" for name in SHOWN)))
        if "events" in found and not case.miss:
            tell(f"look into it: {json.dumps(found)}")
        if not case.miss:
            return
    raise BenchFailed(f"{kind}, seed {seed}: {MOST_MISSES} faults in a row missed their rounds")


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Options, and the setup that they ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--mbit", type=float, default=25.0, help="of every link, up and down")
    parser.add_argument("--mb", type=float, default=8.0, help="of a vector in float32, in 10^6 bytes")
    parser.add_argument("--kinds", default="kill,stop,leader,p2pd", help="by commas, of " + ", ".join(Kind))
    parser.add_argument("--seeds", type=int, default=20, help="faults of each kind")
    parser.add_argument("--seed", type=int, default=1, help="the first one; the others follow it")
    parser.add_argument("--rest", type=int, default=1, help="undisturbed rounds for reference before each seed")
    parser.add_argument("--window", default="0,1", help="part of a round in which faults come")
    parser.add_argument("--limit-s", type=float, default=60.0, help="of one global step; then a peer hangs")
    parser.add_argument("--keep", type=Path, help="directory for the peers' logs; default: none is kept")
    parser.add_argument("--json", action="store_true", help="the last line of the output is one JSON object")
    options = parser.parse_args(arguments)
    try:
        options.setup = setup_from(options)
    except ValueError as error:
        parser.error(str(error))
    return options


def setup_from(options: argparse.Namespace) -> Setup:
    """Raises ``ValueError``."""
    kinds = tuple(Kind(name) for name in options.kinds.split(","))
    first, last = (float(part) for part in options.window.split(","))
    num_elements = int(options.mb * MB / BYTES_PER_ELEMENT)
    if not 3 <= options.peers <= MOST_PEERS:
        raise ValueError(f"3 to {MOST_PEERS} peers: two survivors make a round, and a run tells so many apart")
    if options.seeds < 1 or options.rest < 1 or num_elements < RUN_ELEMENTS or options.mbit <= 0:
        raise ValueError("--seeds, --rest, --mb and --mbit must be above zero")
    if not 0.0 <= first <= last <= 1.0:
        raise ValueError("--window must be two numbers from 0 to 1, the smaller one first")
    return Setup(
        peers=options.peers,
        mbit_per_s=options.mbit,
        num_elements=num_elements,
        kinds=kinds,
        seeds=options.seeds,
        seed=options.seed,
        rest=options.rest,
        limit_s=options.limit_s,
        window=(first, last),
    )


def main() -> int:
    """Measure and print; the exit code."""
    options = parse_arguments()
    started_s, load_before = time.monotonic(), round(os.getloadavg()[0], 2)

    def tell(text: str) -> None:
        print(f"{time.monotonic() - started_s:7.1f} s  {text}", file=sys.stderr, flush=True)

    try:
        with tempfile.TemporaryDirectory(prefix="faults-") as temporary:
            folder = options.keep or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            course = measure(options.setup, folder.resolve(), tell)
    except (BenchFailed, LabFailed) as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    content = report(course, options.setup, load_before=load_before, took_s=time.monotonic() - started_s)
    show(content)
    if options.json:
        print(json.dumps(content))
    if not is_sound(content):
        return 2
    return 1 if course.problem else 0


if __name__ == "__main__":
    sys.exit(main())
