"""How a backbone gets the snapshot that it wants."""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from collab.errors import CollabError, StateError
from collab.metrics.records import StateFetched
from collab.ports import Ports
from collab.swarm.fitting import Brought, fetch_fitting
from collab.swarm.forms import Forms, check_forms, forms_of, header_bytes, of_model
from collab.swarm.handover import FINAL_HANDOVER_S
from collab.swarm.snapshots import DTYPES, MAX_SNAPSHOT_BYTES, PackedSnapshot
from collab.swarm.state_transfer import MOST_FLOATS, MOST_MORE, Wanted, fetch_state
from collab.swarm.vouching import contributors_of, steady_of
from collab.types import PeerId
from peers.company import Company
from peers.due import Due, offered_snapshot

logger = logging.getLogger(__name__)

FAILURES_BEFORE_DOUBT = 3
"""In a row, until we believe no more that those who say so hold the newest state."""
PATIENCE_S = 300.0
"""For a donor that has other newcomers, or a microbatch, before us; then others are asked, and it again."""
MOST_REFUSED = 64
"""States that are remembered as such that do not fit, lest they be fetched once more."""
MOST_HEADER = 1 << 20
"""Bytes of a state's header, beside what ours has for parameters that an optimiser keeps several tensors for."""
MOST_GROWTH = 2
"""Of a state after the first step, when the optimiser has all that it keeps."""
ENTRY_BYTES = 80
"""Of a tensor in a header, beside its name."""
NUMBER_BYTES = {name: np.dtype(dtype).itemsize for dtype, name in DTYPES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a state of the run is like: whoever has a far larger one, or of another model, has another."""

    forms: Forms
    """Of the model."""
    most_bytes: int
    most_header_bytes: int

    @classmethod
    def like(cls, packed: PackedSnapshot) -> "Expected":
        """As one that we have."""
        manifest = packed.manifest
        return cls(
            forms=of_model(forms_of(packed)),
            most_bytes=(MOST_GROWTH if manifest.epoch else MOST_FLOATS) * manifest.num_bytes + MOST_MORE,
            most_header_bytes=MOST_FLOATS * header_bytes(packed) + MOST_HEADER,
        )

    @classmethod
    def of(cls, forms: Forms) -> "Expected":
        """As of a model of these forms."""
        num_bytes = sum(NUMBER_BYTES[dtype] * math.prod(shape) for dtype, shape in forms.values())
        header = sum(len(name.encode()) + ENTRY_BYTES for name in forms)
        return cls(
            forms=forms,
            most_bytes=MOST_FLOATS * num_bytes + MOST_MORE,
            most_header_bytes=MOST_FLOATS * header + MOST_HEADER,
        )


class Fetcher:
    """Of one backbone."""

    def __init__(
        self, ports: Ports, fingerprint: str, company: Company, model_forms: Callable[[], Forms] | None
    ) -> None:
        """
        Args:
            model_forms: asked before a first state is fetched; see ``Workshop``.
        """
        self._ports, self._fingerprint, self._company = ports, fingerprint, company
        self._membership, self._links = company.membership, company.links
        self._model_forms = model_forms
        self._expected: Expected | None = None
        """As the state that we have, or had last, or as the run's model; None: we know neither."""
        self._refused: deque[str] = deque(maxlen=MOST_REFUSED)
        """Digests of states that do not fit."""
        self._failures = 0
        self._failing_from_s = 0.0
        """When the first of these ended."""

    @property
    def failing_s(self) -> float:
        """For how long nobody has given us anything that we asked for; 0: somebody has."""
        return self._ports.clock.monotonic() - self._failing_from_s if self._failures else 0.0

    def note(self, packed: PackedSnapshot) -> None:
        """What the run's state is like."""
        self._expected = Expected.like(packed)

    def _checked(self, packed: PackedSnapshot) -> PackedSnapshot:
        """Raises ``StateError`` for what does not look like the run's state as we know it."""
        if (expected := self._expected) is not None:
            check_forms(forms_of(packed, expected.most_header_bytes), expected.forms)
        return packed

    async def _learn(self, model_forms: Callable[[], Forms]) -> None:
        """What a state must be like, before we have one."""
        try:
            forms = await self._ports.compute.run(model_forms)
        except CollabError as error:
            logger.warning("the first state is taken as most have it: %s; %s", error.message, error.hint)
            self._model_forms = None
            return
        if self._expected is None:
            self._expected = Expected.of(forms)

    async def fetch_offered(self, peer: PeerId, epoch: int) -> PackedSnapshot | None:
        """What a trainer that leaves says to hold, if the run has come to that; see ``fetch``."""
        view, voice_of = self._membership.view, self._membership.voice_of
        if (due := offered_snapshot(peer, epoch, view, self._company.rounds(), voice_of)) is None:
            logger.warning("offer of a state that the run has not come to peer=%s epoch=%d", peer, epoch)
            return None
        try:
            async with asyncio.timeout(FINAL_HANDOVER_S):  # who offers it waits no longer
                return await self.fetch(due)
        except TimeoutError:
            return None

    async def fetch(self, due: Due) -> PackedSnapshot | None:
        """A snapshot, verified; None when nobody can give it now."""
        if self._expected is None and self._model_forms is not None:
            await self._learn(self._model_forms)
        started_s = self._ports.clock.monotonic()
        digest = due.published.digest if due.published is not None else None
        trainers = frozenset(due.donors) - {record.peer for record in self._membership.backbones()}
        wanted = Wanted(
            epoch=due.epoch,
            lineage=due.lineage,
            digest=digest,
            voices=trainers & steady_of(contributors_of(self._company.rounds())) or trainers,
            voice_of=self._membership.voice_of,
            most_bytes=self._expected.most_bytes if self._expected is not None else MAX_SNAPSHOT_BYTES,
            patience_s=PATIENCE_S,
            refused=frozenset(self._refused),
        )

        async def fetch(left: list[PeerId], wanted: Wanted) -> Brought:
            self._refused.extend(wanted.refused.difference(self._refused))
            transport, fingerprint = self._ports.transport, self._fingerprint
            return await fetch_state(transport, self._links, left, fingerprint=fingerprint, wanted=wanted)

        try:
            packed, _, gave = await fetch_fitting(self._ports, due.donors, wanted, fetch, self._checked)
        except StateError as error:
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
