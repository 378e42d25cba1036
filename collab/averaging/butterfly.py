"""The exchange of one round: every contributor sends each reducer its span, and gets the mean of that span back.

Both directions of every link are busy from the first part to the last: a part is reduced and returned as soon as all
contributors' copies of it have come, and all peers go through their spans at the same pace, so that nobody waits for a
phase to end. What leaves a peer is one queue (``uplink``), in the order of the parts' places in their spans.

Members can be lost on the way: the leader stops the spans that nobody brings any more, hears what everybody has of
them, and divides the rest anew (``division``). What was not touched goes on meanwhile.
Source: butterfly all-reduce as in Moshpit SGD (Ryabinin et al., NeurIPS 2021) and DeDLOC (Diskin et al., 2021).
"""

from collab.averaging.buffers import Buffers
from collab.averaging.complaints import Complaint
from collab.averaging.encodings import Encodings
from collab.averaging.exchange import MEAN, Bring, Exchange, Ruling
from collab.averaging.flow import Links
from collab.averaging.idle_streams import IdleStreams
from collab.averaging.messages import Group
from collab.averaging.reducer import Reducer
from collab.averaging.session import Session, Tools
from collab.metrics.records import PeerRefused
from collab.ports import Ports


class Butterfly:
    """Both sides of every exchange on one peer: member of any round, reducer of its own spans."""

    def __init__(self, ports: Ports, links: Links, ruling: Ruling = MEAN) -> None:
        self._ruling, self._clock, self._observer = ruling, ports.clock, ports.observer
        self._buffers = Buffers()
        self._tools = Tools(
            transport=ports.transport,
            links=links,
            reducer=Reducer(ports.transport, links, self._refuse),
            idle=IdleStreams(links.clock),
            refuse=self._refuse,
        )

    async def serve(self) -> None:
        """Begin to answer members."""
        await self._tools.reducer.serve()

    def _refuse(self, complaint: Complaint, epoch: int) -> None:
        """Count what a peer should not have sent."""
        peer, reason, text = complaint.culprit, complaint.reason, complaint.text
        self._observer.observe(PeerRefused(at_s=self._clock.now(), epoch=epoch, peer=peer, reason=reason, text=text))

    def session(self, group: Group, bring: Bring, encodings: Encodings) -> Session:
        """Our part in ``group``, to be entered as an async context.

        Memory beyond the vector: the mean, of the same type; parts that wait for slower contributors; what lossy
        codecs owe.

        Args:
            encodings: to be settled by the caller when the round is.
        """
        me = self._tools.transport.peer_id
        return Session(self._tools, Exchange(group, me, bring, encodings, self._buffers, self._ruling))
