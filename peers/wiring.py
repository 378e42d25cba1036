"""Putting a real peer together from an invite or a run directory."""

import ipaddress
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from collab.errors import InviteError
from collab.net.hivemind_net import NetworkSettings
from collab.net.startup import Started, StartupSettings, start_peer
from collab.ports import Observer
from collab.swarm.bundle import Bundle, fetch_bundle
from collab.swarm.invite import Invite, read_invite
from peers.places import DataDir

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How this machine can be reached."""

    host: str | None = None
    """Address to listen on; None: loopback when the whole run is on this machine, else every address."""
    port: int = 0
    is_client: bool = False
    clock_error_s: float = 0.0


def invite_from(text: str) -> Invite:
    """The invite itself, or the file that holds it.

    Raises:
        InviteError: neither.
    """
    path = Path(text)
    if not text.startswith("collab1-") and len(text) < 4096 and path.is_file():
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InviteError(f"cannot read the invite from {path}: {error}") from error
    return read_invite(text)


@asynccontextmanager
async def start_from_invite(
    invite: Invite, data_dir: DataDir, reach: Reach, observer: Observer
) -> AsyncIterator[tuple[Started, Bundle]]:
    """Get into the swarm that ``invite`` names, and learn its run.

    Raises:
        BootstrapFailed, RunMismatch, ConfigError: see ``start_peer`` and ``fetch_bundle``.
    """
    is_local = all(is_loopback(address) for address in invite.addresses)
    network = NetworkSettings(
        identity_path=data_dir.identity,
        host=reach.host or ("127.0.0.1" if is_local else "0.0.0.0"),  # noqa: S104 - volunteers are dialled by others
        port=reach.port,
        is_client=reach.is_client,
    )
    settings = StartupSettings(network=network, bootstrap=invite.addresses, clock_error_s=reach.clock_error_s)
    async with start_peer(settings, observer) as started:
        peers = list(started.bootstrap_peers)
        bundle = await fetch_bundle(started.ports.transport, peers, invite.fingerprint)
        yield started, bundle


def is_loopback(address: str) -> bool:
    """Whether a multiaddress names this machine only."""
    parts = address.split("/")
    try:
        return parts[1] in ("ip4", "ip6") and ipaddress.ip_address(parts[2]).is_loopback
    except (IndexError, ValueError):
        return False
