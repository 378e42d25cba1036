"""``collab-peer backbone``: an organiser's process."""

import asyncio
import json
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from collab.checkpoints.carried_on import carry_on
from collab.checkpoints.hub_repository import HubPlace
from collab.concurrency import Background
from collab.config import Run, VcAsgd, load_run
from collab.durable import replace_file
from collab.errors import ConfigError
from collab.metrics.services import service_for
from collab.net.hivemind_net import NetworkSettings
from collab.net.listening import is_loopback
from collab.net.relaying import limits_for
from collab.net.startup import StartupSettings, start_peer
from collab.ports import NO_LIMITS, LinkLimits
from collab.swarm.address_book import AddressBook
from collab.swarm.bundle import Bundle
from collab.swarm.duties import NOTHING_OFF, Duty
from collab.swarm.identity import load_or_create_identity
from collab.swarm.invite import Invite, write_invite
from collab.swarm.order_exchange import kept_orders
from collab.swarm.snapshots import Snapshot
from collab.types import Reachability, Role
from peers.backbone import Backbone
from peers.carrying_on import bring_run_file, take_up, told_before
from peers.hub_lookup import apart, place_of
from peers.hub_pace import HUB_EVERY_MIN
from peers.hub_service import bring, bring_if_lost, place_for, service_at
from peers.joining import Relay
from peers.owner import Estate
from peers.places import ADDRESSES, ORDERS, OWNER_KEY, RUN_FILE, DataDir, claim_data_dir
from peers.process import set_up_heap, start_helpers
from peers.run_size import state_bytes
from peers.screen import Style
from peers.served import note_served
from peers.serving import Place, Serving, serve_backbone, task_of, workshop_with
from peers.switched_off import Wishes, announce_duties, check_duties
from peers.telling import say
from peers.workshop import Workshop

if TYPE_CHECKING:
    from collab.tasks.base import Task

logger = logging.getLogger(__name__)

FAR_S = 1e11
"""Swarm time that nobody here will see: the organiser's own backbone needs no new invite."""
ALONE_AFTER_S = 3.0
"""How long a backbone looks for the others when it starts; it goes on looking."""
OTHERS_S = 20.0
"""The same of one through which nobody gets in: it does not begin without them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """What an organiser can say."""

    directory: Path
    host: str
    port: int
    announce: tuple[str, ...] = ()
    invite_file: Path | None = None
    limits: LinkLimits = NO_LIMITS
    allowed_modules: tuple[str, ...] = ()
    begin_with: str = ""
    """Checkpoint, or repository of the Hub, with whose state this run begins; empty: with its own."""
    is_new_owner: bool = False
    """That state is of another owner's run."""
    hub_repo: str = ""
    """Where checkpoints are published on the Hub; empty: as the run file says."""
    hub_every_min: float = HUB_EVERY_MIN
    """Minutes from one commit to the next, at least."""
    store: str = ""
    """File or Redis server with the parameters of ``vc_asgd``; empty: a file in the backbone's directory."""
    dashboard: str = ""
    """Where the run is shown to browsers: see ``listen``."""
    track: str = "none"
    """Service that gets the run's figures: see ``service_for``."""
    off: frozenset[Duty] = NOTHING_OFF
    """What it does not do."""
    style: Style = Style.AUTO
    as_json: bool = False

    def say(self, line: str) -> None:
        """To the person at the terminal, unless they want to hear of problems only."""
        say(line, self.style)


async def host(options: HostOptions, stop: asyncio.Event) -> None:
    """Serve the run of ``options.directory`` until stopped."""
    set_up_heap()
    start_helpers()
    directory, begin_with = options.directory, None
    if not options.begin_with and (told := told_before(directory)):
        options = replace(options, begin_with=told, is_new_owner=True)
    if options.is_new_owner:
        await apart(lambda: bring_run_file(options.begin_with, directory))
    run = load_run(directory / RUN_FILE)
    hub = place_for(options.hub_repo, run, options.hub_every_min)
    _check(options, run, hub)
    with claim_data_dir(directory / "backbone", run.run_id, elsewhere="") as data_dir:
        options.say(f"preparing run {run.run_id} ...")
        announce_duties(options.off, options.style)
        if options.is_new_owner:
            begin_with = await apart(lambda: take_up(options.begin_with, run, directory, data_dir))
        load_or_create_identity(directory / OWNER_KEY)  # who starts a run without one owns it
        estate = Estate.at(directory)
        bundle, identity = estate.bundle, load_or_create_identity(data_dir.identity)
        relay, book = Relay(), AddressBook(path=data_dir.backbones)
        may_be_first = _may_be_first(options, book)
        if not options.is_new_owner:
            await apart(lambda: _bring_own(options, data_dir, bundle, hub))
        workshop = workshop_of(bundle, identity.peer_id, options, begin_with)
        num_bytes, workshop = state_bytes(data_dir.checkpoints, workshop)
        settings = StartupSettings(
            network=network_of(options, data_dir, num_bytes),
            bootstrap=book,
            bootstrap_timeout_s=ALONE_AFTER_S if may_be_first else OTHERS_S,
            may_be_alone=may_be_first,
            keeps_directory=may_be_first,
            limits=options.limits,
            papers=estate.papers("backbone", Role.BACKBONE, FAR_S, key=identity),
            reach=Reachability.DIRECT,
        )
        async with start_peer(settings, relay) as started, Background() as tasks:
            tasks.create_task(book.follow(started.ports, bundle.fingerprint))
            place = Place(
                data_dir=data_dir,
                name="backbone",
                as_json=options.as_json,
                store=options.store or _own_store(options, data_dir, run),
                owner=estate.owner,
                hub=service_at(hub, options.hub_every_min, lambda backbone: _for_all(estate, backbone, options)),
                dashboard=options.dashboard,
                tracking=service_for(options.track) if Duty.METRICS not in options.off else None,
                off=options.off,
                style=options.style,
            )

            async def welcome(backbone: Backbone) -> None:
                tasks.create_task(backbone.orders.follow(options.directory / ORDERS))
                addresses = tuple(sorted(backbone.all_addresses(), key=is_loopback))  # these help only peers here
                _tell_commands(options.directory, bundle.fingerprint, addresses)
                options.say(f"checkpoints and metrics: {data_dir.path}")
                _show_invite(estate, addresses, options)

            await serve_backbone(started, bundle, workshop, place, Serving(relay, stop, welcome))
    options.say("the backbone has left; start it again with the same command to carry on")


def _may_be_first(options: HostOptions, book: AddressBook) -> bool:
    """Whether it begins where nobody else is: one that lets others in.

    Raises:
        ConfigError: it is to let nobody in, and there is nobody else.
    """
    if Duty.BOOTSTRAP not in options.off:
        return True
    if not book:
        text = "--without bootstrap: this backbone knows of no other one that could let peers in"
        raise ConfigError(text, hint="start it with 'bootstrap' until another backbone has joined")
    return False


def network_of(options: HostOptions, data_dir: DataDir, num_bytes: int) -> NetworkSettings:
    """How it takes part in the network.

    Args:
        num_bytes: of the run's state, which peers that nobody can dial take through the relay.
    """
    return NetworkSettings(
        identity_path=data_dir.identity,
        host=options.host,
        port=options.port,
        announce=options.announce,
        relay=limits_for(num_bytes) if _may_relay(options) else None,
    )


def _may_relay(options: HostOptions) -> bool:
    """Not on this machine alone, where all reach each other; nor within an owner's limits, which the daemon ignores."""
    is_on = Duty.RELAY not in options.off
    return is_on and not is_loopback(f"/ip4/{options.host}") and options.limits == NO_LIMITS


def _wishes(options: HostOptions, run: Run, hub: HubPlace | None) -> Wishes:
    return Wishes(
        strategy=run.strategy,
        store=options.store,
        hub=str(hub or ""),
        begin_with=options.begin_with,
        dashboard=options.dashboard,
        track=options.track,
    )


def _own_store(options: HostOptions, data_dir: DataDir, run: Run) -> str:
    """Where parameters are kept unless it was said; empty: nowhere."""
    has_one = isinstance(run.strategy, VcAsgd) and Duty.PARAMETERS not in options.off
    return str(data_dir.parameters) if has_one else ""


def _bring_own(options: HostOptions, data_dir: DataDir, bundle: Bundle, hub: HubPlace | None) -> None:
    """Have on this disk what this run is to begin with, as far as it comes from the Hub. Blocks.

    Raises:
        ConfigError: what was named is no repository.
        StateError: the state cannot be had.
    """
    place = place_of(options.begin_with) if options.begin_with else None
    if place is not None:
        options.say(f"looking at {place} on the Hub ...")
        bring(place, data_dir, bundle.fingerprint)
    elif options.begin_with:
        text = f"--from {options.begin_with}: expected a repository of the Hub, as owner/name[@revision]"
        raise ConfigError(text, hint="a checkpoint on this disk is begun with under a new owner: add --new-owner")
    elif hub is not None:
        orders = kept_orders((data_dir.orders, options.directory / ORDERS), bundle.fingerprint, bundle.owner)
        bring_if_lost(hub, data_dir, orders)


def workshop_of(bundle: Bundle, peer_id: str, options: HostOptions, begin_with: Path | None = None) -> Workshop:
    """Imports torch and builds the model only when the run has no state yet.

    Args:
        begin_with: checkpoint of another run that this one goes on from.
    """

    def task() -> "Task":
        return task_of(bundle, peer_id, options.directory, options.allowed_modules)

    def first_state() -> Snapshot:
        if begin_with is not None:
            return carry_on(begin_with, fingerprint=bundle.fingerprint)
        from collab.training.genesis import make_genesis

        return make_genesis(bundle, task())

    return workshop_with(task, first_state)


def _tell_commands(directory: Path, fingerprint: str, addresses: tuple[str, ...]) -> None:
    """On this machine, where we are and what we serve; the run does not wait for a disk that takes nothing."""
    path = directory / ADDRESSES
    try:
        note_served(DataDir(path.parent), fingerprint)
        replace_file(path, json.dumps(addresses).encode() + b"\n", is_synced=False)
    except OSError as error:
        text = "the organiser's commands in this directory may not find this backbone; free some space, start it again"
        logger.warning("cannot write %s: %s; %s", path, error.strerror, text)


def _check(options: HostOptions, run: Run, hub: HubPlace | None) -> None:
    """Raises ``ConfigError`` when what is asked for does not go together."""
    check_duties(options.off, _wishes(options, run, hub))
    if options.invite_file is not None and run.access == "invite_only":
        text = "--invite-file is for an open run; in this one everybody has an invite of their own"
        raise ConfigError(text, hint=f"leave it out, and type: collab-peer invite {options.directory} --name Anna")


def _show_invite(estate: Estate, addresses: tuple[str, ...], options: HostOptions) -> None:
    """For everybody, in an open run; else how to make one for somebody."""
    if estate.bundle.run.access == "invite_only":
        options.say(f"invite people by name:\n\n  collab-peer invite {options.directory} --name Anna\n")
        return
    invite = _invite(estate, addresses)
    if options.invite_file is not None:
        try:
            replace_file(options.invite_file, invite.encode() + b"\n", is_synced=False)
        except OSError as error:
            text = f"cannot write {options.invite_file}: {error.strerror}"
            raise ConfigError(text, hint="name a writable path, or free some space") from error
    options.say(f"invite:\n\n  {invite}\n\nanyone joins with:\n\n  collab-peer join {invite}\n")


def _for_all(estate: Estate, backbone: Backbone, options: HostOptions) -> str:
    """The invite that is published with the model: of an open run, with addresses that its organiser has announced.

    Those of other backbones, and those that this machine has found out about itself, are nobody else's business.
    """
    if estate.bundle.run.access == "invite_only" or not options.announce or not backbone.own_addresses:
        return ""
    return _invite(estate, tuple(sorted(backbone.own_addresses, key=is_loopback)))


def _invite(estate: Estate, addresses: tuple[str, ...]) -> str:
    bundle, owner = estate.bundle, estate.owner
    invite = Invite(run_id=bundle.run.run_id, fingerprint=bundle.fingerprint, owner=owner.peer_id, addresses=addresses)
    return write_invite(invite, owner)
