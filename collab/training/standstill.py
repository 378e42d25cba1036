"""When nothing moves: what is wrong as far as this peer can see, in words, and what it does about it.

Rounds and downloads have time limits of their own and begin again by themselves. This looks at the whole: the epoch
does not grow, whatever the reason. It speaks once it is sure, says what to do, and tries what may help; then it waits
for twice as long.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from collab.metrics.records import Notice
from collab.ports import Ports
from collab.swarm.membership import Membership
from collab.swarm.records import PeerState
from collab.training.aims import Aims

LOOK_S = 2.0
SHORTEST_S, UNKNOWN_S = 60.0, 600.0
"""Without a step, before anything is said; the latter while nobody knows how long a step takes."""
STEPS = 10.0
"""Times what computing a batch should take."""
AS_LAST = 3.0
"""Times what a step takes, round and all: on thin uplinks that is far more than computing."""
UNHEARD_S = 30.0
"""Without an answer of the directory, whose answers take seconds: this machine is cut off."""
ALONE, NOT_ALONE = "no other trainer is here any more", "another trainer is here again"
SKIPPED = 4
"""Microbatches in a row that are not finite."""


class Remedy(Enum):
    """What may help."""

    NOTHING = auto()
    """Somebody must do something, or it must be waited for."""
    REJOIN = auto()
    """Let go of whoever leads, and look at everybody anew."""
    RESYNC = auto()
    """Take over the swarm's state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """What this peer sees."""

    idle_s: float
    """Since the epoch grew."""
    epoch: int
    swarm_epoch: int | None
    """Where most other trainers are; None: there are none."""
    others: int
    """Other trainers."""
    unheard_s: float
    """Since the directory answered."""
    samples: float
    """Towards the next step, as far as is known."""
    target: int
    """All that it takes; 0: nothing, there is no unit of work."""
    skipped: int
    """Microbatches in a row that were not finite."""
    failure: str
    """Why the newest round failed; empty: it did not."""
    is_own: bool = False
    """Whether the step needs no other trainer."""

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is wrong but that no step has been taken, and not for ever so long."""
        is_with_all = self.swarm_epoch is None or self.swarm_epoch <= self.epoch
        return is_with_all and self.unheard_s <= UNHEARD_S and not self.failure and self.idle_s < UNKNOWN_S


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong."""

    text: str
    hint: str
    remedy: Remedy


def find(signs: Signs) -> Finding:
    """The first explanation that fits, the most certain ones first."""
    since = f"no step for {signs.idle_s:.0f} s (epoch {signs.epoch})"
    if signs.unheard_s > UNHEARD_S:
        text = f"{since}: nobody of the swarm has answered for {signs.unheard_s:.0f} s"
        hint = "is this machine online? it goes on dialling every backbone that it knows"
        return Finding(text, hint, Remedy.REJOIN)
    if signs.swarm_epoch is not None and signs.swarm_epoch > signs.epoch:
        text = f"{since}: the others are at epoch {signs.swarm_epoch}; this peer takes over their state"
        return Finding(text, "if this comes again, its link may be too slow for the state", Remedy.RESYNC)
    if signs.skipped >= SKIPPED:
        text = f"{since}: {signs.skipped} microbatches in a row were not finite"
        return Finding(text, "check this machine's memory and drivers, or lower the learning rate", Remedy.NOTHING)
    if signs.is_own:
        return _find_alone(signs, since)
    if signs.samples >= signs.target and signs.failure:
        text = f"{since}: the batch is complete, and rounds fail: {signs.failure}"
        return Finding(text, "this peer looks for its group anew", Remedy.REJOIN)
    company = f"{signs.others} other trainer{'s' if signs.others != 1 else ''}"
    text = f"{since}: {signs.samples:.0f} of {signs.target} samples are there, with {company}"
    return Finding(text, "a step needs more trainers, faster ones, or a smaller target batch", Remedy.REJOIN)


def _find_alone(signs: Signs, since: str) -> Finding:
    failure = f"; {signs.failure}" if signs.failure else ""
    if not signs.target:
        hint = "others may have all that is left to do, or no backbone may answer; this peer goes on asking"
        return Finding(f"{since}: there is no unit of work for this machine{failure}", hint, Remedy.REJOIN)
    text = f"{since}: {signs.samples:.0f} of its {signs.target} samples are computed{failure}"
    return Finding(text, "is this machine busy with other work, or short of memory?", Remedy.NOTHING)


class Standstill:
    """Of one trainer: watches its epoch, and whether it has company."""

    def __init__(
        self,
        ports: Ports,
        membership: Membership,
        aims: Aims,
        is_in_round: Callable[[], bool] = lambda: False,
    ) -> None:
        """
        Args:
            aims: what a step takes.
            is_in_round: whether a round is under way, which has limits of its own.
        """
        self.waits = False
        """Whether nothing is computed without company; a user's own loop goes on."""
        self._ports, self._membership, self._aims = ports, membership, aims
        self._is_in_round, self._took_s = is_in_round, deque[float](maxlen=2)
        self.failure = ""
        """Why the newest round failed."""
        self.skipped: Callable[[], int] = lambda: 0
        self.help: Callable[[Remedy], None] = lambda _: None
        """Called with what may help."""
        self._epoch, self._target, self._since_s = -1, 0.0, ports.clock.monotonic()
        self._stepped_s = self._since_s
        """When the epoch grew last; ``_since_s``: or when we began to train in it, or on a unit, if that was later."""
        self._patience = 1.0
        self._had_company = self._is_left_alone = False

    @property
    def is_alone(self) -> bool:
        """Whether no other trainer is here."""
        return self._others == 0

    @property
    def _others(self) -> int:
        view, me = self._membership.view, self._ports.transport.peer_id
        ours = sum(record.peer == me for record in view.all_trainers())
        return view.num_trainers - (max(ours, 1) if view.crowd else ours)

    async def run(self) -> None:
        """Look now and then, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self._look_for_company()
            if (finding := self.look()) is not None:
                self._say(finding.text, finding.hint)
                self.help(finding.remedy)

    def look(self) -> Finding | None:
        """What is wrong, if it is time to say so."""
        record, now_s, target = self._membership.our_record(), self._ports.clock.monotonic(), self._aims.now().target
        if record.epoch != self._epoch:
            if record.epoch == self._epoch + 1 > 0 and not self._aims.is_own:
                self._took_s.append(now_s - self._since_s)
            elif record.epoch > self._epoch >= 0 and self._aims.is_own:
                self._took_s.append(now_s - self._stepped_s)  # waiting for a unit included
            self._epoch, self._since_s, self._patience, self.failure = record.epoch, now_s, 1.0, ""
            self._stepped_s = now_s
        if self._aims.is_own and target != self._target:
            self._since_s, self._patience = now_s, 1.0  # a unit has begun, or is handed over
        self._target = target
        if record.state is not PeerState.TRAINING or (self.waits and self.is_alone):
            self._since_s = now_s  # it is said elsewhere what is waited for
        if now_s - self._since_s < self._patience * self._limit_s():
            return None
        signs = self._signs(now_s - self._since_s)
        if self._is_in_round() and signs.is_quiet:
            return None
        self._patience *= 2
        return find(signs)

    def is_stuck(self) -> bool:
        """Whether a step should have been taken long ago, whatever has been tried since."""
        return self._ports.clock.monotonic() - self._stepped_s >= min(self._limit_s(), UNKNOWN_S)

    def _limit_s(self) -> float:
        """Without a step, until something is wrong."""
        if self._membership.unheard_s > UNHEARD_S:
            return SHORTEST_S
        aim = self._aims.now()
        expected_s = aim.target / aim.samples_per_s if aim.target > 0 and aim.samples_per_s > 0 else math.inf
        took_s = min(self._took_s, default=0.0)  # one that nothing came of for hours tells nothing of the next
        return max(SHORTEST_S, STEPS * expected_s, AS_LAST * took_s) if math.isfinite(expected_s) else UNKNOWN_S

    def _signs(self, idle_s: float) -> Signs:
        record, others, aim = self._membership.our_record(), self._membership.consensus_of_others(), self._aims.now()
        return Signs(
            idle_s=idle_s,
            epoch=record.epoch,
            swarm_epoch=others[0] if others is not None and not self._aims.is_own else None,
            others=self._others,
            unheard_s=self._membership.unheard_s,
            samples=aim.samples,
            target=math.ceil(aim.target),
            skipped=self.skipped(),
            failure=self.failure,
            is_own=self._aims.is_own,
        )

    def _look_for_company(self) -> None:
        """Whoever is left alone should know it, and that its work goes on."""
        if self._had_company and self.is_alone:
            does = "waits for company, as the run wants it" if self.waits else "trains on alone"
            hint = f"this machine {does}; its state is kept"
            if not self._membership.our_record().lineage:
                hint = "this machine has no state of the run yet, and waits until somebody is here who has it"
            self._say(ALONE, hint)
            self._is_left_alone = True
        elif self._is_left_alone and not self.is_alone:
            self._is_left_alone = False
            self._ports.observer.observe(Notice(at_s=self._ports.clock.now(), text=NOT_ALONE, settles=ALONE))
        self._had_company = not self.is_alone

    def _say(self, text: str, hint: str) -> None:
        self._ports.observer.observe(Notice(at_s=self._ports.clock.now(), text=text, hint=hint, is_problem=True))
