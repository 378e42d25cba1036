"""The first time that a machine is to take part in a run: its owner reads what that means, and is asked."""

import asyncio

from collab.config import VcAsgd
from collab.net.startup import Started
from collab.swarm.board import ProgressBoard
from collab.swarm.bundle import Bundle
from collab.swarm.progress import SwarmView
from collab.swarm.statutes import Statutes
from collab.types import Reachability, Role
from peers.consent import (
    Load,
    can_ask,
    download_words,
    has_agreed,
    load_of,
    note_agreed,
    row,
    says_yes,
    terms,
    traffic_words,
)
from peers.join_options import JoinOptions
from peers.ordered import learn_orders
from peers.places import DataDir
from peers.process import Declined, announce
from peers.screen import Style


def is_to_ask(options: JoinOptions, fingerprint: str) -> bool:
    """Whether this machine's owner has not said what they think of a run, and sits there to do so."""
    has_said = options.has_agreed or options.as_json or has_agreed(options.data_dir, fingerprint)
    return not has_said and can_ask()


def declined(place: DataDir) -> Declined:
    """What a no ends in; says what is left in the directory by then."""
    kept = ", ".join(sorted(path.name for path in place.path.iterdir() if not path.name.startswith(".")))
    return Declined(f"not joined, and nothing was computed; {place.path} holds {kept or 'nothing'}")


async def is_welcome(started: Started, bundle: Bundle, options: JoinOptions, stop: asyncio.Event) -> bool:
    """Whether this machine's owner agrees; shown once a run, asked where somebody can answer.

    Whoever is asked is shown what about, also where they want to hear of problems only.

    The traffic is forecast while they read: how long the vector is only the model tells, and to describe one takes
    PyTorch, which is not loaded yet.

    Raises:
        ConfigError, DataError: the run's task cannot be built here.
    """
    if has_agreed(options.data_dir, bundle.fingerprint):
        return True
    is_yes, asks = True, is_to_ask(options, bundle.fingerprint)
    async with asyncio.TaskGroup() as tasks:
        if asks or not (options.as_json or options.style is Style.QUIET):
            announce(terms(bundle.run, options.role))
            telling = tasks.create_task(_tell_traffic(started, bundle, options))
        else:
            telling = None
        if asks:
            announce("Take part? y or n, then Enter (--yes: do not ask)")
            is_yes = await says_yes(stop)
        if telling is not None and not is_yes:
            telling.cancel()
    if is_yes:
        note_agreed(options.data_dir, bundle.fingerprint)
    return is_yes


async def _tell_traffic(started: Started, bundle: Bundle, options: JoinOptions) -> None:
    words = traffic_words(await forecast(started, bundle, options))
    downloads = download_words(bundle.run) if options.role is Role.TRAINER else ""
    announce(row("traffic", words + downloads))


async def forecast(started: Started, bundle: Bundle, options: JoinOptions) -> Load | None:
    """What taking part asks of the line; None: nobody can say."""
    if options.role is not Role.TRAINER:
        return None

    def num_elements() -> int:
        from peers.machine import count_elements

        return count_elements(bundle, options.allowed_modules)

    length, now = await started.ports.compute.run(num_elements), started.ports.clock.now()
    statutes = Statutes(started.ports, bundle)
    await learn_orders(started, statutes.mandate, SwarmView((), now))
    view = await ProgressBoard(started.ports, started.identity, bundle.fingerprint, statutes).refresh()
    run, step_s = bundle.run, float("inf")
    if not isinstance(run.strategy, VcAsgd):
        epoch, _ = view.consensus() or (0, "")
        _, step_s = view.step_ahead(statutes.mandate.target_batch_size(epoch), now)
    can_reduce = started.verdict.reach is Reachability.DIRECT
    return load_of(run, length, others=max(view.num_trainers, 1), can_reduce=can_reduce, step_s=step_s)
