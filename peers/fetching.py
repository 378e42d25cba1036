"""How a backbone gets the snapshot that it wants."""

import logging

from collab.averaging.flow import Links
from collab.errors import NoDonor
from collab.metrics.records import StateFetched
from collab.ports import Ports
from collab.swarm.membership import Membership
from collab.swarm.snapshots import PackedSnapshot
from collab.swarm.state_transfer import Wanted, fetch_state
from peers.due import Due

logger = logging.getLogger(__name__)

FAILURES_BEFORE_DOUBT = 3
"""In a row, until we believe no more that those who say so hold the newest state."""


class Fetcher:
    """Of one backbone."""

    def __init__(self, ports: Ports, fingerprint: str, membership: Membership, links: Links) -> None:
        self._ports, self._fingerprint, self._membership, self._links = ports, fingerprint, membership, links
        self._failures = 0
        self._failing_from_s = 0.0
        """When the first of these ended."""

    @property
    def failing_s(self) -> float:
        """For how long nobody has given us anything that we asked for; 0: somebody has."""
        return self._ports.clock.monotonic() - self._failing_from_s if self._failures else 0.0

    async def fetch(self, due: Due) -> PackedSnapshot | None:
        """A snapshot, verified; None when nobody can give it now."""
        started_s = self._ports.clock.monotonic()
        digest = due.published.digest if due.published is not None else None
        voices = frozenset(due.donors) - {record.peer for record in self._membership.backbones()}
        try:
            packed, gave = await fetch_state(
                self._ports.transport,
                self._links,
                list(due.donors),
                fingerprint=self._fingerprint,
                wanted=Wanted(epoch=due.epoch, digest=digest, voices=voices),
            )
        except NoDonor as error:
            logger.info("no snapshot of epoch %s yet: %s", due.epoch, error.message)
            if not self._failures:
                self._failing_from_s = self._ports.clock.monotonic()
            self._failures += 1
            if self._failures % FAILURES_BEFORE_DOUBT == 0 and self._membership.others().is_at_rest():
                self._membership.doubt()
            return None
        self._failures = 0
        now, seconds = self._ports.clock.now(), self._ports.clock.monotonic() - started_s
        num_bytes = packed.manifest.num_bytes
        epoch = packed.manifest.epoch
        fetched = StateFetched(at_s=now, donors=gave, epoch=epoch, num_bytes=num_bytes, seconds=seconds)
        self._ports.observer.observe(fetched)
        return packed
