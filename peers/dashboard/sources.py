"""What the dashboard is made of."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from collab.config import Run
from collab.metrics.store import MetricsStore
from collab.ports import Clock
from collab.swarm.mandate import Mandate
from collab.swarm.progress import SwarmView
from collab.types import PeerId
from peers.credible import Credible
from peers.credits import CreditBook
from peers.dashboard.recent import Recent


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What a backbone knows."""

    run: Run
    mandate: Mandate
    clock: Clock
    me: PeerId
    view: Callable[[], SwarmView]
    credible: Credible
    credits: CreditBook
    store: MetricsStore
    recent: Recent
    problem: Callable[[], str]
    """Why it cannot do its work; empty: it can."""
    concern: Callable[[], tuple[str, str]]
    """Why what is trained is not saved, or not published, or that it is too old, and what to do; both empty: none."""
    on_disk: Callable[[], Collection[int]]
    """Epochs of the checkpoints that it has: old ones are deleted, and those of before a rollback are set aside."""
    home: str
    """Its directory, of which nobody else needs to know where it is."""
    hub_url: str = ""
    """Where repositories of the Hub are looked at."""
