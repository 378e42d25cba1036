"""What a volunteer can say about a peer, and what is handed to it before anybody watches."""

from dataclasses import dataclass

from collab.metrics.records import Event
from collab.metrics.sinks import Fanout
from collab.swarm.duties import NOTHING_OFF, Duty
from collab.types import Role
from peers.anew import HandedOn
from peers.hub_pace import HUB_EVERY_MIN
from peers.occasions import NO_RULES, HouseRules
from peers.places import DataDir
from peers.screen import Style
from peers.telling import say
from peers.wiring import Reach


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOptions:
    """What a volunteer can say."""

    invite: str
    role: Role
    name: str
    data_dir: DataDir
    reach: Reach
    epochs: int | None = None
    microbatch_size: int | None = None
    device: str | None = None
    allowed_modules: tuple[str, ...] = ()
    store: str = ""
    hub_repo: str = ""
    """Where a backbone publishes checkpoints on the Hub, too; empty: nowhere."""
    hub_every_min: float = HUB_EVERY_MIN
    """Minutes from one commit there to the next, at least."""
    dashboard: str = ""
    """Where a backbone shows the run to browsers: see ``listen``."""
    track: str = "none"
    """Service that gets the run's figures from a backbone: see ``service_for``."""
    off: frozenset[Duty] = NOTHING_OFF
    """What a backbone does not do."""
    wants_credit: bool = False
    """Whether the name may be published with the model."""
    rules: HouseRules = NO_RULES
    gpu_memory_gb: float | None = None
    """Of the GPU's memory, that this process may take; None: as much as it needs."""
    has_agreed: bool = False
    """Whether nobody is asked before the first join."""
    style: Style = Style.AUTO
    as_json: bool = False
    life_before: HandedOn | None = None
    """Of the same process, which has paused; None: it is new."""

    def say(self, line: str) -> None:
        """To the person at the terminal, unless they want to hear of problems only."""
        say(line, self.style)


class Relay:
    """An observer that can be pointed somewhere after it was handed out."""

    def __init__(self) -> None:
        self.sink: Fanout | None = None

    def observe(self, event: Event) -> None:
        if self.sink is not None:
            self.sink.observe(event)
