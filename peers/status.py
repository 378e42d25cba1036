"""``collab-peer status``: the swarm at a glance."""

import asyncio
import json
import math
import tempfile
from pathlib import Path
from typing import Any

from collab.swarm.invite import Invite
from collab.swarm.progress import ProgressBoard, SwarmView
from peers.backbone import newest_evaluation, swarm_loss
from peers.joining import Relay
from peers.places import DataDir
from peers.wiring import Reach, invite_from, start_from_invite


async def show_status(invite_text: str, *, as_json: bool) -> None:
    """Look at the swarm once, as a guest that dials and is never dialled, and print what it says."""
    invite = invite_from(invite_text)
    with tempfile.TemporaryDirectory(prefix="collab-status-") as folder:
        async with start_from_invite(invite, DataDir(Path(folder)), Reach(is_client=True), Relay()) as (
            started,
            bundle,
        ):
            view = await ProgressBoard(started.ports, started.identity, bundle.fingerprint).refresh()
    report = status_report(invite, view)
    print(json.dumps(report) if as_json else _table(report))  # noqa: T201


def status_report(invite: Invite, view: SwarmView) -> dict[str, Any]:
    """The swarm as JSON values."""
    consensus = view.consensus()
    helpers = [record.epoch for record in view.helpers()]
    loss, (eval_epoch, eval_loss) = swarm_loss(view), newest_evaluation(view)
    return {
        "run_id": invite.run_id,
        "epoch": consensus[0] if consensus else max(helpers, default=0),
        "loss": loss if math.isfinite(loss) else None,
        "eval_loss": eval_loss if eval_epoch >= 0 else None,
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
            }
            for record in view.records
        ],
    }


def _table(report: dict[str, Any]) -> str:
    loss = f"{report['loss']:.4f}" if report["loss"] is not None else "-"
    head = f"{report['run_id']}: epoch {report['epoch']}, loss {loss}, {report['samples_per_s']:.1f} samples/s"
    lines = [
        f"  {peer['name'][:24]:24}  {peer['role']:9}  {peer['state']:8}  epoch {peer['epoch']:>6}  "
        f"lineage {peer['lineage'][:8]:8}  gave {peer['samples']} samples  {peer['id']}"
        for peer in report["peers"]
    ]
    return "\n".join([head, *(lines or ["  nobody is there"])])


def run_status(invite_text: str, *, as_json: bool) -> None:
    """Blocking form for the command line."""
    asyncio.run(show_status(invite_text, as_json=as_json))
