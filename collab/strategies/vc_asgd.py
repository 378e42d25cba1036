"""VC-ASGD: asynchronous stochastic gradient descent over work units, for volunteer-like computing."""

from collab import config
from collab.averaging.base import Committed, Outcome
from collab.strategies.base import NOTHING, Decision, Replica, Stepped, Swarm, Units, Waiting
from collab.swarm.parameter_store.base import Verdict

NO_ROUNDS = "copies are pushed to parameter servers; there are no rounds"


class VcAsgd:
    """A client trains a copy of the servers' parameters on one work unit, and pushes it; nobody waits for anybody.

    Update rule, on a server, at once when a copy W_c arrives:
    ``W_s <- alpha W_s + (1 - alpha) W_c``, with ``alpha`` constant or ``e / (e + 1)`` in pass e (from 1), where W_c is
    what the inner optimiser, with a fresh state, makes of an earlier W_s on the samples of the unit.

    There are no rounds to lose. A push whose answer is lost is sent again, and counts once. A unit of a client that
    dies is issued again at its deadline, and that client's work on it is lost. A copy that comes after somebody else
    has done the unit, or after too many others, is in nothing.

    Source: Atre et al., "Distributed Deep Learning Using Volunteer Computing-Like Paradigm" (2021).
    """

    follows_swarm = False
    is_synchronous = True

    async def after_microbatch(self, replica: Replica, swarm: Swarm) -> Decision:
        units = swarm.units
        if units is None:
            raise ValueError("vc_asgd needs the units of parameter servers")
        decision = await self._settle(replica, swarm, units, waits=units.is_over)  # one is on its way at a time
        if not units.is_over:
            return decision
        copy = await swarm.worker.run(replica.hand_over)
        units.push(copy)
        return await self._settle(replica, swarm, units, waits=True) if units.is_single else decision

    async def _settle(self, replica: Replica, swarm: Swarm, units: Units, *, waits: bool) -> Decision:
        """What has become of the push that is under way, if that is known."""
        if (answer := await units.answer(waits=waits)) is None:
            return Waiting()
        copy, verdict = answer
        is_used = verdict in (Verdict.TAKEN, Verdict.AGAIN)
        await swarm.worker.run(lambda: replica.settle(copy.everything if is_used else NOTHING))
        if not is_used:
            return Waiting(f"what we computed on a unit is in nothing: {verdict}")
        return Stepped(contributors=1, swarm_samples=float(copy.samples), was_ours_used=True)

    def patience_s(self, replica: Replica, usual_s: float) -> float:
        return usual_s  # no round is ever begun

    async def contribute(self, replica: Replica, swarm: Swarm) -> Outcome:
        raise ValueError(NO_ROUNDS)

    async def take(self, replica: Replica, swarm: Swarm, outcome: Outcome) -> Decision:
        raise ValueError(NO_ROUNDS)

    def apply(self, replica: Replica, committed: Committed) -> None:
        raise ValueError(NO_ROUNDS)


def alpha_of(section: config.VcAsgd, pass_number: int) -> float:
    """What a push of a unit of pass e keeps of what is stored: a constant, or ``e / (e + 1)``."""
    return pass_number / (pass_number + 1) if section.alpha == "pass" else float(section.alpha)
