"""``collab-peer backbone``: an organiser's process."""

import asyncio
import hashlib
import json
import os
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from collab.config import Run, load_run
from collab.errors import ConfigError
from collab.metrics.records import Notice
from collab.metrics.sinks import Fanout, JsonLines
from collab.net.hivemind_net import NetworkSettings
from collab.net.relaying import limits_for
from collab.net.startup import StartupSettings, is_loopback, start_peer
from collab.ports import NO_LIMITS, LinkLimits
from collab.swarm.bundle import Bundle
from collab.swarm.identity import load_or_create_identity
from collab.swarm.invite import Invite, write_invite
from collab.swarm.snapshots import Snapshot
from peers.backbone import Backbone, BackboneSettings, Workshop
from peers.joining import Relay
from peers.places import OWNER_KEY, RUN_FILE, DataDir, cache_dir, claim_data_dir
from peers.process import announce, settle_heap
from peers.run_size import state_bytes
from peers.screen import LivePanel, choose_screen

if TYPE_CHECKING:
    from collab.tasks.base import Task


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
    with claim_data_dir(options.directory / "backbone", run.run_id) as data_dir, ExitStack() as stack:
        announce(f"preparing run {run.run_id} ...")
        bundle = Bundle(run, load_assets(run, options.directory))
        relay = Relay()
        workshop = _workshop(bundle, load_or_create_identity(data_dir.identity).peer_id, options.directory)
        num_bytes, workshop = state_bytes(data_dir.checkpoints, workshop)
        network = NetworkSettings(
            identity_path=data_dir.identity,
            host=options.host,
            port=options.port,
            announce=options.announce,
            relay=limits_for(num_bytes) if _may_relay(options) else None,
        )
        async with start_peer(StartupSettings(network=network, limits=options.limits), relay) as started:
            settings = BackboneSettings(name="backbone", checkpoint_dir=data_dir.checkpoints)
            backbone = Backbone(started.ports, started.identity, bundle, workshop, settings)
            title = f"collab backbone: {run.run_id}"
            screen = choose_screen(
                as_json=options.as_json,
                title=title,
                view=lambda: backbone.membership.view,
                refusals=started.refusals.rows,
            )
            relay.sink = Fanout(screen, JsonLines(data_dir.metrics))
            await backbone.begin()
            addresses = _dialable_first(await started.ports.transport.addresses())
            invite = write_invite(
                Invite(run_id=run.run_id, fingerprint=bundle.fingerprint, owner=owner.peer_id, addresses=addresses),
                owner,
            )
            _show_invite(invite, options, data_dir)
            if isinstance(screen, LivePanel):
                stack.enter_context(screen)
            relay.observe(Notice(at_s=started.ports.clock.now(), text=f"serving run {run.run_id}"))
            settle_heap()
            await backbone.run(stop)
            if options.as_json:
                record = backbone.record()
                summary = {"id": record.peer, "role": record.role, "epoch": record.epoch, "lineage": record.lineage}
                print(json.dumps({"event": "Summary", **summary}), flush=True)  # noqa: T201
    announce("the backbone has left; start it again with the same command to carry on")


def _may_relay(options: HostOptions) -> bool:
    """Not on this machine alone, where all reach each other; nor within an owner's limits, which the daemon ignores."""
    return not is_loopback(f"/ip4/{options.host}") and options.limits == NO_LIMITS


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


def _workshop(bundle: Bundle, peer_id: str, directory: Path) -> Workshop:
    """Imports torch and builds the model only when the run has no state yet."""

    def task() -> "Task":
        from collab.tasks.registry import build_task

        return build_task(bundle.run, assets=bundle.assets, cache_dir=cache_dir(), peer_id=peer_id, base_dir=directory)

    def first_state() -> Snapshot:
        from collab.training.genesis import make_genesis

        return make_genesis(bundle, task())

    return Workshop(make_first_state=first_state, checkpoint_files=lambda: task().checkpoint_files())


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
