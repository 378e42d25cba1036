"""The rules that one peer keeps to in one run: the organiser's orders, and who may take part."""

from collections.abc import Sequence
from dataclasses import replace

from collab.errors import BadMessage
from collab.ports import Ports
from collab.swarm.access import Grant, read_pass
from collab.swarm.admission import Admission, House
from collab.swarm.bundle import Bundle
from collab.swarm.mandate import Mandate
from collab.swarm.orders import Order
from collab.swarm.records import PeerRecord, PeerState
from collab.types import PeerId, Role
from collab.version import VERSION


class Statutes:
    """Made once by each role, which closes the entrance of its ports to whom the run does not want."""

    def __init__(self, ports: Ports, bundle: Bundle) -> None:
        self._ports, self.bundle = ports, bundle
        self.mandate = Mandate(bundle)
        self.admission = Admission(
            House(
                fingerprint=bundle.fingerprint,
                owner=bundle.owner,
                is_open=bundle.run.access == "open",
                ban_of=self.mandate.ban_of,
            ),
            ports.clock.now,
        )
        ports.entrance.door = self.admission
        self.mandate.on_orders.append(self._note_orders)

    def _note_orders(self, _: Sequence[Order]) -> None:
        self._ports.entrance.changes += 1

    def stamped(self, record: PeerRecord) -> PeerRecord:
        """Our record with what everybody says."""
        credential, orders = self._ports.entrance.credential(), len(self.mandate.book.orders)
        return replace(record, credential=credential, orders=orders, version=VERSION)

    def own_grant(self) -> Grant | None:
        """What the owner has said of the invite with which we are here; None: we have none."""
        if not (credential := self._ports.entrance.credential()):
            return None
        try:
            return read_pass(credential, self.bundle.fingerprint, self.bundle.owner).grant
        except BadMessage:
            return None

    def trusts_backbone(self, peer: PeerId) -> bool:
        """Whether the owner has named a backbone; where nobody owns the run, everybody is as good."""
        return not self.bundle.owner or self.admission.is_vouched_backbone(peer)

    def trusts_signed_by(self, peer: PeerId) -> bool:
        """The same for what a backbone has signed while it was here, though it may have left or died since."""
        return not self.bundle.owner or self.admission.was_vouched_backbone(peer)

    def counts(self, record: PeerRecord) -> bool:
        """Whether the word of a peer counts: it may take part, and speaks of a state that was not rolled back."""
        if record.state is PeerState.LEFT:
            self.admission.release(record.peer)
            return True
        if self.admission.barred(record.peer, record.credential) is not None:
            return False
        is_told_more = record.orders > len(self.mandate.book.orders)  # of a rollback, perhaps
        return record.role is Role.AUXILIARY or record.era == self.mandate.era or is_told_more
