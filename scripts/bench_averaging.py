#!/usr/bin/env python3
"""Averaging one vector over shaped links, beside hivemind's averager and plain torch.distributed, in one run.

    python scripts/bench_averaging.py --engine collab,hivemind,gloo --links het --rounds 3 --json       # root
    python scripts/bench_averaging.py --engine collab --links 200,200@5,10/100@15,20/100 --client 3 --codec half
    python scripts/bench_averaging.py --engine collab --links loopback:2 --mb 64                        # nobody's root

Each peer is a process behind its own link (see netlab.py): Mbit/s up/down, @one-way delay in ms. --links takes a list,
a preset, or loopback:N. Engine equal is collab whose leaders are not told what was measured. Several engines take turns
round by round, and those whose turn it is not are idle. The vector is random and known to everybody, so that each peer
checks its result.

    all_reduce_s        from the first peer's group to the last trainer's whole result
    whole_step_s        from the first call to the last return, finding each other included
    optimum_s           the least that links without overhead allow for float32: a linear program, told the links
    optimum_encoded_s   the same for the bytes that the senders really sent
    ratio               median of all_reduce_s / optimum_s over the measured rounds
    cpu_s_per_gb        CPU seconds of all peers / (trainers x GB of a float32 vector)
    memory_ratio        what a trainer's Python held at its peak, beyond what it held before the round (when it had its
                        vector), plus that vector, / that vector; of the trainer with most
    memory_ratio_in_all the same without what came before: its peak beyond what it held before its first vector

Beside the rounds, of which each is preceded by two quiet seconds then:

    --heartbeats 0:7    round trips of 200 bytes from peer 0 to 7, one every 100 ms, over a stream of its own: those
                        due while a round's vectors travelled, and those at quiet times. One without an answer counts
                        with the time waited so far
    --compute [INDEX]   a thread of that trainer (all of them) trains a small layer all the time: its speed while
                        vectors travel / its speed at quiet times. Where there are cores enough, each such thread gets
                        one of its own and everything else has the others; its CPU seconds are in cpu_s_per_gb.
                        share_kept_of_core leaves out the time in which other programs had that core

A billion float16 elements: --links loopback:2 --mb 4000 --dtype float16 --codec half --rounds 1 --skip 0 --limit-s 600
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from averaging_contest import Contestant
from averaging_faults import Change, Fault, strike
from averaging_figures import Course, report, show
from averaging_gauges import Company, own_cores
from averaging_setup import BYTES_PER_ELEMENT, MB, PRESETS, Part, Sizes, Swarm, Task, optimum_s, parse_swarm
from averaging_trace import Panel, Sampler, save, uses_between
from bench_processes import BenchFailed, Household
from netlab import Lab
from netlab_links import Loopback, Network
from netlab_namespaces import LabFailed, ending_by_signals, other_labs

ENGINES = ("collab", "equal", "hivemind", "gloo")
LEARNING_ROUNDS = {"collab": 2, "equal": 2}
"""Before those that are measured, unless --skip says otherwise."""
PAUSE_S = 0.3
"""Between two rounds: the queues of the links run empty within 0.2 s."""
QUIET_S, EDGE_S = 2.4, 0.2
"""Before a round, when something measures beside it, and what is left out of that at both ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Which rounds there are."""

    rounds: int
    """Measured ones."""
    skip: dict[str, int]
    """Rounds of each engine before those: an engine that measures its links knows nothing in the first."""
    fault: Fault | None
    changes: tuple[Change, ...]
    is_traced: bool


# -- running ---------------------------------------------------------------------------------------------------------


def run(task: Task, engines: Sequence[str], schedule: Schedule) -> dict[str, Course]:
    """Let the engines take turns.

    Raises:
        BenchFailed: an engine did not come up, or none of its peers came back.
        LabFailed: there are no namespaces to be had.
    """
    with ExitStack() as stack:
        stack.enter_context(ending_by_signals())
        if task.company.other_cores:
            stack.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
            os.sched_setaffinity(0, task.company.other_cores)  # children and their threads inherit it
        lab = stack.enter_context(Lab(task.swarm.links)) if task.swarm.links else None
        network: Network = lab or Loopback()
        if lab and other_labs():
            print("warning: another lab is up on this machine; both will measure too little", file=sys.stderr)
        courses: dict[str, Course] = {}
        for engine in engines:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
            household = Household(Path(folder))
            stack.callback(household.close)
            contestant = Contestant(engine, task, network, household)
            stack.callback(contestant.end_frozen)
            print(f"starting {len(task.swarm.parts)} peers of {engine}", file=sys.stderr, flush=True)
            contestant.start()
            courses[engine] = Course(contestant, schedule.skip[engine])
        for number in range(schedule.rounds + max(schedule.skip.values())):
            for change in schedule.changes if lab else ():
                if change.number == number and lab:
                    lab.set_link(change.peer, change.link)
            for course in courses.values():
                if number < schedule.rounds + course.skip:
                    play(course, number, task, schedule, lab)
                    time.sleep(PAUSE_S)
        for course in courses.values():
            if task.company.is_any:
                course.beside = task.company.figures(course.contestant.read(course.periods))
        return courses


def play(course: Course, number: int, task: Task, schedule: Schedule, lab: Lab | None) -> None:
    """One round of one engine."""
    contestant = course.contestant
    swarm = replace(task.swarm, links=lab.links) if lab else task.swarm
    is_last = number == course.skip + schedule.rounds - 1
    sampler = Sampler(lab) if lab and schedule.is_traced and is_last else None
    contestant.prepare(number)
    if task.company.is_any:
        prepared_s = time.monotonic()
        time.sleep(QUIET_S)
        course.quiet.append((prepared_s + EDGE_S, time.monotonic() - EDGE_S))
    before = contestant.meter()
    with sampler or nullcontext():
        contestant.begin()
        if schedule.fault is not None and number == course.skip:
            strike(contestant, schedule.fault, task.swarm, lab)
        found = contestant.finish(number, before)
    if lab and schedule.fault is not None:
        lab.set_link(schedule.fault.peer, swarm.links[schedule.fault.peer])
    course.rounds.append((swarm, found))
    seconds = "failed" if found.all_reduce_s is None else f"{found.all_reduce_s:.2f} s"
    print(f"round {number}: {contestant.engine} {seconds}", file=sys.stderr, flush=True)
    if sampler is not None and found.all_reduce_s is not None:
        course.panel = Panel(
            title=f"{contestant.engine}: shares of every peer's Mbit/s up (upper strip) and down (lower) in use",
            links=swarm.links,
            uses=uses_between(sampler, found.began_s, found.began_s + found.all_reduce_s),
            seconds=found.all_reduce_s,
            optimum_s=optimum_s(swarm, Sizes.of(swarm, task.num_elements, BYTES_PER_ELEMENT)),
        )


# -- command line ----------------------------------------------------------------------------------------------------


def parse_arguments() -> tuple[argparse.Namespace, Task, Schedule]:
    """Options, and what they ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="collab", help=f"of {', '.join(ENGINES)}; several by commas take turns")
    parser.add_argument("--links", default="hom25", help=f"a list, loopback:N, or {', '.join(PRESETS)}")
    parser.add_argument("--scale", type=float, default=1.0, help="of all rates")
    parser.add_argument("--aux", default="", help="indices of peers that only reduce, by commas")
    parser.add_argument("--client", default="", help="indices of trainers that cannot be dialled, by commas")
    parser.add_argument("--mb", type=float, default=8.0, help="of a vector in float32, in 10^6 bytes")
    parser.add_argument("--dtype", choices=("float32", "float16"), default="float32", help="of the peers' vectors")
    parser.add_argument("--codec", choices=("none", "half", "auto"), help="none, but half for float16 vectors")
    parser.add_argument("--rounds", type=int, default=5, help="measured ones")
    parser.add_argument("--skip", type=int, help="rounds before those (2 for collab, which measures its links; else 0)")
    parser.add_argument("--fault", default="", help="kill|stop|slow:PEER:SECONDS into the first measured round")
    parser.add_argument("--change", default="", help="ROUND:PEER:LINK, by commas: a link is another from then on")
    parser.add_argument("--heartbeats", default="", help="FROM:TO, peers with a stream of their own beside the rounds")
    parser.add_argument("--compute", nargs="?", const="all", default="", help="index of a trainer, or all: see above")
    parser.add_argument("--limit-s", type=float, default=120.0, help="of one round")
    parser.add_argument("--nice", type=int, default=0, help="of the peers; -10 keeps other work out")
    parser.add_argument("--trace", type=Path, help="draw how full the links were in the last round, as SVG")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="the last line of the output is one JSON object")
    options = parser.parse_args()
    try:
        task, schedule = read(options)
    except (KeyError, ValueError) as error:
        parser.error(str(error))
    options.load_before = round(os.getloadavg()[0], 2)
    return options, task, schedule


def read(options: argparse.Namespace) -> tuple[Task, Schedule]:
    """Raises ``ValueError`` for what does not go together."""
    engines = options.engine.split(",")
    auxiliary, clients = ([int(index) for index in text.split(",") if index] for text in (options.aux, options.client))
    swarm = parse_swarm(options.links, auxiliary, clients, options.scale)
    if not set(engines) <= set(ENGINES):
        raise ValueError(f"engines are {', '.join(ENGINES)}")
    if "gloo" in engines and set(swarm.parts) != {Part.TRAINER}:
        raise ValueError("gloo has neither auxiliary peers nor clients")
    if options.codec == "auto" and engines != ["collab"]:
        raise ValueError("only collab chooses codecs")
    if not swarm.links and (options.trace or options.change or options.fault.startswith("slow")):
        raise ValueError("loopback has no links to trace, change or slow down")
    if engines != ["collab"] and (options.dtype != "float32" or options.heartbeats):
        raise ValueError("only collab averages float16 vectors, and has streams for heartbeats")
    options.codec = options.codec or ("half" if options.dtype == "float16" else "none")
    task = Task(
        swarm=swarm,
        num_elements=int(options.mb * MB / BYTES_PER_ELEMENT),
        codec=options.codec,
        seed=options.seed,
        limit_s=options.limit_s,
        niceness=options.nice,
        dtype=options.dtype,
        company=read_company(options, swarm),
    )
    schedule = Schedule(
        rounds=options.rounds,
        skip={name: LEARNING_ROUNDS.get(name, 0) if options.skip is None else options.skip for name in engines},
        fault=Fault.parse(options.fault) if options.fault else None,
        changes=tuple(Change.parse(text) for text in options.change.split(",") if text),
        is_traced=options.trace is not None,
    )
    return task, schedule


def read_company(options: argparse.Namespace, swarm: Swarm) -> Company:
    """Raises ``ValueError`` when it names peers that cannot do this."""
    peers = range(len(swarm.parts))
    heartbeats = None
    if options.heartbeats:
        sender, receiver = (int(index) for index in options.heartbeats.split(":"))
        heartbeats = (sender, receiver)
        if sender == receiver or not {sender, receiver} <= set(peers):
            raise ValueError(f"heartbeats go from one of peers 0 to {len(peers) - 1} to another")
    computing: tuple[int, ...] = ()
    if options.compute:
        if "," in options.engine:
            raise ValueError("compute is measured beside one engine: the others' trainers would be computing, too")
        computing = swarm.trainers if options.compute == "all" else (int(options.compute),)
        if not set(computing) <= set(swarm.trainers):
            raise ValueError(f"there is no trainer {options.compute}")
    cores, others = own_cores(computing, sorted(os.sched_getaffinity(0)))
    return Company(heartbeats=heartbeats, computing=computing, cores=cores, other_cores=others)


def main() -> int:
    """Measure and print; the exit code."""
    options, task, schedule = parse_arguments()
    try:
        courses = run(task, options.engine.split(","), schedule)
        content = report(courses, task, options)
    except (BenchFailed, LabFailed) as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    panels = [course.panel for course in courses.values() if course.panel is not None]
    if options.trace is not None and panels:
        save(panels, options.trace)
    show(content)
    if options.json:
        print(json.dumps(content))
    return 0


if __name__ == "__main__":
    sys.exit(main())
