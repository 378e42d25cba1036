"""Records with the proof that they are history, by voters whose keys are their names."""

import math
from collections.abc import Sequence
from typing import cast

from collab.averaging.agreement import CommitRecord
from collab.averaging.assembly import Expected
from collab.averaging.ballots import Ballot, Electorate
from collab.averaging.certificates import Certificate, Certified, ballot_paper
from collab.averaging.electors import Electors
from collab.averaging.notary import Notary
from collab.averaging.seats import Seats
from collab.averaging.settings import FixedTerms
from collab.averaging.timeouts import FIRST, MeasuredTimeouts
from collab.averaging.verdicts import Verdicts
from collab.metrics.records import PeerRefused
from collab.ports import Ports
from collab.types import Lineage, PeerId
from tests.averaging.records import X
from tests.fakes import FakeKeys, FakeObserver

FINGERPRINT = "f"
BALLOT = Ballot(1, X)


def certify(
    record: CommitRecord,
    electors: Sequence[PeerId] = (X,),
    *,
    voters: Sequence[PeerId] | None = None,
    ballot: Ballot = BALLOT,
    fingerprint: str = FINGERPRINT,
) -> Certified:
    """``voters``, or all of ``electors``, vote for ``record``."""
    electorate = Electorate(tuple(electors))
    paper = ballot_paper(fingerprint, electorate, ballot, record)
    signatures = {peer: FakeKeys(peer).sign(paper) for peer in (electors if voters is None else voters)}
    return Certified(record, Certificate.of(ballot, electorate, signatures))


def refusals(ports: Ports) -> list[PeerRefused]:
    """What a peer has observed to be refused."""
    return [event for event in cast(FakeObserver, ports.observer).events if isinstance(event, PeerRefused)]


def make_notary(
    ports: Ports, *, present: Sequence[PeerId] = (), missed_s: float = 0.0, vouched: Sequence[PeerId] = ()
) -> Notary:
    """Of a peer that knows of ``present`` as being here, and has missed all others for so long.

    Args:
        vouched: backbones that the owner has named; if there are any, the peer is a newcomer and has met nobody.
    """

    async def roster(epoch: int, lineage: Lineage, *, since_s: float = -math.inf) -> Expected:
        return Expected(
            trainers=frozenset(present),
            helpers=frozenset(),
            absent_s=lambda _: missed_s,
            has_met=lambda _: not vouched,
            is_vouched=lambda peer: peer in vouched,
        )

    return Notary(ports, FINGERPRINT, roster, Electors(FIRST.reform_s, FIRST.orphaned_s))


def make_verdicts(
    ports: Ports, *, present: Sequence[PeerId] = (), missed_s: float = 0.0, vouched: Sequence[PeerId] = ()
) -> Verdicts:
    """Of a peer as in ``make_notary``."""
    timeouts = MeasuredTimeouts(ports.clock.monotonic, FIRST)
    notary = make_notary(ports, present=present, missed_s=missed_s, vouched=vouched)
    return Verdicts(ports.transport, timeouts, notary, Seats(), FixedTerms(1.0))
