"""``collab-peer pause`` and ``resume``: the owner's word to the peers on this machine."""

import asyncio
from pathlib import Path

from collab.errors import ConfigError
from peers.guest import Condition, Told, condition_of
from peers.places import DataDir, data_home, is_in_use
from peers.process import announce

ANSWER_S, LOOK_S = 10.0, 0.1
"""A peer looks twice a second, and a microbatch is seen to its end."""
FREE = (Condition.STARTING, Condition.HANDING_IN, Condition.PAUSED)


async def pause(data_dir: Path | None) -> None:
    """Ask the peers on this machine to free their devices, and wait until they have.

    Args:
        data_dir: of one peer; None: all of this user's that run.

    Raises:
        ConfigError: no peer is there, or one has not answered.
    """
    places = _places(data_dir)
    for place in places:
        try:
            place.pause_mark.touch()
        except OSError as error:
            raise ConfigError(f"cannot write {place.pause_mark}: {error.strerror}") from error
    for place in places:
        if not is_in_use(place.path):
            announce(f"{place.path}: no peer runs there; it will begin paused. 'collab-peer resume' takes that back")
        elif told := await _answer(place, *FREE):
            announce(f"{place.path}: {_in_words(told)}")
        else:
            raise ConfigError(
                f"{place.path}: the device is not free after {ANSWER_S:.0f} s",
                hint="it stops after the microbatch that is under way; a smaller --microbatch-size ends sooner, and "
                "Ctrl+C where it runs ends it at once. A backbone never pauses",
            )


async def resume(data_dir: Path | None) -> None:
    """Let the peers on this machine work again.

    Args:
        data_dir: of one peer; None: all of this user's that were paused.

    Raises:
        ConfigError: no peer was paused.
    """
    places = [place for place in _places(data_dir, is_marked=True) if place.pause_mark.exists()]
    if not places:
        where = f"in {data_dir}" if data_dir is not None else "on this machine"
        raise ConfigError(f"no peer {where} was paused", hint="'collab-peer pause' pauses those that run")
    for place in places:
        place.pause_mark.unlink(missing_ok=True)
    for place in places:
        if not is_in_use(place.path):
            announce(f"{place.path}: no peer runs there; it works when it is started")
            continue
        if await _answer(place, Condition.WORKING):
            announce(f"{place.path}: works again")
        elif (told := condition_of(place)) is not None and told.condition is Condition.PAUSED:
            announce(f"{place.path}: still paused: {told.reason}")
        elif told is not None and told.condition is Condition.STARTING:
            announce(f"{place.path}: works again as soon as it has left off what it was at, and is connected anew")
        else:
            announce(f"{place.path}: works again as soon as what it had computed is in a step")


def _places(data_dir: Path | None, *, is_marked: bool = False) -> list[DataDir]:
    """Whose directories are meant."""
    if data_dir is not None:
        if not data_dir.is_dir():
            raise ConfigError(f"no peer keeps its things in {data_dir}", hint="name the --data-dir of its 'join'")
        return [DataDir(data_dir)]
    found = [DataDir(path) for path in sorted(data_home().glob("*/peer-*")) if path.is_dir()]
    wanted = [place for place in found if is_in_use(place.path) or (is_marked and place.pause_mark.exists())]
    if not wanted and not is_marked:
        raise ConfigError(
            f"no peer of yours runs on this machine (looked in {data_home()})",
            hint="if it was started with --data-dir, name that here, too",
        )
    return wanted


async def _answer(place: DataDir, *wanted: Condition) -> Told | None:
    """What a running peer says, once it is what was asked for; None: it does not say that in time."""
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + ANSWER_S
    while True:
        told = condition_of(place)
        if told is not None and told.condition in wanted:
            return told
        if loop.time() >= give_up_s:
            return None
        await asyncio.sleep(LOOK_S)


def _in_words(told: Told) -> str:
    if told.condition is Condition.HANDING_IN:
        return "paused: its device is free; what it has computed goes into the swarm's next step, then it leaves"
    if told.condition is Condition.STARTING:
        return "paused: its device is free; nothing was on it yet"
    return "paused: its device is free, and it is not in the swarm"
