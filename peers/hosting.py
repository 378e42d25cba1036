"""``collab-peer backbone``: an organiser's process."""

import asyncio
import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from collab.concurrency import Background
from collab.config import Run, load_run
from collab.errors import ConfigError
from collab.net.hivemind_net import NetworkSettings
from collab.net.startup import StartupSettings, is_loopback, start_peer
from collab.ports import NO_LIMITS, LinkLimits
from collab.swarm.address_book import AddressBook
from collab.swarm.bundle import Bundle
from collab.swarm.identity import load_or_create_identity
from collab.swarm.invite import Invite, write_invite
from collab.swarm.snapshots import Snapshot
from peers.backbone import Backbone
from peers.joining import Relay
from peers.keeping import Workshop
from peers.places import OWNER_KEY, RUN_FILE, DataDir, cache_dir, claim_data_dir
from peers.process import announce
from peers.serving import Place, Serving, serve_backbone, task_of

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
    as_json: bool = False


async def host(options: HostOptions, stop: asyncio.Event) -> None:
    """Serve the run of ``options.directory`` until stopped."""
    run = load_run(options.directory / RUN_FILE)
    owner = load_or_create_identity(options.directory / OWNER_KEY)
    with claim_data_dir(options.directory / "backbone", run.run_id) as data_dir:
        announce(f"preparing run {run.run_id} ...")
        bundle = Bundle(run, load_assets(run, options.directory))
        relay, book = Relay(), AddressBook(path=data_dir.backbones)
        network = NetworkSettings(
            identity_path=data_dir.identity, host=options.host, port=options.port, announce=options.announce
        )
        settings = StartupSettings(
            network=network,
            bootstrap=book,
            bootstrap_timeout_s=ALONE_AFTER_S,
            may_be_alone=True,
            limits=options.limits,
        )
        async with start_peer(settings, relay) as started, Background() as tasks:
            tasks.create_task(book.follow(started.ports, bundle.fingerprint))
            workshop = workshop_of(bundle, started.ports.transport.peer_id, options.directory)
            place = Place(data_dir=data_dir, name="backbone", as_json=options.as_json)

            async def welcome(backbone: Backbone) -> None:
                addresses = _dialable_first(backbone.all_addresses())
                made = Invite(
                    run_id=run.run_id, fingerprint=bundle.fingerprint, owner=owner.peer_id, addresses=addresses
                )
                _show_invite(write_invite(made, owner), options, data_dir)

            await serve_backbone(started, bundle, workshop, place, Serving(relay, stop, welcome))
    announce("the backbone has left; start it again with the same command to carry on")


def load_assets(run: Run, directory: Path) -> dict[str, bytes]:
    """The files that travel with the run: made once for a task, then kept beside the run file.

    Raises:
        ConfigError: the task cannot be built, or the directory cannot be written.
        DataError: the data or the tokenizer cannot be read.
    """
    from collab.tasks.registry import make_assets

    task = f"{run.seed}:{run.task.model_dump_json()}"
    folder = directory / "assets" / hashlib.sha256(task.encode()).hexdigest()[:16]
    if not folder.is_dir():
        assets = make_assets(run, base_dir=directory, cache_dir=cache_dir())
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
                made = Path(unfinished) / "made"
                made.mkdir()
                for name, data in assets.items():
                    (made / name).write_bytes(data)
                made.rename(folder)
        except OSError as error:
            raise ConfigError(
                f"cannot write {folder}: {error.strerror}", hint="make the run directory writable"
            ) from error
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def workshop_of(bundle: Bundle, peer_id: str, directory: Path) -> Workshop:
    """Imports torch and builds the model only when the run has no state yet."""

    def first_state() -> Snapshot:
        from collab.training.genesis import make_genesis

        return make_genesis(bundle, task_of(bundle, peer_id, directory))

    return Workshop(
        make_first_state=first_state,
        checkpoint_files=lambda: task_of(bundle, peer_id, directory).checkpoint_files(),
    )


def _dialable_first(addresses: tuple[str, ...]) -> tuple[str, ...]:
    """Loopback last: it helps only peers on this very machine."""
    return tuple(sorted(addresses, key=is_loopback))


def _show_invite(invite: str, options: HostOptions, data_dir: DataDir) -> None:
    if options.invite_file is not None:
        unfinished = options.invite_file.with_name(f".{options.invite_file.name}.{os.getpid()}")
        try:
            unfinished.write_text(invite + "\n", encoding="utf-8")
            unfinished.rename(options.invite_file)
        except OSError as error:
            raise ConfigError(
                f"cannot write the invite to {options.invite_file}: {error.strerror}",
                hint="name a writable --invite-file",
            ) from error
    announce(f"checkpoints and metrics: {data_dir.path}")
    announce(f"invite:\n\n  {invite}\n\nanyone joins with:\n\n  collab-peer join {invite}\n")
