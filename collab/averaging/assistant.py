"""Reducing for others: what auxiliary and backbone peers do in a round."""

import asyncio
import logging
from collections.abc import Callable

from collab.averaging.agreement import CommitRecord
from collab.averaging.base import Committed
from collab.averaging.calls import NOT_COMING, Call, Reply
from collab.averaging.round import RoundEngine
from collab.averaging.settings import RoundSettings
from collab.errors import CollabError
from collab.ports import Ports
from collab.swarm.membership import Membership
from collab.swarm.statutes import Statutes
from collab.types import Lineage, PeerId

logger = logging.getLogger(__name__)


AT_ONCE = 64
"""Rounds that we help in at once."""
FROM_ONE_LEADER = 4
"""Of these. It has one, or two when it has lost most of the first and calls to the next attempt."""


class Assistant:
    """Answers every known leader's call by joining its round as a reducer without a vector."""

    def __init__(self, knows: Callable[[PeerId], bool] = lambda _: True) -> None:
        """
        Args:
            knows: whether a peer is in the swarm, as far as we see.
        """
        self._knows = knows
        self._calls: asyncio.Queue[tuple[PeerId, int, Lineage]] = asyncio.Queue()
        self._under_way: set[tuple[PeerId, int, Lineage]] = set()
        self.rounds_committed = 0
        self.on_round: Callable[[CommitRecord], None] = lambda _: None
        """Called with every round that has committed."""

    def attend(self, call: Call, leader: PeerId) -> Reply:
        """The engine's question: we come at once, unless a stranger calls, or more often than there can be rounds."""
        round_ = (leader, call.epoch, call.lineage)
        if round_ not in self._under_way:
            calls_of_leader = sum(one[0] == leader for one in self._under_way)
            if len(self._under_way) >= AT_ONCE or calls_of_leader >= FROM_ONE_LEADER or not self._knows(leader):
                return NOT_COMING
            self._under_way.add(round_)
            self._calls.put_nowait(round_)
        return Reply(is_coming=True)

    async def run(self, engine: RoundEngine) -> None:
        """Follow calls until cancelled."""
        async with asyncio.TaskGroup() as rounds:
            while True:
                rounds.create_task(self._assist(engine, await self._calls.get()))

    async def _assist(self, engine: RoundEngine, call: tuple[PeerId, int, Lineage]) -> None:
        """One round; whatever ends it is logged, for the other rounds have nothing to do with it."""
        leader, epoch, lineage = call
        try:
            outcome = await engine.assist(leader, epoch, lineage)
        except CollabError as error:
            logger.warning("assisting ended with an error epoch=%d leader=%s reason=%s", epoch, leader, error)
        except Exception:
            logger.exception("assisting failed, please report this epoch=%d leader=%s", epoch, leader)
        else:
            if isinstance(outcome, Committed):
                self.rounds_committed += 1
                self.on_round(outcome.record)
            else:
                logger.info("round ended without us epoch=%d leader=%s reason=%s", epoch, leader, outcome.text)
        finally:
            self._under_way.discard(call)


def assisting_engine(
    ports: Ports, statutes: Statutes, membership: Membership, assistant: Assistant, *, can_reduce: bool = True
) -> RoundEngine:
    """The round engine of a peer that leads and reduces for others, with ``assistant`` answering its calls.

    Args:
        can_reduce: else it leads and votes only.
    """
    return RoundEngine(
        ports,
        RoundSettings.of(statutes.bundle.run, statutes.bundle.fingerprint, statutes.mandate, can_reduce=can_reduce),
        leaders=membership.leaders,
        roster=membership.roster,
        attend=assistant.attend,
        prepare=membership.ask,
    )
