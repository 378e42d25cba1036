"""The run as it travels: run file and assets, served by every peer and verified against the invite's fingerprint."""

import hashlib
import json
import logging
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from collab.config import Run, fingerprint, parse_run
from collab.errors import AccessDenied, BadMessage, BootstrapFailed, ConfigError, NetworkError, RunMismatch
from collab.net.base import Stream, Transport
from collab.net.pieces import receive_bytes, send_bytes
from collab.net.wire import Message
from collab.types import PeerId

logger = logging.getLogger(__name__)

BUNDLE_PROTOCOL = "collab/run/3"
TIMEOUT_S = 20.0
"""Of one message: a run file of 64 KiB, or a piece of an asset, over a line of 35 kbit/s; fetched when a peer joins,
before it has measured anything."""
RUN_FILE, ASSET = "run.json", "asset-"
"""What a run is kept as: one file, and one for each asset, whose names begin so."""
MAX_ASSETS = 16
OWNER_FILE = "owner"
ASSET_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
"""They become names of files on each machine."""
MAX_ASSET_BYTES = 64 << 20


@dataclass(frozen=True)  # without slots, which would leave no place for what is computed once
class Bundle:
    """A validated run file and the files that travel with it (``tokenizer.json``)."""

    run: Run
    assets: Mapping[str, bytes]
    """A copy of what was given, and read-only: the fingerprint holds for good."""
    owner: PeerId = PeerId("")
    """Key whose orders count; empty: nobody owns the run."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "assets", MappingProxyType(dict(self.assets)))

    @cached_property
    def fingerprint(self) -> str:
        """64 hex digits; two peers with equal ones mean the same run. Computed once: assets may be large."""
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in self.assets.items()}
        return fingerprint(self.run, digests, self.owner)


def save_bundle(bundle: Bundle, folder: Path) -> None:
    """Keep a run on the disk for the next life.

    Raises:
        ConfigError: the disk does not take it.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
            made = Path(unfinished) / "made"
            made.mkdir()
            (made / RUN_FILE).write_text(bundle.run.model_dump_json(), encoding="utf-8")
            (made / OWNER_FILE).write_text(bundle.owner, encoding="utf-8")
            for name, data in bundle.assets.items():
                (made / f"{ASSET}{name}").write_bytes(data)
            shutil.rmtree(folder, ignore_errors=True)
            made.rename(folder)
    except OSError as error:
        raise ConfigError(f"cannot write {folder}: {error.strerror}", hint="name a writable --data-dir") from error


def load_bundle(folder: Path, expected_fingerprint: str) -> Bundle | None:
    """The run of an earlier life; None when there is none, or another one, or it was changed."""
    try:
        run = parse_run((folder / RUN_FILE).read_text(encoding="utf-8"), origin=str(folder))
        assets = {path.name.removeprefix(ASSET): path.read_bytes() for path in sorted(folder.glob(f"{ASSET}*"))}
        owner = PeerId((folder / OWNER_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, ConfigError):
        return None
    bundle = Bundle(run, assets, owner)
    return bundle if bundle.fingerprint == expected_fingerprint else None


async def serve_bundle(transport: Transport, bundle: Bundle) -> None:
    """Answer newcomers that have only an invite."""

    async def answer(stream: Stream) -> None:
        await stream.receive(timeout_s=TIMEOUT_S)
        fields = {"run": bundle.run.model_dump_json(), "assets": list(bundle.assets), "owner": bundle.owner}
        await stream.send(Message("run", fields), timeout_s=TIMEOUT_S)
        for name, data in bundle.assets.items():
            await stream.send(Message("asset", {"name": name, "num_bytes": len(data)}), timeout_s=TIMEOUT_S)
            await send_bytes(stream, data, timeout_s=TIMEOUT_S)
        await stream.receive(timeout_s=TIMEOUT_S)  # "thanks": everything arrived

    await transport.serve(BUNDLE_PROTOCOL, answer)


async def fetch_bundle(transport: Transport, peers: list[PeerId], expected_fingerprint: str) -> Bundle:
    """The run that ``expected_fingerprint`` names, from the first of ``peers`` that has it.

    Raises:
        RunMismatch: a peer serves another run; both fingerprints are named.
        ConfigError: the run needs a newer version of this package.
        AccessDenied: this peer may not take part.
        BootstrapFailed: nobody answered.
    """
    failures: list[str] = []
    denied: AccessDenied | None = None
    for peer in peers:
        try:
            bundle = await _fetch_from(transport, peer)
        except AccessDenied as error:
            denied = error
            continue
        except NetworkError as error:
            failures.append(f"  {peer}: {error.message}")
            continue
        if bundle.fingerprint != expected_fingerprint:
            raise RunMismatch(
                f"the invite is for the run with fingerprint {expected_fingerprint}, "
                f"but {peer} serves run {bundle.run.run_id!r} with fingerprint {bundle.fingerprint}",
                hint="ask the organiser for a fresh invite: the run file was changed after yours was made",
            )
        return bundle
    if denied is not None:
        raise denied
    raise BootstrapFailed(
        "nobody could tell what the run is:\n" + "\n".join(failures), hint="ask the organiser for help"
    )


async def _fetch_from(transport: Transport, peer: PeerId) -> Bundle:
    stream = await transport.open(peer, BUNDLE_PROTOCOL, timeout_s=TIMEOUT_S)
    try:
        await stream.send(Message("get"), timeout_s=TIMEOUT_S)
        answer = await stream.receive(timeout_s=TIMEOUT_S)
        names = answer.get("assets", list)
        if len(names) > MAX_ASSETS:
            raise BadMessage(f"{len(names)} assets are over the limit of {MAX_ASSETS}")
        if not all(isinstance(name, str) and ASSET_NAME.fullmatch(name) for name in names):
            raise BadMessage("an asset has a name that is no plain file name")
        try:
            run = parse_run(json.dumps(json.loads(answer.get("run", str))), origin=f"the run of {peer}")
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"the run of {peer} is not JSON: {error}") from error
        assets: dict[str, bytes] = {}
        for name in names:
            message = await stream.receive(timeout_s=TIMEOUT_S)
            if message.kind != "asset" or message.get("name", str) != name:
                raise BadMessage(f"expected the asset {name!r}")
            num_bytes = message.get("num_bytes", int)
            if not 0 <= num_bytes <= MAX_ASSET_BYTES:
                raise BadMessage(f"the asset {name!r} of {num_bytes} bytes is over the limit of {MAX_ASSET_BYTES}")
            assets[name] = bytes(await receive_bytes(stream, num_bytes, timeout_s=TIMEOUT_S))
        await stream.send(Message("thanks"), timeout_s=TIMEOUT_S)
        return Bundle(run, assets, PeerId(answer.get("owner", str)))
    finally:
        stream.close()
