"""``collab-peer join``: a volunteer's process, one session after the other."""

import asyncio
import gc
import json
import os
import sys
import time
from functools import partial
from typing import Any

from collab.concurrency import run_until_first
from collab.errors import (
    AccessDenied,
    BootstrapFailed,
    CollabError,
    DataUnreachable,
    DeviceFull,
    NetworkError,
    VersionMismatch,
)
from collab.metrics.guest_records import Paused
from collab.training.pausing import release_gpu
from peers.anew import HandedOn
from peers.asking import declined, is_to_ask
from peers.event_words import count
from peers.guest import Guest, Wait
from peers.join_options import JoinOptions as JoinOptions, Relay as Relay
from peers.occasions import occasions
from peers.priority import give_way
from peers.process import announce, leaves
from peers.role_options import check_role
from peers.screen import JsonScreen
from peers.session import Given, Session
from peers.traffic import MonthlyTraffic
from peers.wiring import invite_from

AGAIN_S = 30.0
"""Between two tries to come back after a pause, while what stands against it may pass."""
PASSING = (NetworkError, DataUnreachable, DeviceFull)
LASTING = (AccessDenied, VersionMismatch)
"""Network errors that are as before until a person does something, here or at the organiser's."""


async def join(options: JoinOptions, stop: asyncio.Event) -> HandedOn | None:
    """Join and work until stopped or finished, whenever the machine's owner lets it; prints a summary at the end.

    Returns:
        What is to be handed on to a new program in this process, so that nothing of this one is left on a GPU while it
        is paused; None: it is done.

    Raises:
        Declined: the machine's owner does not want it to take part.
        CollabError: it cannot take part, or not any more. What it has given is summed up all the same.
    """
    check_role(options)
    options.rules.check()
    if options.rules.is_modest:
        give_way()
    given = Given.of(options.role, options.life_before)
    try:
        to_hand_on = await _live(options, stop, given)
    except (CollabError, ExceptionGroup):
        if given.counts:
            _summarise(options, given.summary)
        raise
    if to_hand_on is not None:
        return to_hand_on
    if given.has_declined:
        raise declined(options.data_dir)
    _summarise(options, given.summary)
    return None


async def _live(options: JoinOptions, stop: asyncio.Event, given: Given) -> HandedOn | None:
    """One session after the other; see ``join``."""
    invite = invite_from(options.invite)
    traffic = MonthlyTraffic(options.data_dir.traffic)
    rules = occasions(options.rules, options.data_dir, traffic)
    guest = Guest(options.data_dir, rules, traffic, partial(_tell_wait, options))
    if options.life_before is not None:
        guest.carry_on(options.life_before.asked_s, options.life_before.kind)
        traffic.carry_on(options.life_before.traffic)

    async def may_begin() -> bool:
        if not is_to_ask(options, invite.fingerprint):
            return await guest.may_begin(stop)
        guest.begin()  # whatever the hour: when the machine is to work, nobody may be there to answer
        return not stop.is_set()

    async with guest.stay():
        while not given.is_over and await may_begin():
            options.say(f"joining {invite.run_id} ...")
            session = Session(options=options, invite=invite, guest=guest, stop=stop, given=given)
            try:
                has_lived = await _lived(session, is_first=not guest.paused_s)
            finally:
                guest.end_session()
            if has_lived and (given.has_declined or not guest.pause.wanted.is_set()):
                break  # where somebody said no, PyTorch may be half loaded
            free_memory()
            if given.had_gpu and guest.waits and not stop.is_set():
                return _to_hand_on(options, given, guest.waits, traffic)
            if not has_lived:
                await run_until_first(stop.wait(), asyncio.sleep(AGAIN_S))
    return None


def _to_hand_on(options: JoinOptions, given: Given, waits: tuple[float, int], traffic: MonthlyTraffic) -> HandedOn:
    place = options.data_dir
    return HandedOn(
        invite=options.invite,
        data_dir=str(place.path.absolute()),
        lock=os.dup(place.lock) if place.lock >= 0 else -1,
        asked_s=waits[0],
        kind=waits[1],
        summary=given.summary,
        counts=dict(given.counts),
        tally=given.tally.sums,
        traffic=traffic.months,
    )


def _tell_wait(options: JoinOptions, wait: Wait) -> None:
    """Who wants to hear of problems only is told that the process has done nothing at all so far."""
    if options.as_json and not wait.is_known:
        JsonScreen(sys.stdout).observe(Paused(at_s=time.time(), reason=wait.reason, seconds=0.0, samples=0))
    tell = announce if wait.is_start else options.say
    tell(f"paused: {wait.reason}")


async def _lived(session: Session, *, is_first: bool) -> bool:
    """Whether all was there that it needs. Who comes back from a pause of hours may find its own line, the run or the
    data's server down, and another program on the device or the port.

    Raises:
        CollabError: see ``Session.live``; of the first session also what may pass.
    """
    try:
        await session.live()
    except* CollabError as errors:
        problems = leaves(errors)
        if is_first or not all(_may_pass(problem) for problem in problems):
            raise
        error = problems[0]
        is_alone = isinstance(error, BootstrapFailed)
        what = f"nobody of the run answers ({error.message})" if is_alone else error.message
        hint = f"\n  -> if that does not help: {error.hint}" if error.hint else ""
        announce(f"{what}; trying again in {AGAIN_S:.0f} s{hint}")
    else:
        return True
    return False


def _may_pass(error: CollabError) -> bool:
    return isinstance(error, PASSING) and not isinstance(error, LASTING)


def free_memory() -> None:
    """Of the session that has ended, whose objects ``settle_heap`` has put out of the garbage collector's sight."""
    gc.unfreeze()
    gc.collect()
    release_gpu()


def _summarise(options: JoinOptions, summary: dict[str, Any]) -> None:
    if options.as_json:
        print(json.dumps({"event": "Summary", **summary}), flush=True)  # noqa: T201
    elif "samples" in summary:
        options.say(
            f"left at epoch {summary['epoch']}: you contributed {count(summary['samples'], 'sample')} "
            f"to {count(summary['epochs_contributed'], 'step')}. Thank you!"
        )
    elif "rounds" in summary:
        options.say(f"left after helping in {count(summary['rounds'], 'round')}. Thank you!")
