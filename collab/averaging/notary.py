"""Signs this peer's votes, and decides which certificates of others it believes."""

import logging
from collections.abc import Collection

from collab.averaging.agreement import CommitRecord
from collab.averaging.assembly import Expected, Roster
from collab.averaging.ballots import Ballot, Electorate
from collab.averaging.certificates import Certified, ballot_paper, check
from collab.averaging.electors import Electors
from collab.averaging.seats import Instance
from collab.errors import BadCertificate, BadMessage
from collab.metrics.records import PeerRefused
from collab.net.wire import Message
from collab.ports import Ports
from collab.types import PeerId

logger = logging.getLogger(__name__)


class Notary:
    """For votes of one run."""

    def __init__(self, ports: Ports, fingerprint: str, roster: Roster, electors: Electors) -> None:
        self.electors = electors
        self._me, self._keys, self._fingerprint, self.roster = ports.transport.peer_id, ports.keys, fingerprint, roster
        self._clock, self._compute, self._observer = ports.clock, ports.compute, ports.observer
        self._signed: CommitRecord | None = None
        """What we voted for last, which is mostly what was decided."""

    def ballot_paper(self, electorate: Electorate, ballot: Ballot, record: CommitRecord) -> bytes:
        """What is signed in a vote."""
        return ballot_paper(self._fingerprint, electorate, ballot, record)

    def sign(self, electorate: Electorate, ballot: Ballot, record: CommitRecord) -> bytes:
        """Our vote; to be given only after our seat has accepted it."""
        self._signed = record
        return self._keys.sign(self.ballot_paper(electorate, ballot, record))

    def is_signed(self, peer: PeerId, paper: bytes, signature: bytes) -> bool:
        """Whether a vote is that of ``peer``."""
        return self._keys.is_signed_by(peer, paper, signature)

    async def believe(
        self, teller: PeerId, message: Message, instance: Instance, trusted: Electorate | None
    ) -> Certified:
        """What a message tells of the round that followed a history, proved; what is not is observed as refused.

        Args:
            trusted: who decides, as we know it; None: we do not, and the voters can be anybody.

        Raises:
            BadMessage: it is not to be believed.
        """
        try:
            return await self.examine(teller, message, instance, trusted)
        except BadMessage as error:
            reason = error.reason if isinstance(error, BadCertificate) else "bad_record"
            logger.info("not believed peer=%s epoch=%d reason=%s text=%s", teller, instance[0], reason, error)
            refused = PeerRefused(
                at_s=self._clock.now(), epoch=instance[0], peer=teller, reason=reason, text=error.message
            )
            self._observer.observe(refused)
            raise

    async def examine(
        self, teller: PeerId, message: Message, instance: Instance, trusted: Electorate | None
    ) -> Certified:
        """The same, for a caller that says itself whom it refuses."""
        certified = Certified.from_message(message, self._signed)
        if (certified.record.epoch, certified.record.lineage) != instance:
            raise BadCertificate("other_round", f"{teller} tells of another step than was asked for")
        await self._compute.beside(lambda: check(certified, self._fingerprint, self._keys.is_signed_by))
        if trusted is not None and not trusted.has_quorum(certified.certificate.voters):
            # whether we could be heard ourselves, the others know better
            await self.check_electors(certified.certificate.electors, trusted, instance, excused={self._me})
        return certified

    async def check_electors(
        self,
        named: tuple[PeerId, ...],
        trusted: Electorate,
        instance: Instance,
        *,
        excused: Collection[PeerId] = (),
        leader: PeerId | None = None,
    ) -> None:
        """Who decides may be fewer than the history says only by those of whom we have not heard either.

        Others decide when all who should have not been heard of for long.

        Args:
            named: who decides, as somebody says; empty: everybody who is there.
            excused: whose absence nobody has to explain.
            leader: of a group, who says so and has looked for the others itself; None: nobody leads.

        Raises:
            BadCertificate: ``named`` are others, in another order, or without somebody who is here.
        """
        if named == trusted.members:
            return
        told_s = self._clock.monotonic()
        refusal = self._refusal(named, trusted, await self.roster(*instance), excused, leader)
        if refusal is not None:  # who names them may have read a goodbye after we looked last
            refusal = self._refusal(named, trusted, await self.roster(*instance, since_s=told_s), excused, leader)
        if refusal is not None:
            raise refusal

    def _refusal(
        self,
        named: tuple[PeerId, ...],
        trusted: Electorate,
        expected: Expected,
        excused: Collection[PeerId],
        leader: PeerId | None,
    ) -> BadCertificate | None:
        others = set(trusted.members).difference(excused)  # who decides alone is told by nobody that it is gone
        are_others = bool(others) and set(named).isdisjoint(trusted.members)
        if are_others and self.electors.are_gone(others, expected, leader):
            return None
        if not named or named != tuple(peer for peer in trusted.members if peer in set(named)):
            return BadCertificate("other_electors", "the electors named are not those who decide what follows")
        if not others.difference(named).isdisjoint(expected.able):
            return BadCertificate("electors_left_out", "some are left out who decide what follows, and are here")
        return None
