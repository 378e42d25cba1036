"""What a backbone does for the Hub, from its beginning to its end."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from collab.checkpoints.from_hub import bring_newest
from collab.checkpoints.hub_publisher import HubPublisher
from collab.checkpoints.hub_repository import HubPlace, HubRepository
from collab.checkpoints.local import list_checkpoints
from collab.compute import ThreadCompute
from collab.config import Run
from collab.errors import HubBusy, HubDenied, StateError
from collab.ports import Ports
from peers.backbone import Backbone
from peers.exhibiting import Kept
from peers.hub_desk import HubDesk, HubPlan
from peers.hub_lookup import repository_to_read
from peers.hub_pages import HubPages, points_of
from peers.model_card import Point
from peers.places import DataDir
from peers.process import announce
from peers.progress import ProgressTeller

NOWHERE = "none"
"""As ``--hub-repo``: in spite of the run file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubService:
    """Where and how a backbone publishes."""

    place: HubPlace
    invite: Callable[[Backbone], str | None]
    """See ``HubPages``."""


def place_for(flag: str, run: Run) -> HubPlace | None:
    """Where to publish: as the flag says, else as the run file does; None: nowhere.

    Raises:
        ConfigError: that is no name of a repository.
    """
    return place_named(flag or run.hub_repo or "")


def place_named(name: str) -> HubPlace | None:
    """A repository; None: nowhere.

    Raises:
        ConfigError: that is no name of a repository.
    """
    return None if name in ("", NOWHERE) else HubPlace.named(name)


async def serve_hub(
    ports: Ports, backbone: Backbone, data_dir: DataDir, service: HubService, kept: Kept, teller: ProgressTeller
) -> None:
    """Publish what this backbone publishes, until cancelled."""
    bundle = backbone.statutes.bundle

    def points() -> list[Point]:
        kept.recorder.write()
        return points_of(kept.history)

    pages = HubPages(str(service.place), bundle, points, kept.book.all, service.invite(backbone))
    repository = HubRepository(service.place, tell=partial(teller.tell, "sending a checkpoint to the Hub"))
    publisher = HubPublisher(repository, data_dir.path / "hub-outbox", pages.beside)
    with closing(ThreadCompute()) as worker:
        plan = HubPlan(place=str(service.place), publish=publisher.publish, worker=worker)
        desk = HubDesk(ports, backbone.keeper.shelf, backbone.lease.tenure, plan)
        try:
            await desk.run()
        finally:
            if desk.under_way is not None:
                announce(f"epoch {desk.under_way} is not on the Hub yet; it is sent when a backbone runs again")


def bring_if_lost(place: HubPlace, data_dir: DataDir, fingerprint: str, *, makes_first_state: bool = True) -> None:
    """Have the run's newest checkpoint from the Hub, where this disk has none at all. Blocks.

    Args:
        makes_first_state: whether this backbone begins the run if nobody has a state of it.

    Raises:
        HubBusy: nobody knows whether the run has a state there: to begin it anew now could be wrong.
    """
    if list_checkpoints(data_dir.checkpoints):
        return
    try:
        bring(place, data_dir, fingerprint)
    except HubBusy as error:
        if not makes_first_state:
            announce(f"problem: {error.message}; the state comes from the swarm, if it has one")
            return
        text = f"nothing is on this disk, and whether {place} holds a state of this run cannot be seen: {error.message}"
        raise HubBusy(text, hint=f"start it again later, or with --hub-repo {NOWHERE} to begin without it") from error
    except HubDenied:
        return  # there is no such repository yet; if it is something else, the first checkpoint will tell
    except StateError as error:
        announce(f"problem: {error}")


def bring(place: HubPlace, data_dir: DataDir, fingerprint: str) -> None:
    """Have the run's checkpoint of a revision, if it is later than what this disk has. Blocks.

    Raises:
        StateError: it cannot be had, or is of another run.
    """
    found = bring_newest(repository_to_read(place), data_dir.checkpoints, fingerprint=fingerprint)
    if found is not None:
        announce(f"took over {found.name} from {place}")
