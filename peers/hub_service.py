"""What a backbone does for the Hub, from its beginning to its end."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from collab.checkpoints.from_hub import Brought, bring_newest
from collab.checkpoints.hub_advice import TO_BEGIN, TO_WRITE
from collab.checkpoints.hub_publisher import HubPublisher, OnHub
from collab.checkpoints.hub_repository import BRANCH, HubPlace, HubRepository
from collab.checkpoints.hub_session import has_token
from collab.checkpoints.local import is_whole, list_checkpoints
from collab.checkpoints.rolled_back import can_begin_again
from collab.compute import ThreadCompute
from collab.config import Run
from collab.errors import ConfigError, HubBusy, HubError, HubMissing, StateError
from collab.metrics.records import CheckpointOnHub
from collab.metrics.store import MetricsStore
from collab.ports import Ports
from collab.swarm.orders import OrderBook
from peers.backbone import Backbone
from peers.exhibiting import Kept
from peers.hub_desk import HubDesk, HubPlan
from peers.hub_history import Curves, History, curves_of
from peers.hub_lookup import repository_to_read
from peers.hub_pace import HUB_EVERY_MIN
from peers.hub_pages import HubPages, Seen
from peers.hub_patience import patiently
from peers.hub_taken_over import keep_history, kept_history
from peers.places import DataDir
from peers.process import announce
from peers.progress import ProgressTeller

NOWHERE = "none"
"""As ``--hub-repo``: in spite of the run file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubService:
    """Where and how a backbone publishes."""

    place: HubPlace
    every_s: float
    """See ``HubPlan``."""
    invite: Callable[[Backbone], str | None]
    """See ``HubPages``."""


def service_at(
    place: HubPlace | None, every_min: float, invite: Callable[[Backbone], str | None]
) -> HubService | None:
    """What a backbone with this place to publish does; None: nothing."""
    return HubService(place=place, every_s=60.0 * every_min, invite=invite) if place is not None else None


def place_for(flag: str, run: Run, every_min: float = HUB_EVERY_MIN) -> HubPlace | None:
    """Where to publish: as the flag says, else as the run file does; None: nowhere.

    Raises:
        ConfigError: as ``place_named``.
    """
    return place_named(flag or run.hub_repo or "", every_min)


def place_named(name: str, every_min: float = HUB_EVERY_MIN) -> HubPlace | None:
    """A repository; None: nowhere.

    Raises:
        ConfigError: that is no name of a repository; or it was said how often something is published nowhere.
    """
    place = None if name in ("", NOWHERE) else HubPlace.named(name)
    if place is None and every_min != HUB_EVERY_MIN:
        text = f"--hub-every {every_min:g}: nothing is published on the Hub"
        raise ConfigError(text, hint="name a repository with --hub-repo, or leave it out")
    return place


async def serve_hub(
    ports: Ports, backbone: Backbone, data_dir: DataDir, service: HubService, kept: Kept, teller: ProgressTeller
) -> None:
    """Publish what this backbone publishes, until cancelled."""
    bundle = backbone.statutes.bundle

    def curves() -> Curves:
        kept.recorder.write()
        return curves_of(kept.history)

    def before() -> History:
        return kept_history(data_dir.hub_history)

    def is_last(epoch: int) -> bool:
        until = backbone.statutes.mandate.until_epoch
        return until is not None and epoch >= until

    def is_told(done: OnHub) -> bool:
        kept.recorder.write()
        return has_told(kept.history, str(service.place), done)

    seen = Seen(
        curves=curves, given=kept.book.by_peer, before=before, orders=lambda: backbone.statutes.mandate.book
    )
    pages = HubPages(str(service.place), bundle, seen, service.invite(backbone))
    repository = HubRepository(service.place, tell=partial(teller.tell, "sending a checkpoint to the Hub"))
    publisher = HubPublisher(repository, data_dir.path / "hub-outbox", pages.beside, pages.misleads)
    with closing(ThreadCompute()) as worker:
        plan = HubPlan(
            place=str(service.place),
            publish=publisher.publish,
            worker=worker,
            every_s=service.every_s,
            is_last=is_last,
            is_told=is_told,
        )
        desk = HubDesk(ports, backbone.keeper.shelf, backbone.lease.tenure, plan)
        backbone.last_errand = desk.finish
        kept.publishing.standing = lambda: (desk.standing, desk.next_step)
        try:
            await desk.run()
        finally:
            if desk.under_way is not None:
                announce(f"epoch {desk.under_way} is not on the Hub yet; it is sent when a backbone runs again")


def has_told(history: MetricsStore, place: str, done: OnHub) -> bool:
    """Whether the last checkpoint that is known to be on the Hub is this one. Blocks."""
    newest = history.newest(CheckpointOnHub, 1)
    return [(one["place"], one["commit"]) for one in newest] == [(place, done.commit)]


def bring_if_lost(place: HubPlace, data_dir: DataDir, orders: OrderBook, *, makes_first_state: bool = True) -> None:
    """Have the run's newest checkpoint from the Hub, where this disk has none, or its newest one is damaged. Blocks.

    A repository that is not there is made: only who may do that can be told from somebody who may not see it, and to
    somebody who may not, a run that has a state looks like one that has none.

    A life that ended between setting checkpoints aside for a rollback and writing the one that it goes back to has left
    none: this one goes back to it.

    Args:
        orders: of the run, as far as this disk knows them.
        makes_first_state: whether this backbone begins the run if nobody has a state of it.

    Raises:
        StateError: whether the run has a state there is not known, or it cannot be had: to begin anew could be wrong.
    """
    root, fingerprint = data_dir.checkpoints, orders.fingerprint
    here = list_checkpoints(root)
    if not here or not is_whole(here[0]):
        rollback = orders.rollback()
        try:
            repository = HubRepository(place, advice=TO_BEGIN)
            patiently(lambda: _see(repository))
            brought = patiently(
                lambda: bring_newest(repository, root, fingerprint=fingerprint, orders=orders)
            )
            if brought.path is not None:
                _announce(place, brought)
                keep_history(repository, data_dir.hub_history)
        except StateError as error:
            if any(map(is_whole, here)):
                text = f"the newest checkpoint on this disk is damaged, and {place} cannot help: {error.message}"
                _announce_problem(text, "the one before is gone on from, unless another peer holds a later one")
            elif not here and rollback is not None and can_begin_again(root, rollback, fingerprint=fingerprint):
                text = f"{place} cannot help: {error.message}"
                _announce_problem(text, "the run goes back to a checkpoint on this disk, as its organiser has ordered")
            elif makes_first_state:
                lack = "no checkpoint on this disk is whole" if here else "nothing is on this disk"
                raise _not_begun(place, lack, error) from error
            else:
                _announce_problem(f"{error.message}; the state comes from the swarm, if it has one", error.hint)
    if not has_token():
        text = f"nothing can be published in {place}: there is no token for the Hub on this machine"
        _announce_problem(text, TO_WRITE)


def _see(repository: HubRepository) -> None:
    """
    Raises:
        HubError: what is in it cannot be seen.
    """
    try:
        repository.head()
    except HubMissing:
        repository.create()
        repository.head()


def _not_begun(place: HubPlace, lack: str, error: StateError) -> StateError:
    without = f"--hub-repo {NOWHERE} to begin without it"
    if isinstance(error, HubError):
        text = f"{lack}, and whether {place} holds a state of this run cannot be seen: {error.message}"
    else:
        text = f"{lack}, and what {place} holds cannot be taken over: {error.message}"
    first = "start it again later" if isinstance(error, HubBusy) else error.hint
    return type(error)(text, hint=f"{first}; or start with {without}" if first else f"start with {without}")


def bring(place: HubPlace, data_dir: DataDir, fingerprint: str) -> None:
    """Have the run's checkpoint of a revision, if it is later than what this disk has. Blocks.

    Raises:
        StateError: it cannot be had, or is of another run; or that very revision was asked for, or nothing is on this
            disk, and it is not taken over.
    """
    repository = repository_to_read(place)
    brought = patiently(lambda: bring_newest(repository, data_dir.checkpoints, fingerprint=fingerprint))
    goes_on = place.revision == BRANCH and list_checkpoints(data_dir.checkpoints)
    if brought.path is None and not goes_on:
        raise StateError(brought.why, hint=brought.hint)
    _announce(place, brought)
    if brought.path is not None:
        keep_history(repository, data_dir.hub_history)


def _announce(place: HubPlace, brought: Brought) -> None:
    if brought.path is None:
        announce(f"{brought.why}\n  -> {brought.hint}")
    elif brought.is_new:
        announce(f"took over {brought.path.name} from {place}")
    else:
        announce(f"{brought.path.name} is on this disk already, as {place} has it")


def _announce_problem(text: str, hint: str) -> None:
    announce(f"problem: {text}" + (f"\n  -> {hint}" if hint else ""))
