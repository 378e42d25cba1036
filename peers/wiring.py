"""From what a person typed to a peer in the network."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from collab.net.hivemind_net import Metered, NetworkSettings, unmetered
from collab.net.startup import Started, StartupSettings, default_host, open_run
from collab.ports import NO_LIMITS, LinkLimits, Observer
from collab.swarm.address_book import AddressBook
from collab.swarm.bundle import Bundle
from collab.swarm.invite import Invite
from collab.types import Reachability
from peers.invites import invite_from as invite_from
from peers.places import DataDir

BYTES_PER_MBIT = 1e6 / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How this machine can be reached, and how much of its link it gives."""

    host: str | None = None
    """Address to listen on; None: see ``default_host``."""
    port: int = 0
    asked_for: Reachability | None = None
    """How others can reach this machine, if its owner says so; None: they are asked to try."""
    limits: LinkLimits = NO_LIMITS
    clock_error_s: float = 0.0


def limits_from(max_upload: float | None, max_download: float | None) -> LinkLimits:
    """From Mbit/s."""
    return LinkLimits(
        up_bytes_per_s=None if max_upload is None else max_upload * BYTES_PER_MBIT,
        down_bytes_per_s=None if max_download is None else max_download * BYTES_PER_MBIT,
    )


@asynccontextmanager
async def start_from_invite(
    invite: Invite,
    data_dir: DataDir,
    reach: Reach,
    observer: Observer,
    *,
    is_guest: bool = False,
    metered: Metered = unmetered,
) -> AsyncIterator[tuple[Started, Bundle]]:
    """Get into the swarm that ``invite`` names; see ``open_run``.

    Args:
        is_guest: only to look: no device's place of the invite is taken then.
        metered: entered while a daemon runs; there may be two, one after the other.
    """
    network = NetworkSettings(
        identity_path=data_dir.identity,
        host=reach.host or default_host(invite),
        port=reach.port,
        metered=metered,
    )
    settings = StartupSettings(
        network=network,
        bootstrap=AddressBook(invite.addresses, data_dir.backbones),
        limits=reach.limits,
        clock_error_s=reach.clock_error_s,
        papers=invite.papers and replace(invite.papers, are_guests=is_guest),
        reach=reach.asked_for,
    )
    async with open_run(invite, settings, observer) as opened:
        yield opened
