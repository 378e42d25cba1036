"""Links of a swarm whose messages are calculated and not played: whole transfers, one after the other on each link."""

from collab.simulation.links import Access
from collab.simulation.virtual_time import VirtualLoop


class Ways:
    """Between machines that are here."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def carry_s(self, src: Access, dst: Access, num_bytes: float) -> float:
        """Put that on the wire now; seconds until its last byte is there. What is sent later waits for it."""
        now_s = self._loop.time()
        begins_s = max(now_s, src.up_free_s)
        src.up_free_s = begins_s + num_bytes / src.link.up_bytes_per_s
        dst.down_free_s = max(dst.down_free_s, begins_s) + num_bytes / dst.link.down_bytes_per_s
        self.count(src, num_bytes, 0.0)
        self.count(dst, 0.0, num_bytes)
        return max(src.up_free_s, dst.down_free_s) - now_s + src.link.latency_s + dst.link.latency_s

    @staticmethod
    def count(access: Access, sent: float, received: float) -> None:
        """Bytes that a machine has sent and received."""
        access.sent_bytes += round(sent)
        access.received_bytes += round(received)
