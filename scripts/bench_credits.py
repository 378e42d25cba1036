#!/usr/bin/env python3
"""What a backbone's book of contributors costs: processor time, bytes written and memory, with ``--known`` who have
ever come and ``--here`` who are here and have each given more whenever it is written down.

Beside it, in a process of its own, the same with all of them in memory and in one JSON file that is replaced as a whole
each time, which is the simplest way that survives a kill. Prints one JSON line.

    python scripts/bench_credits.py [--known 5000] [--here 64] [--writes 30]
"""

import argparse
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from collab.durable import replace_file
from collab.swarm.records import PeerRecord, PeerState
from collab.types import PeerId, Role
from peers.credit import Credit
from peers.credit_file import CreditFile
from peers.credits import SAVE_S, CreditBook

KINDS = ("table", "whole")


def peer(number: int) -> PeerId:
    """An id as long as a real one."""
    return PeerId(f"12D3KooW{number:044d}")


def said_by(number: int, turn: int) -> PeerRecord:
    """What a trainer says after so many turns."""
    return PeerRecord(
        peer=peer(number),
        fingerprint="f",
        name=f"person {number}",
        role=Role.TRAINER,
        state=PeerState.TRAINING,
        said_at=float(turn),
        can_be_dialled=True,
        epoch=turn,
        total_samples=100 * (turn + 1),
        wants_credit=True,
        life=1,
    )


def all_known(known: int) -> dict[PeerId, Credit]:
    """Who has ever come."""
    return {peer(one): Credit(f"person {one}", 0, 100 + one, is_seen=True, life=1) for one in range(known)}


def table(folder: Path, known: int, here: int) -> Callable[[int], None]:
    """As a backbone does it; a turn is what happens from one writing down to the next."""
    path = folder / "credits.sqlite"
    with closing(CreditFile.open(path)) as file:
        file.write(all_known(known))
    book = CreditBook(path, only_seen=True)

    def turn(number: int) -> None:
        records = [said_by(one, number) for one in range(here)]
        book.meet(records)
        book.note(records, contributors={record.peer for record in records})
        book.save()

    return turn


def whole(folder: Path, known: int, here: int) -> Callable[[int], None]:
    """All in memory, and the file as a whole."""
    credits_by_peer, path = all_known(known), folder / "credits.json"

    def turn(number: int) -> None:
        for record in (said_by(one, number) for one in range(here)):
            credits_by_peer[record.peer].hear(record.life, record.total_samples)
        replace_file(path, json.dumps({one: asdict(credit) for one, credit in credits_by_peer.items()}).encode())

    return turn


def memory_kb() -> int:
    """Of this process, without pages of files."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))


def written_bytes() -> int:
    """By this process, to files."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


def measured(kind: str, known: int, here: int, writes: int) -> dict[str, float]:
    """In a process that does nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        before_kb = memory_kb()
        turn = {"table": table, "whole": whole}[kind](Path(folder), known, here)
        turn(0)
        began_s, began_bytes, wall_s = time.process_time(), written_bytes(), time.perf_counter()
        for number in range(1, writes + 1):
            turn(number)
        took_s, bytes_each = time.process_time() - began_s, (written_bytes() - began_bytes) / writes
        return {
            "processor_ms": round(1e3 * took_s / writes, 2),
            "wall_ms": round(1e3 * (time.perf_counter() - wall_s) / writes, 2),
            "share_of_a_core": round(took_s / writes / SAVE_S, 5),
            "kb_written": round(bytes_each / 1024, 1),
            "memory_kb": memory_kb() - before_kb,
            "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        }


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--known", type=int, default=5000)
    parser.add_argument("--here", type=int, default=64)
    parser.add_argument("--writes", type=int, default=30)
    setup = parser.parse_args()
    if not 1 <= setup.here <= setup.known or setup.writes < 1:
        parser.error("expected 1 <= --here <= --known, and --writes of 1 or more")
    found = {}
    for kind in KINDS:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found[kind] = pool.apply(measured, (kind, setup.known, setup.here, setup.writes))
    print(json.dumps({"setup": {**vars(setup), "every_s": SAVE_S, "cores": os.cpu_count()}, **found}))


if __name__ == "__main__":
    main()
