"""A backbone that is older than the owner has ordered: it says so, and leaves when another one does its work."""

from contextlib import suppress

from packaging.version import InvalidVersion, Version

from collab.errors import Dismissed
from collab.metrics.records import Notice
from collab.ports import Ports
from collab.swarm.duties import Duty
from collab.swarm.records import PeerRecord, PeerState
from collab.swarm.vouching import contributors_of
from collab.training.dismissal import too_old
from collab.version import VERSION
from peers.company import Company
from peers.reporting import Reporter

FOR_THE_RUN = (Duty.BOOTSTRAP, Duty.REDUCER, Duty.STATE, Duty.CHECKPOINTS, Duty.PARAMETERS)
"""Duties that the run misses with whoever leaves. Who has joined relays nothing, and metrics are its owner's."""
OWNERS_HINT = "upgrade this machine, and start this backbone again with the same command; it goes on until then"
HINT = (
    "upgrade with the line that the organiser has for it, and start it again with the same command; it goes on for as "
    "long as no other backbone of that version does its work"
)


class Outdated:
    """Of one backbone."""

    def __init__(self, ports: Ports, company: Company, reporter: Reporter, *, is_owners: bool) -> None:
        """
        Args:
            is_owners: it is the one of the owner's directory, which never leaves.
        """
        self._ports, self._reporter, self._is_owners = ports, reporter, is_owners
        self._membership, self._lease, self._mandate = company.membership, company.lease, company.mandate
        self._rounds = company.rounds
        self._problem = "", ""
        self._why: Dismissed | None = None

    def problem(self) -> tuple[str, str]:
        """That ours is not the version that was ordered, and what to do, in words; both empty: it will do.

        As of the last look. Any thread may ask.
        """
        return self._problem

    def look(self) -> None:
        """Say so once, once more when it is in force, and once when a lower version was ordered."""
        (before, _), (text, hint) = self._problem, self._found()
        if text == before:
            return
        self._problem, now_s = (text, hint), self._ports.clock.now()
        over = f"this run asks for no later version of collab than {VERSION} any more"
        self._ports.observer.observe(
            Notice(at_s=now_s, text=text or over, hint=hint, is_problem=bool(text), settles=before)
        )

    def dismissal(self) -> Dismissed | None:
        """Why this peer must stop; None: it goes on. Not taken back: leaving, it says other things of itself."""
        if self._why is None:
            epoch = self._epoch()
            needed = self._mandate.needed_version(epoch)
            if needed is not None and self._has_successor(needed):
                self._why = too_old(self._mandate, epoch)
        return self._why

    def _found(self) -> tuple[str, str]:
        epoch = self._epoch()
        if (asked := self._mandate.next_needed_version(epoch)) is None:
            return "", ""
        first, needed = asked
        text = f"this run needs version {needed} of collab, this is {VERSION}"
        return text if first == epoch else f"from epoch {first} on {text}", OWNERS_HINT if self._is_owners else HINT

    def _epoch(self) -> int:
        """That the run is at; when no trainer is here, that of what we hold."""
        return max(self._reporter.epoch(self._membership.view), self._membership.our_record().epoch)

    def _has_successor(self, needed: str) -> bool:
        """Whether a backbone that may stay does all that we do, and no state of the run leaves with us."""
        ours, claims = self._membership.our_record(), self._lease.records
        duties = [duty for duty in FOR_THE_RUN if ours.does(duty)]
        is_able = ours.peer not in claims or claims[ours.peer].claim.is_able
        others = [one for one in self._membership.view.backbones(*duties) if one.peer in claims.keys() - {ours.peer}]
        return any(
            record.state is PeerState.SERVING
            and is_at_least(record.version, needed)
            and claims[record.peer].claim.is_able >= is_able
            and self._is_safe_with(record, ours)
            for record in others
        )

    def _is_safe_with(self, other: PeerRecord, ours: PeerRecord) -> bool:
        """Whether what we give to newcomers is there, too, or something older, and a trainer here that has gone on.

        Trainers that nobody has seen in a round may say anything.
        """
        if not ours.lineage:
            return True
        if not other.lineage or other.era != ours.era:
            return False
        if other.epoch >= ours.epoch and other.checkpoint_epoch >= ours.checkpoint_epoch:
            return True
        known = contributors_of(self._rounds())
        trainers = (one for one in self._membership.view.all_trainers() if one.peer in known and one.era == ours.era)
        return any(one.epoch >= ours.epoch for one in trainers)


def is_at_least(version: str, needed: str) -> bool:
    """What somebody says of itself need not be a version at all."""
    with suppress(InvalidVersion):
        return Version(version) >= Version(needed)
    return False
