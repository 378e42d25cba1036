"""One peer of bench_averaging.py: a process that takes part in rounds when it is told to.

Its assignment is the first argument, as JSON. It reads words from its input, a line each, and answers in JSON lines:

    (start)             ready: how others find it
    connect CONTACTS    connected
    accompany           accompanied: what measures beside the rounds has begun
    prepare NUMBER      prepared: the vector of that round is in memory
    average EPOCH LINEAGE       group: as soon as it has one; whole: it holds its result; returned: how it ended
    check               checked: which share of the result is the mean, and the digest of its bytes
    read PERIODS        read: what was measured beside the rounds

It goes when its input ends, however that comes about.
"""

import gc
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

import averaging_vectors as vectors
from averaging_engine import Engine, Result, Turn, Voice
from averaging_gauges import Gauge, Periods
from averaging_setup import Assignment, Part

LEAVE_LIMIT_S = 4.0
"""For an engine to say goodbye; then whatever is left of it is killed."""


def open_engine(work: Assignment, voice: Voice) -> Engine:
    """The contestant that ``work`` names; each imports what it needs and nothing of the others."""
    if work.engine == "hivemind":
        from averaging_hivemind import HivemindEngine

        return HivemindEngine(work, voice)
    if work.engine == "gloo":
        from averaging_gloo import GlooEngine

        return GlooEngine(work, voice)
    from averaging_collab import CollabEngine

    return CollabEngine(work, voice)


def gauges(work: Assignment, engine: Engine) -> Iterator[Gauge]:
    """What is to be measured beside the rounds here."""
    if work.computes:
        from averaging_compute import Computing

        yield Computing(work.core, work.seed)
    if work.heartbeats_to is not None:
        from averaging_collab import CollabEngine
        from averaging_heartbeats import Heartbeats

        if isinstance(engine, CollabEngine):
            yield Heartbeats(engine, work.heartbeats_to)


def words() -> Iterator[list[str]]:
    """Lines of the input, split once; at its end the process has ``LEAVE_LIMIT_S`` to live."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        # not sys.stdin: processes that hivemind forks close theirs, and would wait for ever for the lock we hold here
        with os.fdopen(os.dup(0)) as stream:
            for line in stream:
                lines.put(line)
        lines.put(None)
        time.sleep(LEAVE_LIMIT_S)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=read, daemon=True).start()
    while (line := lines.get()) is not None:
        yield line.rstrip("\n").split(" ", 1)


class Attendant:
    """Does what the words say."""

    def __init__(self, work: Assignment, engine: Engine, voice: Voice) -> None:
        self._work, self._engine, self._voice = work, engine, voice
        self._number = 0
        self._vector: vectors.AnyFloats | None = None
        self._result: Result | None = None
        self._gauges = list(gauges(work, engine))

    def follow(self, word: str, rest: str) -> None:
        """One line of the input."""
        if word == "connect":
            self._engine.connect(json.loads(rest))
            self._voice.tell("connected")
        elif word == "accompany":
            for gauge in self._gauges:
                gauge.start()
            self._voice.tell("accompanied")
        elif word == "prepare":
            self._prepare(int(rest))
        elif word == "average":
            self._average(*rest.split())
        elif word == "check":
            self._check()
        elif word == "read":
            periods = Periods.from_json(rest)
            self._voice.tell("read", gauges={gauge.name: gauge.read(periods) for gauge in self._gauges})

    def _prepare(self, number: int) -> None:
        self._number, self._result, self._vector = number, None, None
        if self._work.part is not Part.AUXILIARY:
            make = vectors.half_vector if self._work.dtype == "float16" else vectors.vector
            self._vector = make(self._work.seed, number, self._work.index, self._work.num_elements)
        self._engine.take_payload_bytes()
        self._voice.tell("prepared")

    def _average(self, epoch: str, lineage: str) -> None:
        weight = vectors.weight(self._work.index) if self._vector is not None else 0.0
        turn = Turn(vector=self._vector, weight=weight, epoch=int(epoch), lineage=lineage)
        called_s = time.monotonic()
        self._result = result = self._engine.average(turn)
        self._voice.tell(
            "returned",
            called_s=called_s,
            committed=result.is_committed,
            contributors=len(result.contributors),
            epoch=result.epoch,
            lineage=result.lineage,
            vector_bytes=result.vector_bytes,
            result_bytes=result.result_bytes,
            reason=result.reason[:500],
        )

    def _check(self) -> None:
        fraction, digest, result = 0.0, "", self._result
        if result is not None and result.mean is not None:
            trainers = [peer for peer, part in enumerate(self._work.parts) if part is not Part.AUXILIARY]
            weights = result.contributors or {peer: vectors.weight(peer) for peer in trainers}
            max_error = vectors.tolerance(self._work.codec, weights, self._work.dtype)
            fraction = vectors.fraction_averaged(
                result.mean, self._work.seed, self._number, weights, max_error, result.gaps
            )
            digest = vectors.digest(result.mean)
        payload_bytes = self._engine.take_payload_bytes()
        self._voice.tell("checked", fraction=fraction, digest=digest, payload_bytes=payload_bytes)


def own_voice() -> Voice:
    """On what was the output; whatever libraries print goes to the log from now on."""
    voice = Voice(os.dup(1))
    os.dup2(2, 1)
    return voice


def obey(lines: Iterator[list[str]], follow: Callable[[str, str], None], leave: Callable[[], None]) -> None:
    """Do what the words say until they end, then go with all that this process has started."""
    gc.collect()
    gc.freeze()  # as peers do: a collection that walks through torch's objects stops the event loop for 0.1 s
    for word, *rest in lines:
        follow(word, rest[0] if rest else "")
    leave()
    os.killpg(os.getpgrp(), signal.SIGKILL)


def main() -> None:
    """Body of the process."""
    voice, lines = own_voice(), words()
    work = Assignment.from_json(sys.argv[1])
    engine = open_engine(work, voice)
    voice.tell("ready", contact=engine.contact)
    obey(lines, Attendant(work, engine, voice).follow, engine.leave)


if __name__ == "__main__":
    main()
