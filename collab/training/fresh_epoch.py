"""A newcomer lets the swarm take its next step first, where the state would else be an old one when it is here.

What is fetched is the state of one moment; each step that the swarm takes meanwhile has to be fetched after it. A
download that begins right after a step may be over before the next one.
"""

import asyncio
import logging
import math
from dataclasses import dataclass

from collab.averaging.flow import Links
from collab.config import Optimizer, Run
from collab.ports import Ports
from collab.swarm.mandate import Mandate
from collab.swarm.membership import Membership
from collab.swarm.progress import REFRESH_S
from collab.training.replica import Replica

logger = logging.getLogger(__name__)

FLOAT_BYTES = 4
RESULT_BYTES = {"exact": 4, "half": 2, "int8": 1, "int4": 0.6, "auto": 1, "sparse": 1, "sparse_both": 0.08}
"""Of an element of what a round made, as it is fetched."""


@dataclass(frozen=True, slots=True)
class FreshEpoch:
    """Of one trainer."""

    ports: Ports
    membership: Membership
    links: Links
    run: Run
    replica: Replica
    mandate: Mandate

    @property
    def state_floats(self) -> float:
        """Of the run's state for each parameter, in float32."""
        return state_floats(self.run.optimizer)

    @property
    def mean_floats(self) -> float:
        """The same of what one round made."""
        return RESULT_BYTES[self.run.averaging.compression] / FLOAT_BYTES

    def fetch_s(self, missed: int) -> float:
        """How long our link takes for so many missed rounds; 0: for the state as a whole. 0.0 if it is not known."""
        rate, floats = self.links.downlink.rate(), self.mean_floats * missed if missed else self.state_floats
        return 0.0 if rate is None else self.replica.layout.num_elements * FLOAT_BYTES * floats / rate.bytes_per_s

    async def wait(self) -> None:
        """Until the swarm has taken its next step, if that saves more than it takes; not for longer than promised."""
        wait_s, consensus = self._worth_s(), self.membership.consensus_of_others()
        if not wait_s or consensus is None:
            return
        logger.info("waiting for the next step, due in %.1f s, before the state is fetched", wait_s)
        give_up_s = self.ports.clock.monotonic() + 2 * wait_s + REFRESH_S
        while self.ports.clock.monotonic() < give_up_s and self.membership.consensus_of_others() == consensus:
            await asyncio.sleep(REFRESH_S / 2)
            await self.membership.look()

    def _worth_s(self) -> float:
        rate, view = self.links.downlink.rate(), self.membership.others()
        consensus = view.consensus()
        if rate is None or consensus is None:
            return 0.0
        due_s, step_s = view.step_ahead(self.mandate.target_batch_size(consensus[0]), self.ports.clock.now())
        return worth_waiting_s(due_s=due_s, step_s=step_s, fetch_s=self.fetch_s(0), missed_s=self.fetch_s(1))


def worth_waiting_s(*, due_s: float, step_s: float, fetch_s: float, missed_s: float) -> float:
    """How long to wait for the next step before the state is fetched; 0: not at all.

    Args:
        due_s: until the next step.
        step_s: between two steps.
        fetch_s: what fetching the state takes.
        missed_s: what fetching a step takes that was missed meanwhile.
    """
    if not (0 < due_s < missed_s and 0 < step_s < math.inf):
        return 0.0
    missed_now = 1 + math.floor((fetch_s - due_s) / step_s) if fetch_s >= due_s else 0
    missed_then = math.floor(fetch_s / step_s)
    return due_s if (missed_now - missed_then) * missed_s > due_s else 0.0


def state_floats(section: Optimizer) -> float:
    """Of the run's state for each parameter, in float32: itself, and what the optimiser keeps."""
    match section.name:
        case "sgd":
            return 2.0 if section.momentum else 1.0
        case "adamw" | "lamb":
            return 3.0
        case "adamw8bit":
            return 1.5
