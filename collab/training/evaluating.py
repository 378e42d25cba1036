"""Evaluations of one trainer: whose turn a checkpoint is, and what becomes of one that fails or is in the way."""

from collab.concurrency import run_until_first
from collab.data.made_once import BeingMade
from collab.data.sources import NoText
from collab.errors import BrokenOff, CollabError
from collab.metrics.records import EvaluationDone, Notice
from collab.tasks.base import Evaluation, Task
from collab.tasks.evaluation import blaming_task, evaluate_unless
from collab.training.device_memory import room_for
from collab.training.participant import Participant
from collab.training.pausing import Pause


class Evaluating:
    """Measures what the state of a checkpoint is worth.

    An evaluation that fails is told, and costs nothing else: the checkpoint is published without its worth, and the
    next trainer in turn may have what this one lacks.
    """

    def __init__(self, participant: Participant, task: Task) -> None:
        self._participant, self._task = participant, task
        self._ports, self._replica = participant.ports, participant.replica
        self._told = ""
        """Why nothing was measured the last time."""

    async def in_turn(self, pause: Pause) -> None:
        """One trainer evaluates each checkpoint; at the end all do, since they have nothing else to do.

        Whoever wants the machine back waits for no more than a batch of it, and this state is not tried again.
        """
        if pause.wanted.is_set() or not self._is_our_turn():
            return
        epoch, era, clock = self._replica.epoch, self._replica.era, self._ports.clock
        vitals, started_s = self._participant.vitals, clock.monotonic()
        vitals.begin_microbatch(started_s)  # busy, at least as long as that
        try:
            await self._read(pause)
            found = await self._ports.compute.run(lambda: self._measured(pause))
        except BrokenOff:
            return
        except CollabError as error:
            self._say(epoch, error)
            await self._ports.compute.run(pause.release)
            return
        finally:
            vitals.pause()
        if found is None:
            return
        seconds, now = clock.monotonic() - started_s, clock.now()
        done = EvaluationDone(at_s=now, epoch=epoch, loss=found.loss, accuracy=found.accuracy, seconds=seconds)
        self._ports.observer.observe(done)
        self._told = ""
        vitals.note_evaluation(epoch, era, found)
        await self._participant.membership.report()

    def _is_our_turn(self) -> bool:
        epoch, every = self._replica.epoch, self._participant.bundle.run.checkpoints.every_epochs
        trainers = sorted(record.peer for record in self._participant.membership.view.all_trainers())
        me = self._ports.transport.peer_id
        return self._participant.is_finished or not trainers or trainers[epoch // every % len(trainers)] == me

    async def _read(self, pause: Pause) -> None:
        """Have the held-out data here, which may take minutes the first time, while the worker does nothing. Nobody who
        wants to pause or to leave waits for that.
        """
        read = getattr(self._task, "read_held_out", None)
        if read is not None:
            with blaming_task("read its held-out data"):
                await run_until_first(self._ports.compute.apart(read), pause.wanted.wait())

    def _measured(self, pause: Pause) -> Evaluation | None:
        """On the worker."""
        if pause.wanted.is_set():
            return None
        with room_for("an evaluation does not fit"):
            return evaluate_unless(self._task, self._replica.model, pause.wanted.is_set)

    def _say(self, epoch: int, error: CollabError) -> None:
        """Once while the reason is the same. To have no text, or not yet, is nothing that this machine's owner should
        mend.
        """
        if error.message == self._told:
            return
        self._told = error.message
        text = f"this machine trains on, and did not evaluate epoch {epoch}: {error.message}"
        is_problem = not isinstance(error, NoText | BeingMade)
        notice = Notice(at_s=self._ports.clock.now(), text=text, hint=error.hint, is_problem=is_problem)
        self._ports.observer.observe(notice)
