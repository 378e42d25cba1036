"""``collab-peer pause`` and ``resume``: the owner's word to the peers on this machine."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

from collab.checkpoints.disk_errors import FULL
from collab.errors import ConfigError
from peers.disk_remedy import remedy
from peers.guest import Condition, Told, condition_of
from peers.pausable import is_there, noted_pausable
from peers.places import DataDir, data_home, is_in_use, never_pauses
from peers.process import announce

ANSWER_S, LOOK_S = 10.0, 0.1
"""A peer looks twice a second, and a microbatch, or a batch of an evaluation, is seen to its end."""
FREE = (Condition.STARTING, Condition.HANDING_IN, Condition.PAUSED)
NEVER = "a backbone runs there, and never pauses"


async def pause(data_dir: Path | None) -> None:
    """Ask the peers on this machine to free their devices, and wait until they have.

    Args:
        data_dir: of one peer; None: all of this user's that run and can pause.

    Raises:
        ConfigError: no such peer is there, or some have not answered, of which each is named.
    """
    if data_dir is None:
        places = _that_run()
    elif is_in_use(_there(data_dir)) and never_pauses(data_dir):
        raise ConfigError(f"{data_dir}: {NEVER}", hint="Ctrl+C, or SIGTERM, ends it")
    else:
        places = [DataDir(data_dir)]
    await _each(places, _paused)


async def resume(data_dir: Path | None) -> None:
    """Let the peers on this machine work again.

    Args:
        data_dir: of one peer; None: all of this user's that were paused.

    Raises:
        ConfigError: no peer was paused, or the word cannot be given to some, of which each is named.
    """
    found = _all() if data_dir is None else [DataDir(_there(data_dir))]
    places = [place for place in found if place.pause_mark.exists()]
    if not places:
        where = f"in {data_dir}" if data_dir is not None else "on this machine"
        raise ConfigError(f"no peer {where} was paused", hint="'collab-peer pause' pauses those that run")
    await _each(places, _resumed)


async def _each(places: Sequence[DataDir], ask: Callable[[DataDir], Awaitable[str]]) -> None:
    """All at once, and each is told of in order; those that cannot be asked or do not answer together at the end."""
    answers = await asyncio.gather(*(ask(place) for place in places), return_exceptions=True)
    failed = list[ConfigError]()
    for place, answer in zip(places, answers, strict=True):
        if isinstance(answer, ConfigError):
            failed.append(answer)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            announce(f"{place.path}: {answer}")
    if failed:
        hints = dict.fromkeys(error.hint for error in failed)
        raise ConfigError("\n".join(error.message for error in failed), hint="\n  -> ".join(hints))


async def _paused(place: DataDir) -> str:
    """
    Raises:
        ConfigError: its mark cannot be made, or it does not answer in time.
    """
    try:
        place.pause_mark.touch()
    except OSError as error:
        raise _unwritable(place, error) from error
    if not is_in_use(place.path):
        return "no peer runs there; it will begin paused. 'collab-peer resume' takes that back"
    told = await _answer(place, *FREE)
    if told is None:
        raise ConfigError(
            f"{place.path}: the device is not free after {ANSWER_S:.0f} s",
            hint="it stops after the microbatch that is under way, the batch of an evaluation, or the document that is "
            "read; a smaller --microbatch-size ends sooner, and Ctrl+C where it runs ends it at once",
        )
    match told.condition:
        case Condition.HANDING_IN:
            return "paused: its device is free; what it has computed goes into the swarm's next step, then it leaves"
        case Condition.STARTING:
            return "paused: its device is free; nothing was on it yet"
    return "paused: its device is free, and it is not in the swarm"


async def _resumed(place: DataDir) -> str:
    """
    Raises:
        ConfigError: its mark cannot be removed.
    """
    try:
        place.pause_mark.unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(place, error) from error
    if not is_in_use(place.path):
        return "no peer runs there; it works when it is started"
    if never_pauses(place.path):
        return NEVER
    if await _answer(place, Condition.WORKING):
        return "works again"
    told = condition_of(place)
    if told is not None and told.condition is Condition.PAUSED:
        return ": ".join(filter(None, ("still paused", told.reason)))
    if told is not None and told.condition is Condition.STARTING:
        return "works again as soon as it has left off what it was at, and is connected anew"
    return "works again as soon as what it had computed is in a step"


def _unwritable(place: DataDir, error: OSError) -> ConfigError:
    hint = "the user whose peer it is can pause it, and whoever may write to its directory"
    if error.errno in FULL:
        hint = remedy(place.pause_mark, error)
    return ConfigError(f"cannot write {place.pause_mark}: {error.strerror}", hint=hint)


def _there(data_dir: Path) -> Path:
    if not data_dir.is_dir():
        raise ConfigError(f"no peer keeps its things in {data_dir}", hint="name the --data-dir of its 'join'")
    return data_dir


def _that_run() -> list[DataDir]:
    """Whoever runs and pauses; the others are named."""
    running = [place for place in _all() if is_in_use(place.path)]
    for place in running:
        if never_pauses(place.path):
            announce(f"{place.path}: {NEVER}")
    places = [place for place in running if not never_pauses(place.path)]
    if not places:
        raise ConfigError(
            f"no peer of yours that pauses runs on this machine (looked in {data_home()}, and where others were)",
            hint="if one runs as another user or in a container, name its --data-dir here, too",
        )
    return places


def _all() -> list[DataDir]:
    """This user's peers that run or ran: those that were noted, and those of earlier versions in the usual place."""
    usual = [path.resolve() for path in data_home().glob("*/peer-*") if is_there(path)]
    return [DataDir(path) for path in sorted({*usual, *noted_pausable()})]


async def _answer(place: DataDir, *wanted: Condition) -> Told | None:
    """What a running peer says, once it is what was asked for; None: it does not say that in time.

    What it said before is taken away, and only who lives says it again: after a ``kill -9`` there may be the last word
    of a process that is gone beside a new one that has not spoken yet.
    """
    with suppress(OSError):
        place.condition.unlink()
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + ANSWER_S
    while True:
        told = condition_of(place)
        if told is not None and told.condition in wanted:
            return told
        if loop.time() >= give_up_s:
            return None
        await asyncio.sleep(LOOK_S)
