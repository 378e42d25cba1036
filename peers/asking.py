"""The first time that a machine is to take part in a run: its owner reads what that means, and is asked."""

import asyncio

from collab.config import VcAsgd
from collab.net.startup import Started
from collab.swarm.board import ProgressBoard
from collab.swarm.bundle import Bundle
from collab.types import Reachability, Role
from peers.consent import Load, can_ask, has_agreed, load_of, note_agreed, says_yes, terms
from peers.join_options import JoinOptions
from peers.process import announce
from peers.screen import Style


async def is_welcome(started: Started, bundle: Bundle, options: JoinOptions, stop: asyncio.Event) -> bool:
    """Whether this machine's owner agrees; shown once a run, asked where somebody can answer.

    Raises:
        ConfigError, DataError: the run's task cannot be built here.
    """
    if has_agreed(options.data_dir, bundle.fingerprint):
        return True
    if not options.as_json and options.style is not Style.QUIET:
        announce(terms(bundle.run, await forecast(started, bundle, options)))
    if not (options.has_agreed or options.as_json) and can_ask():
        announce("Take part? y or n, then Enter (--yes: do not ask)")
        if not await says_yes(stop):
            announce("not joined; nothing was computed, and nothing is kept but this peer's key")
            return False
    note_agreed(options.data_dir, bundle.fingerprint)
    return True


async def forecast(started: Started, bundle: Bundle, options: JoinOptions) -> Load | None:
    """What taking part asks of the line; None: nobody can say."""
    if options.role is not Role.TRAINER:
        return None
    from peers.machine import count_elements

    num_elements = await started.ports.compute.run(lambda: count_elements(bundle, options.allowed_modules))
    view = await ProgressBoard(started.ports, started.identity, bundle.fingerprint).refresh()
    run, step_s = bundle.run, float("inf")
    if not isinstance(run.strategy, VcAsgd):
        _, step_s = view.step_ahead(run.strategy.target_batch_size, started.ports.clock.now())
    can_reduce = started.verdict.reach is Reachability.DIRECT
    return load_of(run, num_elements, others=max(view.num_trainers, 1), can_reduce=can_reduce, step_s=step_s)
