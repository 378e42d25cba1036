"""``collab-peer backbone``: an organiser's process."""

import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from collab.checkpoints.carried_on import carry_on
from collab.concurrency import Background
from collab.config import VcAsgd, load_run
from collab.errors import ConfigError
from collab.net.hivemind_net import NetworkSettings
from collab.net.listening import is_loopback
from collab.net.relaying import limits_for
from collab.net.startup import StartupSettings, start_peer
from collab.ports import NO_LIMITS, LinkLimits
from collab.swarm.address_book import AddressBook
from collab.swarm.bundle import Bundle
from collab.swarm.identity import load_or_create_identity
from collab.swarm.invite import Invite, write_invite
from collab.swarm.order_exchange import read_orders
from collab.swarm.snapshots import Snapshot
from collab.types import Reachability, Role
from peers.backbone import Backbone
from peers.joining import Relay
from peers.owner import Estate
from peers.places import ADDRESSES, ORDERS, OWNER_KEY, RUN_FILE, claim_data_dir
from peers.process import announce
from peers.run_size import state_bytes
from peers.serving import Place, Serving, names_of, serve_backbone, task_of, worth_of
from peers.workshop import Workshop

if TYPE_CHECKING:
    from collab.tasks.base import Task

FAR_S = 1e11
"""Swarm time that nobody here will see: the organiser's own backbone needs no new invite."""
ALONE_AFTER_S = 3.0
"""How long a backbone looks for the others when it starts; it goes on looking."""


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
    carried_on: Path | None = None
    """Checkpoint of an earlier run, with whose state this one begins, under a new owner."""
    store: str = ""
    """File or Redis server with the parameters of ``vc_asgd``; empty: a file in the backbone's directory."""
    as_json: bool = False


async def host(options: HostOptions, stop: asyncio.Event) -> None:
    """Serve the run of ``options.directory`` until stopped."""
    run = load_run(options.directory / RUN_FILE)
    if options.carried_on is not None and (options.directory / OWNER_KEY).exists():
        raise ConfigError(
            f"{options.directory} has an owner already",
            hint="a run is carried on in a new directory, with its run.yaml and without owner.key",
        )
    load_or_create_identity(options.directory / OWNER_KEY)  # who starts a run without one owns it
    with claim_data_dir(options.directory / "backbone", run.run_id) as data_dir:
        announce(f"preparing run {run.run_id} ...")
        estate = Estate.at(options.directory)
        bundle, identity = estate.bundle, load_or_create_identity(data_dir.identity)
        relay, book = Relay(), AddressBook(path=data_dir.backbones)
        num_bytes, workshop = state_bytes(data_dir.checkpoints, workshop_of(bundle, identity.peer_id, options))
        network = NetworkSettings(
            identity_path=data_dir.identity,
            host=options.host,
            port=options.port,
            announce=options.announce,
            relay=limits_for(num_bytes) if _may_relay(options) else None,
        )
        settings = StartupSettings(
            network=network,
            bootstrap=book,
            bootstrap_timeout_s=ALONE_AFTER_S,
            may_be_alone=True,
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
                store=options.store or (str(data_dir.parameters) if isinstance(run.strategy, VcAsgd) else ""),
                owner=estate.owner,
            )

            async def welcome(backbone: Backbone) -> None:
                backbone.statutes.mandate.take(0, read_orders(options.directory / ORDERS))
                addresses = _dialable_first(backbone.all_addresses())
                _write(options.directory / ADDRESSES, json.dumps(addresses))
                announce(f"checkpoints and metrics: {data_dir.path}")
                _show_invite(estate, addresses, options)

            await serve_backbone(started, bundle, workshop, place, Serving(relay, stop, welcome))
    announce("the backbone has left; start it again with the same command to carry on")


def _may_relay(options: HostOptions) -> bool:
    """Not on this machine alone, where all reach each other; nor within an owner's limits, which the daemon ignores."""
    return not is_loopback(f"/ip4/{options.host}") and options.limits == NO_LIMITS


def workshop_of(bundle: Bundle, peer_id: str, options: HostOptions) -> Workshop:
    """Imports torch and builds the model only when the run has no state yet."""

    def task() -> "Task":
        return task_of(bundle, peer_id, options.directory, options.allowed_modules)

    def first_state() -> Snapshot:
        if options.carried_on is not None:
            return carry_on(options.carried_on, fingerprint=bundle.fingerprint)
        from collab.training.genesis import make_genesis

        return make_genesis(bundle, task())

    return Workshop(
        make_first_state=first_state,
        checkpoint_files=lambda: task().checkpoint_files(),
        evaluate=lambda state: worth_of(task(), state),
        copied_names=lambda: names_of(task()),
    )


def _dialable_first(addresses: tuple[str, ...]) -> tuple[str, ...]:
    """Loopback last: it helps only peers on this very machine."""
    return tuple(sorted(addresses, key=is_loopback))


def _write(path: Path, text: str) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(text + "\n", encoding="utf-8")
        unfinished.rename(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}", hint="name a writable path") from error


def _show_invite(estate: Estate, addresses: tuple[str, ...], options: HostOptions) -> None:
    """For everybody, in an open run; else how to make one for somebody."""
    run, directory = estate.bundle.run, options.directory
    if run.access == "invite_only":
        announce(f"invite people by name:\n\n  collab-peer invite {directory} --name Anna\n")
        return
    invite = write_invite(
        Invite(
            run_id=run.run_id,
            fingerprint=estate.bundle.fingerprint,
            owner=estate.owner.peer_id,
            addresses=addresses,
        ),
        estate.owner,
    )
    if options.invite_file is not None:
        _write(options.invite_file, invite)
    announce(f"invite:\n\n  {invite}\n\nanyone joins with:\n\n  collab-peer join {invite}\n")
