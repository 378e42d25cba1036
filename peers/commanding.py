"""``collab-peer ban``, ``pardon``, ``amend``, ``rollback``, ``end``: what an organiser orders while the run goes on."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from collab.checkpoints.rolled_back import checkpoints_to_go_back_to, hold
from collab.config import VcAsgd
from collab.errors import ConfigError, CorruptState
from collab.swarm.crowd import notice_s
from collab.swarm.identity import load_or_create_identity
from collab.swarm.orders import OrderBook
from collab.swarm.statements import FOREVER, Amend, Ban, End, Pardon, Statement
from collab.version import VERSION
from peers.inviting import invited_for, users_of
from peers.ordered import plain
from peers.owner import Estate, Session, open_to_order
from peers.places import DataDir
from peers.process import announce
from peers.whom import find_bans, find_keys

DAY_S = 86400.0
MOST_DAYS = 36_500
"""Of a ban that ends. Peers of earlier versions know no year after 9999, and end where they are to name one."""
NOTICE_EPOCHS = 10
"""Before an amendment counts, if the organiser names no epoch: orders take seconds to be heard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What an amendment changes; None: not this."""

    learning_rate: float | None = None
    target_batch_size: int | None = None
    minimum_version: str | None = None


async def ban(directory: Path, who: str, *, reason: str, days: float | None) -> None:
    """Nobody deals with a peer, or an invited person, any more.

    Args:
        who: a peer by id or name, or a person of the list of invites.
        days: None: for good.

    Raises:
        ConfigError: nobody is meant, or more than one; or the backbone of this very directory; or it is not to end in
            anybody's life.
    """
    if days is not None and days > MOST_DAYS:
        raise ConfigError(f"--days {days:g}: expected {MOST_DAYS} at most", hint="a ban without --days never ends")
    async with open_to_order(directory) as session:
        until_s = FOREVER if days is None else session.now() + days * DAY_S
        for one, name in _whom(session, who.strip()).items():
            order = Ban(who=one, reason=reason, until_s=until_s, name=name or None)
            await _say(session, order, f"{plain(name) or 'a peer'} ({one}) is banned: {reason}")


async def pardon(directory: Path, who: str) -> None:
    """The bans of a peer or person are void.

    Args:
        who: somebody who is banned, here or not, by id or name, or a person of the list of invites.

    Raises:
        ConfigError: nobody who is banned is meant, or more than one.
    """
    async with open_to_order(directory) as session:
        bans = [ban for ban in session.mandate.book.bans().values() if ban.holds(session.now())]
        who = who.strip()
        for ban in find_bans(bans, invited_for(directory, who), session.view, who):
            await _say(session, Pardon(who=ban.who), f"{plain(ban.name or who)} ({ban.who}) may take part again")


async def amend(directory: Path, change: Change, at_epoch: int | None) -> None:
    """Change the run from an epoch on; None: soon. A minimum version that was too high is lowered from its own epoch
    on: whoever has stopped for it, or will, would never reach a later one.

    Raises:
        ConfigError: the epoch is past, or nothing changes; this machine is too old itself.
    """
    _check_version(change)
    run = Estate.at(directory).bundle.run
    if change.target_batch_size is not None and isinstance(run.strategy, VcAsgd):
        text = "--target-batch: in a run with vc_asgd there is no batch, each push of a unit of work is a step"
        raise ConfigError(text, hint="--learning-rate can be changed")
    async with open_to_order(directory) as session:
        await session.find_trainers()
        present, corrected = session.epoch(), _ask_too_much(change, session.mandate.book)
        first = min(corrected, default=present + NOTICE_EPOCHS) if at_epoch is None else at_epoch
        if first <= present and not corrected:
            raise ConfigError(f"the swarm has reached epoch {present} already, not {first}", hint="name a later epoch")
        order = Amend(
            from_epoch=first,
            learning_rate=change.learning_rate,
            target_batch_size=change.target_batch_size,
            minimum_version=change.minimum_version,
        )
        await _say(session, order, f"from epoch {first} on (it is {present}): {_words(change)}")


def _check_version(change: Change) -> None:
    if change.minimum_version is None:
        return
    text = f"--minimum-version {change.minimum_version}"
    try:
        is_newer = Version(change.minimum_version) > Version(VERSION)
    except InvalidVersion as error:
        raise ConfigError(f"{text} is no version", hint=f"this machine has {VERSION}") from error
    if is_newer:
        hint = "every peer would stop; upgrade this machine and its backbone first, or name a version that there is"
        raise ConfigError(f"{text}: this machine has {VERSION} itself", hint=hint)


def _ask_too_much(change: Change, book: OrderBook) -> list[int]:
    """First epochs of the amendments for whose version alone this one is given: they ask for a later one than it does.

    From the first of them on it counts instead, past or not: it changes no step.
    """
    if change.minimum_version is None or change.learning_rate is not None or change.target_batch_size is not None:
        return []
    asked = {what.from_epoch: book.terms_at(what.from_epoch).minimum_version for what in book.amendments()}
    needed = Version(change.minimum_version)
    return [epoch for epoch, version in asked.items() if version is not None and Version(version) > needed]


async def rollback(directory: Path, epoch: int) -> None:
    """Go back to a checkpoint of the backbone that serves this directory, or to one that the last rollback set aside.

    The backbone trains on meanwhile, and deletes old checkpoints: this one is held before anybody hears of the order.

    Raises:
        ConfigError: there is no such checkpoint, or it is not whole.
        CheckpointFailed: it cannot be held.
    """
    root = directory / "backbone" / "checkpoints"
    async with open_to_order(directory) as session:
        found = checkpoints_to_go_back_to(root, session.mandate.era, session.estate.bundle.fingerprint)
        listing = ", ".join(map(str, sorted(found))) or "none at all"
        if epoch not in found:
            raise ConfigError(f"there is no checkpoint of epoch {epoch} in {root}", hint=f"there are: {listing}")
        path, order = found[epoch]
        words = f"everybody goes back to epoch {epoch} (it is {session.epoch()}); later checkpoints are set aside"
        for void in session.mandate.book.void_with(order):
            words += f"; void: from epoch {void.from_epoch} on {_words(void)}"
        for void in session.mandate.book.void_before(order) if path.parent != root else []:
            words += f"; still void since the last rollback: from epoch {void.from_epoch} on {_words(void)}"

        def hold_it(book: OrderBook) -> None:
            try:
                hold(root, path, order, book.mark)
            except CorruptState as error:
                raise ConfigError(error.message, hint=f"nobody has heard of this; there were: {listing}") from error

        _tell(await session.say(order, hold_it), words)


async def end(directory: Path, at_epoch: int | None) -> None:
    """Everybody saves and goes home at an epoch; None: as soon as everybody can have heard of it.

    Raises:
        ConfigError: the epoch is past.
    """
    async with open_to_order(directory) as session:
        await session.find_trainers()
        notice = await session.epochs_in(notice_s(session.trainers))
        present = session.epoch()
        last = present + notice if at_epoch is None else at_epoch
        if last <= present:
            raise ConfigError(f"the swarm has reached epoch {present} already, not {last}", hint="name a later epoch")
        words = f"the run ends at epoch {last} (it is {present})"
        if last < present + notice:
            words += "; that is a few seconds off: if the swarm has passed it when it hears, it ends with the next step"
        await _say(session, End(at_epoch=last), words)


def _words(change: Change | Amend) -> str:
    named = {
        "learning rate": change.learning_rate,
        "target batch": change.target_batch_size,
        "minimum version": change.minimum_version,
    }
    return ", ".join(f"{name} {value}" for name, value in named.items() if value is not None)


def _whom(session: Session, who: str) -> dict[str, str]:
    """As ``find_keys``; never the backbone of this directory, without which its owner reaches nobody."""
    estate = session.estate
    people, users = invited_for(estate.directory, who), users_of(session.view, estate.bundle)
    keys, own = find_keys(people, users, session.view, who), _own_backbone(estate.directory)
    if own in keys:
        hint = "it stops with Ctrl+C where it runs; the run ends with: collab-peer end DIR"
        raise ConfigError(f"{own} is the backbone of this directory", hint=hint)
    return keys


def _own_backbone(directory: Path) -> str:
    """Empty: it has not served yet, or its key cannot be read."""
    path = DataDir(directory / "backbone").identity
    with suppress(ConfigError):
        return load_or_create_identity(path).peer_id if path.is_file() else ""
    return ""


async def _say(session: Session, what: Statement, words: str) -> None:
    _tell(await session.say(what), words)


def _tell(taken: bool, words: str) -> None:
    told = "the swarm knows" if taken else "no backbone answers: it is kept, and this directory's backbone takes it"
    announce(f"{words}; {told}")
