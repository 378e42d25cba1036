"""A run by the name of its repository on the Hub: what 'join', '--from' and 'export' take beside files."""

import json
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from collab.checkpoints.disk_errors import not_written
from collab.checkpoints.from_hub import NOT_EXPORTED, check_is_new, export, fetch_checkpoint
from collab.checkpoints.hub_advice import TO_READ
from collab.checkpoints.hub_repository import HubPlace, HubRepository, There
from collab.checkpoints.local import STATE_FILE, list_checkpoints
from collab.compute import ThreadCompute
from collab.durable import replace_file
from collab.errors import ConfigError, CorruptState, HubBusy, InviteError
from collab.swarm.invite import read_invite
from peers.hub_pages import FORMAT, MOST_WORD_BYTES, RUN_ON_HUB
from peers.hub_patience import patiently
from peers.invites import is_path
from peers.places import data_home
from peers.process import announce

T = TypeVar("T")
ASK = "ask the organiser for an invite"
FOUND = ".found-on-the-hub"
"""In the user's data: invites by the names of their repositories. No run has such a name."""


def repository_to_read(place: HubPlace) -> HubRepository:
    """Of which nothing is changed."""
    return HubRepository(place, advice=TO_READ)


async def apart(work: Callable[[], T]) -> T:
    """Do what blocks in a thread that nobody waits for when this process is to end."""
    return await ThreadCompute().apart(work)


def place_of(text: str) -> HubPlace | None:
    """The repository that a person means; None: a file or a directory, there or not, or something else."""
    return None if is_path(text) else HubPlace.parse(text)


def word_of(text: str) -> str:
    """The invite that somebody who types a repository's name means; any other text as it is. Blocks.

    While the Hub does not answer, it is the one that was found there last on this machine.

    Raises:
        InviteError: the repository tells of no run, or of one for invited people only.
        HubError: it cannot be had.
    """
    place = place_of(text)
    if place is None:
        return text
    announce(f"looking for the run of {place} on the Hub ...")
    found = data_home() / FOUND / f"{quote(str(place), safe='@')}.invite"
    try:
        word = patiently(lambda: _word_at(place))
    except HubBusy as error:
        if (kept := _kept_word(found)) is None:
            raise
        date = time.strftime("%Y-%m-%d", time.gmtime(found.stat().st_mtime))
        announce(f"{error.message}; going by what was found there last, on {date}: an address may have changed since")
        return kept
    except InviteError:
        with suppress(OSError):
            found.unlink(missing_ok=True)
        raise
    with suppress(OSError):  # a disk that takes nothing: it is only for bad days
        found.parent.mkdir(parents=True, exist_ok=True)
        replace_file(found, word.encode())
    return word


def _kept_word(found: Path) -> str | None:
    try:
        word = found.read_text(encoding="utf-8")
        return word if read_invite(word).papers is None else None
    except (OSError, UnicodeDecodeError, InviteError):
        return None


def _word_at(place: HubPlace) -> str:
    """Raises as ``word_of``."""
    repository = repository_to_read(place)
    there = There(repository, repository.head())
    try:
        if (content := there.read(RUN_ON_HUB, MOST_WORD_BYTES)) is None:
            raise InviteError(f"{place} does not say where its run is", hint=ASK)
        told = json.loads(content)
        version, word, fingerprint = told["format"], str(told["invite"]), str(told["fingerprint"])
    except (ValueError, KeyError, TypeError, RecursionError, CorruptState) as error:
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
    check_is_new(target)
    place = place_of(source)
    if place is None:
        epoch = export(checkpoint_in(Path(source)), target)
    else:
        unfinished = target.with_name(f".{target.name}.unfinished-from-hub")
        epoch = export(_brought(place, unfinished), target)
        shutil.rmtree(unfinished, ignore_errors=True)
    announce(f"epoch {epoch} of {source} is in {target}, for transformers' from_pretrained")


def _brought(place: HubPlace, unfinished: Path) -> Path:
    """What is exported of the checkpoint at ``place``; what has arrived stays in ``unfinished`` for the next attempt.

    Raises:
        StateError: it is not whole, cannot be had, or the disk does not take it.
    """
    announce(f"looking for the checkpoint of {place} on the Hub ...")
    repository = repository_to_read(place)
    try:
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        return patiently(lambda: fetch_checkpoint(repository, unfinished, without=NOT_EXPORTED))
    except OSError as error:
        raise not_written(unfinished, error) from error
    except HubBusy as error:
        if not unfinished.exists():
            raise
        hint = f"{error.hint}; what has arrived is in {unfinished}, and the same command goes on from there"
        raise HubBusy(error.message, hint=hint, retry_after_s=error.retry_after_s) from None
    finally:
        with suppress(OSError):  # only if nothing is in it
            unfinished.rmdir()


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
