"""A run by the name of its repository on the Hub: what 'join', '--from' and 'export' take beside files."""

import json
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from collab.checkpoints.from_hub import export, fetch_checkpoint
from collab.checkpoints.hub_repository import HubPlace, HubRepository
from collab.checkpoints.hub_session import TO_READ
from collab.checkpoints.local import STATE_FILE, list_checkpoints
from collab.compute import ThreadCompute
from collab.errors import ConfigError, InviteError
from collab.swarm.invite import read_invite
from peers.hub_pages import FORMAT, RUN_ON_HUB
from peers.invites import is_path
from peers.process import announce

T = TypeVar("T")
ASK = "ask the organiser for an invite"


def repository_to_read(place: HubPlace) -> HubRepository:
    """Of which nothing is changed."""
    return HubRepository(place, advice=TO_READ)


async def apart(work: Callable[[], T]) -> T:
    """Do what blocks in a thread that nobody waits for when this process is to end."""
    with closing(ThreadCompute()) as worker:
        return await worker.run(work)


def place_of(text: str) -> HubPlace | None:
    """The repository that a person means; None: a file or a directory, there or not, or something else."""
    return None if is_path(text) else HubPlace.parse(text)


def word_of(text: str) -> str:
    """The invite that somebody who types a repository's name means; any other text as it is. Blocks.

    Raises:
        InviteError: the repository tells of no run, or of one for invited people only.
        HubError: it cannot be had.
    """
    place = place_of(text)
    if place is None:
        return text
    announce(f"looking for the run of {place} on the Hub ...")
    repository = repository_to_read(place)
    head = repository.head()
    if RUN_ON_HUB not in head.names:
        raise InviteError(f"{place} does not say where its run is", hint=ASK)
    try:
        told = json.loads(repository.read(RUN_ON_HUB, head))
        version, word, fingerprint = told["format"], str(told["invite"]), str(told["fingerprint"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InviteError(f"{RUN_ON_HUB} of {place} is not what a backbone writes", hint=ASK) from error
    if version != FORMAT:
        raise InviteError(f"{place} was published by another version of collab", hint="upgrade this one")
    invite = read_invite(word)
    if invite.fingerprint != fingerprint or invite.papers is not None:
        raise InviteError(f"the invite in {RUN_ON_HUB} of {place} is for something else", hint=ASK)
    return word


def export_to(source: str, target: Path) -> None:
    """``collab-peer export``: a directory that ``transformers`` loads.

    Raises:
        ConfigError: there is no checkpoint.
        StateError: it is not whole, cannot be had, or the directory cannot be written.
    """
    place = place_of(source)
    if place is None:
        epoch = export(checkpoint_in(Path(source)), target)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".collab-") as folder:
            epoch = export(fetch_checkpoint(repository_to_read(place), Path(folder)), target)
    announce(f"epoch {epoch} of {source} is in {target}, for transformers' from_pretrained")


def checkpoint_in(path: Path) -> Path:
    """A checkpoint, or the newest one of a run's directory.

    Raises:
        ConfigError: there is none.
    """
    if (path / STATE_FILE).is_file():
        return path
    for root in (path / "backbone" / "checkpoints", path / "checkpoints", path):
        if found := list_checkpoints(root):
            return found[0]
    raise ConfigError(
        f"there is no checkpoint in {path}",
        hint="name a checkpoint, a run's directory, or a repository of the Hub as owner/name",
    )
