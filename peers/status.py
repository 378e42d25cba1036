"""``collab-peer status``: the swarm at a glance."""

import asyncio
import json
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

from collab.config import VcAsgd
from collab.data.blocks import BlockPlan
from collab.data.coverage import Coverage
from collab.data.coverage_exchange import ask_for_coverage, merge
from collab.data.ledger import Ledger
from collab.errors import ConfigError, NetworkError
from collab.metrics.refusals import Refused
from collab.net.base import Transport
from collab.net.errands import Errands
from collab.net.refusal_report import fetch_report
from collab.swarm.board import ProgressBoard
from collab.swarm.bundle import Bundle
from collab.swarm.mandate import Mandate
from collab.swarm.progress import SwarmView
from collab.swarm.statutes import Statutes
from collab.types import PeerId, Reachability, Role
from peers.event_words import pace_words, trained_words
from peers.invites import is_invite
from peers.joining import Relay
from peers.ordered import learn_orders, order_lines, orders_report, plain
from peers.outdated import is_at_least
from peers.owner import Estate, open_session
from peers.passing_key import guest_dir
from peers.summary import epoch_of, era_of, newest_evaluation, swarm_loss, switched_off, told
from peers.wiring import Reach, invite_from, start_from_invite

MAX_ASKED = 64
"""Peers that are asked whom they refused, helpers first; the others' word is not missed."""
MAX_LINES = 20
"""Of refusals, for people; programs get all."""


async def _look_as_owner(directory: Path) -> dict[str, Any]:
    """
    Raises:
        ConfigError: nobody owns a run in that directory, or no backbone of it answers.
    """
    async with open_session(Estate.at(directory)) as session:
        if session.started is None:
            hint = f"start it: collab-peer backbone {directory}"
            raise ConfigError(f"no backbone of {directory} answers", hint=hint)
        return await _look(session.started.ports.transport, session.estate.bundle, session.view, session.mandate)


async def _look_as_guest(invite_text: str) -> dict[str, Any]:
    """As one that dials and is never dialled."""
    invite = invite_from(invite_text)
    with guest_dir(invite.run_id) as place:
        reach = Reach(asked_for=Reachability.CLIENT)
        async with start_from_invite(invite, place, reach, Relay(), is_guest=True) as (started, bundle):
            statutes = Statutes(started.ports, bundle)
            board = ProgressBoard(started.ports, started.identity, bundle.fingerprint, statutes)
            is_told = await learn_orders(started, statutes.mandate, await board.refresh())
            view = await board.refresh()  # without those whom the orders ban
            return await _look(started.ports.transport, bundle, view, statutes.mandate if is_told else None)


async def _look(transport: Transport, bundle: Bundle, view: SwarmView, mandate: Mandate | None) -> dict[str, Any]:
    """
    Args:
        mandate: None: nobody has told us of the organiser's orders.
    """
    refusals = await ask_for_refusals(transport, view)
    covered = await ask_how_far(transport, bundle, view)
    is_one_history = not isinstance(bundle.run.strategy, VcAsgd)
    report = status_report(bundle.run.run_id, view, refusals, is_one_history=is_one_history)
    orders = orders_report(mandate, bundle.run, report["epoch"], view.at_s) if mandate is not None else None
    return report | {"data": covered, "orders": orders}


async def ask_for_refusals(transport: Transport, view: SwarmView) -> dict[PeerId, list[Refused]]:
    """Whom those peers refused that can be dialled and answer."""
    helpers = {record.peer for record in view.helpers()}
    able = [record.peer for record in view.records if record.can_be_dialled]
    asked = sorted(able, key=lambda peer: peer not in helpers)[:MAX_ASKED]
    answers = await asyncio.gather(*(_ask(transport, peer) for peer in asked))
    return {peer: rows for peer, rows in zip(asked, answers, strict=True) if rows}


async def _ask(transport: Transport, peer: PeerId) -> list[Refused]:
    try:
        return await fetch_report(transport, peer)
    except NetworkError:
        return []  # whether it is there the swarm's records tell


async def ask_how_far(transport: Transport, bundle: Bundle, view: SwarmView) -> dict[str, Any] | None:
    """The pass over the data that most trainers share, as backbones say, or most of the trainers that answer; None:
    nobody shares any. Trainers know of the first blocks of a run some seconds before backbones do.
    """
    shared = Counter(record.data for record in view.all_trainers() if record.data)
    if not shared:
        return None
    name = max(sorted(shared), key=lambda name: shared[name])
    backbones = [record.peer for record in view.records if record.role is Role.BACKBONE]
    trainers = [record.peer for record in view.records if record.can_be_dialled and record.data == name]
    run = bundle.run
    try:
        coverage = Coverage(BlockPlan.read(name, seed=run.seed, microbatch_size=run.microbatch_size))
    except ValueError:
        return None
    errands, ledger, is_known = Errands(), Ledger.for_batches_of(run.strategy.target_batch_size), False
    for asked in (backbones, trainers):
        words = await ask_for_coverage(transport, errands, bundle.fingerprint, asked)
        is_known |= merge(words, coverage, ledger, view.at_s)
        if coverage.report(max(coverage.passes, default=0), view.at_s).share > 0:
            break
    if not is_known:
        return None
    report = coverage.report(max(coverage.passes, default=0), view.at_s)
    told = ("data", "pass_number", "share", "samples", "samples_again")
    return {field: getattr(report, field) for field in told}


def status_report(
    run_id: str, view: SwarmView, refusals: dict[PeerId, list[Refused]], *, is_one_history: bool = True
) -> dict[str, Any]:
    """The swarm as JSON values.

    Args:
        is_one_history: whether trainers go on together; else the newest of them says how far the run is.
    """
    consensus = view.consensus() if is_one_history else view.newest()
    helpers = [record.epoch for record in view.helpers()]
    loss, (_, eval_loss, eval_accuracy) = swarm_loss(view), newest_evaluation(view, era_of(view))
    return {
        "run_id": run_id,
        "epoch": epoch_of(view, consensus[0]) if consensus else max(helpers, default=0),
        "loss": told(loss),
        "eval_loss": told(eval_loss),
        "eval_accuracy": told(eval_accuracy),
        "samples_per_s": sum(record.samples_per_s for record in view.all_trainers()),
        "peers": [
            {
                "id": record.peer,
                "name": record.name,
                "role": record.role,
                "epoch": record.epoch,
                "lineage": record.lineage,
                "samples": record.total_samples,
                "state": record.state,
                "reach": record.reach,
                "period": record.period,
                "delay": record.delay,
                "without": switched_off(record),
                "version": record.version,
            }
            for record in view.records
        ],
        "refusals": [
            {
                "by": by,
                "peer": row.peer,
                "reason": row.reason,
                "count": row.count,
                "first_at": row.first_at_s,
                "last_at": row.last_at_s,
            }
            for by, rows in refusals.items()
            for row in rows
        ],
    }


def table(report: dict[str, Any]) -> str:
    """The same for people."""
    loss = f"{report['loss']:.4f}" if report["loss"] is not None else "-"
    head = f"{report['run_id']}: epoch {report['epoch']}, loss {loss}, {report['samples_per_s']:.1f} samples/s"
    orders = report.get("orders")
    needed = orders["minimum_version"] if orders else None
    lines = [
        f"  {_shown(peer['name']):24}  {peer['role']:9}  {peer['state']:8}  {peer['reach']:12}  "
        f"epoch {peer['epoch']:>6}  lineage {plain(peer['lineage'], 8):8}  gave {peer['samples']} samples  {peer['id']}"
        + (f"  without {', '.join(peer['without'])}" if peer["without"] else "")
        + _version_words(peer["version"], needed)
        for peer in report["peers"]
    ]
    ordered = order_lines(orders) if "orders" in report else []
    more = (*_pace_lines(report), *_data_lines(report), *ordered, *_refusal_lines(report))
    return "\n".join([head, *(lines or ["  nobody is there"]), *more])


def _version_words(version: str, needed: str | None) -> str:
    """That a peer should be upgraded; empty: it will do, as far as anybody has ordered."""
    if needed is None or is_at_least(version, needed):
        return ""
    return f"  version {plain(version, 24) or 'unknown'}, to be upgraded"


def _pace_lines(report: dict[str, Any]) -> list[str]:
    """Windows of own steps, as they come out for the trainers that have any."""
    paces = [(peer["period"], peer["delay"]) for peer in report["peers"] if peer["period"] > 0]
    return [f"trainers: {pace_words(*map(statistics.median, zip(*paces, strict=True)))} (medians)"] if paces else []


def _data_lines(report: dict[str, Any]) -> list[str]:
    """How far the swarm is with the data."""
    covered = report.get("data")
    if covered is None:
        return []
    trained = trained_words(covered["samples"], covered["samples_again"])
    return [f"data: pass {covered['pass_number'] + 1}, {100 * covered['share']:.0f} % done{trained}"]


def _refusal_lines(report: dict[str, Any]) -> list[str]:
    """Who was refused, most often first."""
    names = {peer["id"]: _shown(peer["name"]) for peer in report["peers"]}
    rows = sorted(report["refusals"], key=lambda row: -row["count"])
    lines = [
        f"  {row['reason']:18}  {row['count']:>7} times  {row['peer']}  "
        f"by {names.get(row['by'], row['by'])}, last at {_moment(row['last_at'])}"
        for row in rows[:MAX_LINES]
    ]
    more = [f"  and {len(rows) - MAX_LINES} more; --json shows all"] if len(rows) > MAX_LINES else []
    return ["refused by peers of this run:", *lines, *more] if rows else []


def _shown(name: str) -> str:
    """A peer's own name for itself."""
    return plain(name, 24)


def _moment(at_s: float) -> str:
    """In words, on this machine's clock; a peer may have said anything."""
    try:
        return time.strftime("%H:%M:%S", time.localtime(at_s))
    except (ValueError, OverflowError, OSError):
        return "an unknown time"


def run_status(text: str, *, as_json: bool) -> None:
    """Look at the swarm once, and print what it says.

    Args:
        text: an invite, or the directory of a run that is owned here.
    """
    is_owned = not is_invite(text) and Path(text).is_dir()
    report = asyncio.run(_look_as_owner(Path(text)) if is_owned else _look_as_guest(text))
    print(json.dumps(report) if as_json else table(report))  # noqa: T201
