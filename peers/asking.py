"""The first time that a machine is to take part in a run: its owner reads what that means, and is asked."""

import asyncio
import math
import statistics

from collab.averaging.agreement import CommitRecord
from collab.averaging.timeouts import FIRST, MeasuredTimeouts
from collab.averaging.verdicts import ask_maker
from collab.config import VcAsgd
from collab.net.startup import Started
from collab.swarm.board import ProgressBoard
from collab.swarm.bundle import Bundle
from collab.swarm.duties import Duty
from collab.swarm.progress import SwarmView
from collab.swarm.records import PeerState
from collab.swarm.statutes import Statutes
from collab.types import Lineage, PeerId, Reachability, Role
from peers.consent import (
    Load,
    Others,
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

ASKED = 5
"""Peers, one after the other, for the last round."""


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
    if options.role is Role.BACKBONE:
        return None
    run, now, me = bundle.run, started.ports.clock.now(), started.ports.transport.peer_id
    statutes = Statutes(started.ports, bundle)
    await learn_orders(started, statutes.mandate, SwarmView((), now))
    view = await ProgressBoard(started.ports, started.identity, bundle.fingerprint, statutes).refresh()
    if options.role is Role.TRAINER:

        def num_elements() -> int:
            from peers.machine import count_elements

            return count_elements(bundle, options.allowed_modules)

        length = await started.ports.compute.run(num_elements)
    else:
        length = await _length_of_last_round(started, view)
    if not length:
        return None
    if isinstance(run.strategy, VcAsgd):
        step_s = usual_unit_s(view)
    else:
        epoch, _ = view.consensus() or (0, "")
        _, step_s = view.step_ahead(statutes.mandate.target_batch_size(epoch), now)
    can_reduce = started.verdict.reach is Reachability.DIRECT
    others = others_in(view, me, can_reduce=can_reduce)
    return load_of(run, length, others, role=options.role, can_reduce=can_reduce, step_s=step_s)


async def _length_of_last_round(started: Started, view: SwarmView) -> int:
    """Of what was averaged in it, as its record says, which the history is named after; 0: nobody says. Who only helps
    has no model, and needs no PyTorch.
    """
    _, lineage = view.consensus() or (0, Lineage(""))
    timeouts = MeasuredTimeouts(started.ports.clock.monotonic, FIRST)
    for record in [*view.backbones(), *view.all_trainers()][:ASKED] if lineage else ():
        if record.can_be_dialled and record.peer != started.ports.transport.peer_id:
            made = await ask_maker(started.ports.transport, timeouts, record.peer, lineage)
            if isinstance(made, CommitRecord):
                return made.num_elements
    return 0


def others_in(view: SwarmView, me: PeerId, *, can_reduce: bool) -> Others:
    """Of a crowd as many in a hundred can be dialled as of those whose records are known.

    Args:
        can_reduce: whether this machine can: while nobody else trains, the first other one is taken for one like it.
    """
    known = [record for record in view.all_trainers() if record.peer != me]
    dialled = sum(record.can_be_dialled for record in known)
    if not known:
        dialled, trainers = int(can_reduce), 1
    elif view.crowd:
        trainers = view.num_trainers
        dialled = round(dialled / len(known) * trainers)
    else:
        trainers = len(known)
    helpers = [one for one in view.helpers() if one.peer != me and one.state is PeerState.SERVING]
    return Others(
        dialled=dialled, dialling=trainers - dialled, helpers=sum(one.does(Duty.REDUCER) for one in helpers)
    )


def usual_unit_s(view: SwarmView) -> float:
    """Seconds of computing for a unit of ``vc_asgd``, as those say who have pushed some, the middle one; infinite:
    nobody has.
    """
    told = [
        record.total_samples / record.epochs_contributed / record.samples_per_s
        for record in view.all_trainers()
        if record.epochs_contributed > 0 and record.total_samples > 0 and record.samples_per_s > 0
    ]
    return statistics.median(told) if told else math.inf
