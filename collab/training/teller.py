"""What a trainer says of itself: its record to the swarm, events to whoever watches this machine."""

import logging
import statistics
from collections.abc import Callable
from typing import Protocol

from collab.averaging.agreement import CommitRecord
from collab.metrics.records import EpochFinished, MicrobatchDone, MicrobatchSkipped, SamplesUsed, WindowsAveraged
from collab.ports import Ports
from collab.strategies.base import Stepped
from collab.swarm.reachability import Reaching, Verdict
from collab.swarm.records import MAX_GPU_CHARACTERS, PeerRecord, PeerState
from collab.training.precision import gpu_name
from collab.training.replica import MicrobatchReport, Replica
from collab.training.sums import Used
from collab.training.vitals import Vitals
from collab.types import Lineage, Reachability, Role

logger = logging.getLogger(__name__)


class Listener(Protocol):
    """Who follows what becomes of this peer's samples, and of those of others."""

    def note_used(self, sample_ids: tuple[int, ...]) -> None:
        """All of these samples of ours are in steps."""
        ...

    def note_round(self, record: CommitRecord) -> None:
        """A round has committed; it may be told twice."""
        ...

    def note_state(self) -> None:
        """A state was taken over whole: there may have been rounds that we know nothing of."""
        ...


class Teller:
    """Speaks for one trainer."""

    def __init__(self, ports: Ports, fingerprint: str, name: str, replica: Replica, reach: Reachability) -> None:
        self._ports, self._fingerprint, self._name = ports, fingerprint, name
        self._replica = replica
        self.reach = reach
        """How others get to us, as far as we know."""
        self.vitals = Vitals()
        self._life = round(1000 * ports.clock.now())
        self.free_from: int | None = None
        """First epoch of which we have promised nothing, when we leave."""
        self.wants_credit = False
        """Whether our name may be published with the model."""
        self.has_seat: Callable[[Lineage], bool] = lambda _: True
        """Whether we may vote about what follows a history."""
        self.data: Callable[[], tuple[str, int]] = lambda: ("", 0)
        """The data that we share with others, and the pass that we are in."""
        self.listener: Listener | None = None
        self._last_step_s: float | None = None
        """None: others took the swarm's last step, and when is not known."""
        self._gpu = gpu_name(replica.device)[:MAX_GPU_CHARACTERS]

    def follow(self, reaching: Reaching) -> None:
        """Say in our record how others get to us, also when that changes."""

        def note(verdict: Verdict) -> None:
            self.reach = verdict.reach

        note(reaching.verdict)
        reaching.follow(note)

    def record(self) -> PeerRecord:
        """Our word to the swarm, as of now."""
        vitals, replica, (data, data_pass) = self.vitals, self._replica, self.data()
        eval_epoch, found = vitals.evaluation_in(replica.era)
        return PeerRecord(
            peer=self._ports.transport.peer_id,
            fingerprint=self._fingerprint,
            name=self._name,
            role=Role.TRAINER,
            state=vitals.state,
            epoch=replica.epoch if vitals.state is not PeerState.LEFT else self.free_from or 0,
            lineage=replica.lineage,
            samples=replica.samples,
            samples_per_s=vitals.samples_per_s,
            microbatch_s=vitals.microbatch_s,
            loss=vitals.loss,
            total_samples=vitals.total_samples,
            epochs_contributed=vitals.epochs_contributed,
            can_be_dialled=self.reach is Reachability.DIRECT,
            eval_epoch=eval_epoch,
            eval_loss=found.loss,
            eval_accuracy=found.accuracy,
            said_at=self._ports.clock.now(),
            has_seat=self.has_seat(replica.lineage),
            era=replica.era,
            data=data,
            data_pass=data_pass,
            reach=self.reach,
            wants_credit=self.wants_credit,
            gpu=self._gpu,
            period=vitals.period,
            delay=vitals.delay,
            life=self._life,
        )

    def note_microbatch(self, report: MicrobatchReport, seconds: float) -> None:
        """Book one microbatch that took ``seconds``."""
        self.vitals.end_microbatch(report, seconds)
        now, epoch = self._ports.clock.now(), self._replica.epoch
        if report.skipped:
            logger.warning("microbatch left out epoch=%d reason=%s", epoch, report.skipped)
            event = MicrobatchSkipped(at_s=now, epoch=epoch, samples=report.samples, reason=report.skipped)
            self._ports.observer.observe(event)
            return
        done = MicrobatchDone(at_s=now, epoch=epoch, samples=report.samples, loss=report.loss, seconds=seconds)
        self._ports.observer.observe(done)

    def note_late_use(self) -> None:
        """Samples of ours may have gone into a step that we learned of later."""
        used = self._take_used()
        if used.weight > 0:
            event = SamplesUsed(
                at_s=self._ports.clock.now(),
                epoch=self._replica.epoch,
                samples=len(used.sample_ids),
                weight=used.weight,
                sample_ids=used.sample_ids,
                sample_epochs=used.sample_epochs,
                used_in=used.rounds,
            )
            self._ports.observer.observe(event)

    def note_round(self, record: CommitRecord) -> None:
        """A round has committed."""
        if self.listener is not None:
            self.listener.note_round(record)

    def note_state(self, *, is_whole: bool) -> None:
        """The replica has just been taken to the swarm's state: as a whole, or by the rounds that it had missed."""
        if is_whole and self.listener is not None:
            self.listener.note_state()
        self._last_step_s = None

    def note_step(self, decision: Stepped) -> None:
        """The replica took its step."""
        used = self._take_used()
        now_s = self._ports.clock.monotonic()
        finished = EpochFinished(
            at_s=self._ports.clock.now(),
            epoch=self._replica.epoch,
            lineage=self._replica.lineage,
            loss=used.loss,
            own_samples=len(used.sample_ids),
            own_weight=used.weight,
            sample_ids=used.sample_ids,
            sample_epochs=used.sample_epochs,
            used_in=used.rounds,
            swarm_samples=decision.swarm_samples,
            contributors=decision.contributors,
            learning_rate=self._replica.learning_rate,
            seconds=now_s - self._last_step_s if self._last_step_s is not None else 0.0,
        )
        self._last_step_s = now_s
        self._ports.observer.observe(finished)
        if paces := self._replica.take_paces():
            vitals, now, epoch = self.vitals, self._ports.clock.now(), self._replica.epoch
            vitals.period, vitals.delay = (float(statistics.median(steps)) for steps in zip(*paces, strict=True))
            told = WindowsAveraged(
                at_s=now, epoch=epoch, paces=tuple(paces), period=vitals.period, delay=vitals.delay
            )
            self._ports.observer.observe(told)

    def _take_used(self) -> Used:
        used = self._replica.take_used()
        if used.sample_ids:
            self.vitals.end_epoch(used)
            if self.listener is not None:
                self.listener.note_used(used.sample_ids)
        return used
