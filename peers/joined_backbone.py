"""``collab-peer join --role backbone``: one more backbone, which keeps the run when others die."""

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from collab.concurrency import Background
from collab.errors import ConfigError
from collab.metrics.services import service_for
from collab.net.hivemind_net import NetworkSettings
from collab.net.startup import StartupSettings, default_host, learn_run, start_peer
from collab.swarm.address_book import AddressBook
from collab.swarm.bundle import Bundle, load_bundle, save_bundle
from collab.swarm.duties import Duty
from collab.swarm.invite import Invite
from collab.swarm.order_exchange import kept_orders
from collab.types import PeerId, Reachability, Role
from peers.asking import declined, is_welcome
from peers.backbone import Backbone
from peers.hub_lookup import apart
from peers.hub_service import bring_if_lost, place_named, service_at
from peers.joining import JoinOptions, Relay
from peers.process import set_up_heap, start_helpers
from peers.role_options import check_role
from peers.serving import Place, Serving, serve_backbone, task_of, workshop_with
from peers.switched_off import Wishes, announce_duties, check_duties
from peers.wiring import invite_from
from peers.workshop import Workshop

if TYPE_CHECKING:
    from collab.tasks.base import Task

ALONE_AFTER_S = 5.0
"""How long the others are looked for at the start, when the run is known from an earlier life; the search goes on."""
LEARN_S = 20.0
"""How long others are asked what the run is, when it is not known from an earlier life."""


async def join_as_backbone(options: JoinOptions, stop: asyncio.Event) -> None:
    """Serve the run of an invite until stopped. It may be the first of all peers that comes back.

    Raises:
        ConfigError: it is to be a peer that nobody can dial, or the owner has not invited a backbone.
        Declined: the machine's owner does not want it to take part.
    """
    _check(options)
    set_up_heap()
    start_helpers()
    relay, invite, data_dir = Relay(), invite_from(options.invite), options.data_dir
    if invite.papers is None or invite.papers.role(invite.fingerprint, invite.owner) is not Role.BACKBONE:
        raise ConfigError(
            "this invite is not for a backbone", hint="ask the owner for one: collab-peer invite DIR --role backbone"
        )
    publishes_at = place_named(options.hub_repo, options.hub_every_min)
    hub = service_at(publishes_at, options.hub_every_min, lambda _: None)
    options.say(f"joining {invite.run_id} as a backbone ...")
    if hub is not None:
        orders = kept_orders([data_dir.orders], invite.fingerprint, invite.owner)
        await apart(lambda: bring_if_lost(hub.place, data_dir, orders, makes_first_state=False))
    known = load_bundle(data_dir.run, invite.fingerprint)
    book = AddressBook(invite.addresses, data_dir.backbones)
    settings = _startup(invite, options, book)
    if known is not None:
        settings = replace(settings, bootstrap_timeout_s=ALONE_AFTER_S, may_be_alone=settings.keeps_directory)
    async with start_peer(settings, relay) as started, Background() as tasks:
        if started.verdict.reach is not Reachability.DIRECT:
            raise ConfigError(f"a backbone is there to be dialled: {started.verdict.text}", hint=started.verdict.hint)
        bundle = known if known is not None else await learn_run(started, invite.fingerprint, LEARN_S)
        _check_duties(bundle, options)
        if not await is_welcome(started, bundle, options, stop):
            raise declined(data_dir)
        if known is None:
            await started.ports.compute.beside(lambda: save_bundle(bundle, data_dir.run))
        tasks.create_task(book.follow(started.ports, bundle.fingerprint))
        workshop = _workshop_of(bundle, started.ports.transport.peer_id, options)
        place = Place(
            data_dir=data_dir, name=options.name, as_json=options.as_json, store=options.store, hub=hub,
            dashboard=options.dashboard, off=options.off, style=options.style,
            tracking=service_for(options.track) if Duty.METRICS not in options.off else None,
        )  # fmt: skip

        async def welcome(backbone: Backbone) -> None:
            options.say(f"checkpoints and metrics: {data_dir.path}")
            if backbone.own_addresses:
                options.say("serving at:\n" + "\n".join(f"  {address}" for address in backbone.own_addresses))
            if backbone.own_addresses and not options.reach.port:
                options.say("  -> add --port and a number: a backbone that comes back elsewhere is not found")

        await serve_backbone(started, bundle, workshop, place, Serving(relay, stop, welcome))
    options.say("the backbone has left; start it again with the same command to carry on")


def _startup(invite: Invite, options: JoinOptions, book: AddressBook) -> StartupSettings:
    reach = options.reach
    return StartupSettings(
        network=NetworkSettings(
            identity_path=options.data_dir.identity, host=reach.host or default_host(invite), port=reach.port
        ),
        bootstrap=book,
        limits=reach.limits,
        clock_error_s=reach.clock_error_s,
        papers=invite.papers,
        reach=reach.asked_for,
        fingerprint=invite.fingerprint,
        keeps_directory=Duty.BOOTSTRAP not in options.off,
    )


def _workshop_of(bundle: Bundle, me: PeerId, options: JoinOptions) -> Workshop:
    """Builds the task when it is asked for something of it."""

    def task() -> "Task":
        return task_of(bundle, me, None, options.allowed_modules)

    return workshop_with(task)


def _check_duties(bundle: Bundle, options: JoinOptions) -> None:
    """See ``check_duties``; who has joined relays nothing in any case."""
    strategy = bundle.run.strategy
    hub = str(place_named(options.hub_repo) or "")
    wishes = Wishes(
        strategy=strategy, store=options.store, hub=hub, dashboard=options.dashboard, track=options.track
    )
    check_duties(options.off | {Duty.RELAY}, wishes)
    announce_duties(options.off, options.style)


def _check(options: JoinOptions) -> None:
    """
    Raises:
        ConfigError: somebody asks for what a backbone cannot be.
    """
    check_role(options)
    if options.reach.asked_for is Reachability.CLIENT:
        raise ConfigError(
            "a backbone is there to be dialled",
            hint="leave --reach client out, or join as a trainer or an auxiliary peer",
        )
    if Duty.RELAY in options.off:
        raise ConfigError(
            "--without relay: a backbone that has joined passes nothing on in any case", hint="leave 'relay' out"
        )
