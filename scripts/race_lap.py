"""One run of one engine in bench_time_to_loss.py: its processes behind their links, from the start to the last loss."""

import os
import signal
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_processes import Child, Household, await_invite
from netlab import Lab
from netlab_links import Link
from race_setup import Engine, Work

START_LIMIT_S = 240.0
END_LIMIT_S = 90.0
"""For a round that is under way when the time is over, and a judgement."""
KILLED = (1, 2)
"""With churn: trainers, by index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Churn:
    """Two trainers are killed and one comes, at parts of the time."""

    killed_at: float
    joined_at: float

    @classmethod
    def parse(cls, text: str) -> "Churn":
        """``0.33,0.67``; raises ``ValueError`` unless 0 <= killed <= joined < 1."""
        parts = [float(part) for part in text.split(",")]
        if len(parts) != 2 or not 0 <= parts[0] <= parts[1] < 1:
            raise ValueError(f"--churn {text}: two parts of the time are needed, as in 0.33,0.67")
        return cls(killed_at=parts[0], joined_at=parts[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What all engines run on."""

    backbone: Link
    trainers: tuple[Link, ...]
    seconds: float
    pace_ms: float
    microbatch: int
    layers: int
    width: int
    seed: int
    churn: Churn | None = None

    @property
    def links(self) -> tuple[Link, ...]:
        """The backbone's, the trainers', and that of the one that comes later."""
        return (self.backbone, *self.trainers, *([self.trainers[0]] if self.churn else []))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lap:
    """What came of it."""

    engine: Engine
    curve: list[tuple[float, float]]
    """Seconds and held-out loss; empty where the swarm took no step in its time, as when it waits for the dead."""
    wire_bytes: int
    microbatches: int
    """Of trainer 0."""
    epochs: int
    in_steps_s: float
    """Of trainer 0's time, in ``step``: exchanges and waiting for others, and the optimiser."""
    num_elements: int
    computing_s: float
    """Of trainer 0's time, in microbatches, with the sleep in each."""

    @property
    def microbatch_s(self) -> float:
        """Of trainer 0, mean."""
        return self.computing_s / max(self.microbatches, 1)

    @property
    def best_loss(self) -> float | None:
        """None: no step was taken."""
        return min((loss for _, loss in self.curve), default=None)

    def seconds_to(self, loss: float) -> float | None:
        """Until it was first judged no higher."""
        return next((seconds for seconds, judged in self.curve if judged <= loss), None)


class Race:
    """One swarm of one engine."""

    def __init__(self, engine: Engine, course: Course) -> None:
        self._engine, self._course = engine, course

    def run(self) -> Lap:
        """Raises ``BenchFailed`` when a process did not come up or did not answer."""
        print(f"{self._engine}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="bench-") as folder, ExitStack() as stack:
            lab: Lab = stack.enter_context(Lab(self._course.links))
            household = Household(Path(folder))
            stack.callback(household.close)
            contact = self._begin(household, lab)
            numbers = range(len(self._course.trainers))
            trainers = [self._start(household, lab, index, contact) for index in numbers]
            told = [trainer.answer(START_LIMIT_S) for trainer in trainers]
            before = lab.wire_bytes()
            for trainer in trainers:
                trainer.say("go")
            began_s = time.monotonic()
            if self._course.churn:
                self._disturb(self._course.churn, household, lab, trainers, contact, began_s)
            curve, last = self._follow(trainers[0])
            print(f"  {last} {curve}", file=sys.stderr, flush=True)
            return Lap(
                engine=self._engine,
                curve=curve,
                wire_bytes=lab.wire_bytes() - before,
                microbatches=last["microbatches"],
                epochs=last["epochs"],
                in_steps_s=round(last["in_steps_s"], 2),
                num_elements=told[0]["num_elements"],
                computing_s=last["computing_s"],
            )

    def _work(self, lab: Lab, index: int, contact: str) -> Work:
        """Of a trainer; -1: of the peer that they meet at."""
        course = self._course
        return Work(
            engine=self._engine,
            index=index,
            trainers=len(course.trainers),
            host=lab.host(index + 1),
            up_mbit_per_s=course.links[index + 1].up_mbit_per_s,
            seconds=course.seconds,
            pace_ms=course.pace_ms,
            batch=course.microbatch,
            layers=course.layers,
            width=course.width,
            seed=course.seed,
            contact=contact,
        )

    def _begin(self, household: Household, lab: Lab) -> str:
        """The peer that others find the swarm by; how to."""
        work = self._work(lab, -1, "")
        work.task()  # the tokenizer and the tokens are made once, by nobody's time
        if self._engine.is_ours:
            invite, backbone = household.start_backbone(work.run_text, "--json", network=lab)
            await_invite(invite, backbone, START_LIMIT_S)
            return invite.read_text().strip()
        program = str(Path(__file__).with_name("race_meeting.py"))
        meeting = household.start([program, work.to_json()], place=lab.place(0))
        return str(meeting.answer(START_LIMIT_S)["contact"])

    def _start(self, household: Household, lab: Lab, index: int, contact: str) -> Child:
        program = str(Path(__file__).with_name("race_peer.py"))
        words = [program, self._work(lab, index, contact).to_json()]
        return household.start(words, place=lab.place(index + 1))

    def _disturb(
        self, churn: Churn, household: Household, lab: Lab, trainers: list[Child], contact: str, began_s: float
    ) -> None:
        """Two are killed, and one comes; what trainer 0 says meanwhile is read later."""
        time.sleep(max(0.0, began_s + self._course.seconds * churn.killed_at - time.monotonic()))
        for index in KILLED:
            with suppress(ProcessLookupError):
                os.killpg(trainers[index].process.pid, signal.SIGKILL)
        time.sleep(max(0.0, began_s + self._course.seconds * churn.joined_at - time.monotonic()))
        late = self._start(household, lab, len(trainers), contact)
        late.answer(START_LIMIT_S)
        late.say("go")

    def _follow(self, judge: Child) -> tuple[list[tuple[float, float]], dict[str, Any]]:
        """What trainer 0 judges until its time is over."""
        curve = list[tuple[float, float]]()
        while not (told := judge.answer(self._course.seconds + END_LIMIT_S)).get("is_over"):
            curve.append((round(told["seconds"], 2), round(told["loss"], 4)))
        return curve, told
