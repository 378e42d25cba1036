"""``collab-peer demo``: a whole swarm of real processes on this machine, from nothing to a model that writes."""

import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers.demo_processes import Child, demo_swarm, say, until_done, until_saved, wait_for
from peers.places import OWNER_KEY, RUN_FILE, command_name
from peers.process import run_peer

PROMPT = "def read_file(path):\n"
RUN_TEXT = """\
# Written by 'collab-peer demo': a small GPT-2 on the Python standard library's own source.
run_id: demo
seed: 7
microbatch_size: 8
until_epoch: {epochs}
task:
  name: causal_lm
  model: {{model_type: gpt2, n_layer: 2, n_head: 4, n_embd: 96, attn_pdrop: 0.0, embd_pdrop: 0.0, resid_pdrop: 0.0}}
  sequence_length: 128
  vocab_size: 1024
  data: {{source: builtin, max_megabytes: 6}}
  eval_samples: 64
optimizer: {{name: adamw, learning_rate: 0.008, weight_decay: 0.01, betas: [0.9, 0.95]}}
schedule: {{name: cosine, warmup_epochs: {warmup}, total_epochs: {total}, final_factor: 0.05}}
strategy: {{name: dedloc, target_batch_size: 48, max_gradient_norm: 1.0}}
averaging: {{compression: auto}}
checkpoints: {{every_epochs: {checkpoint_every}, keep: 2}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What can be chosen."""

    peers: int
    epochs: int
    directory: Path | None
    as_json: bool


def run_demo(options: DemoOptions) -> int:
    """Run the demo; returns the exit code. A trainer that is killed does not end it: the others go on.

    Raises:
        DemoFailed: a process failed, or nobody is left; the message holds the end of its log.
    """
    return run_peer(lambda stop: _demo(options, stop))


async def _demo(options: DemoOptions, stop: asyncio.Event) -> None:
    started_s = time.monotonic()
    directory = options.directory or Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    write_run(directory, options.epochs)
    invite = directory / "invite.txt"
    async with demo_swarm() as spawn:
        say("starting a backbone, then training a tokenizer on Python's own source ...")
        backbone = await spawn(
            "backbone",
            directory,
            ["backbone", str(directory), "--host", "127.0.0.1", "--invite-file", str(invite), "--json"],
        )
        await wait_for(invite, backbone, stop)
        say(f"starting {options.peers} trainers; join from another terminal with\n\n  {command_name()} join {invite}\n")
        trainers = []
        for number in range(1, options.peers + 1):
            data_dir = str(directory / f"trainer-{number}")
            arguments = ["join", str(invite), "--name", f"trainer-{number}", "--data-dir", data_dir, "--json"]
            trainers.append(await spawn(f"trainer-{number}", directory, arguments))
        shown = asyncio.create_task(_narrate(backbone, options.epochs))
        await until_done(trainers, backbone, stop)
        if not stop.is_set():
            await until_saved(backbone, options.epochs)
        shown.cancel()
    report = _report(directory, backbone, trainers, time.monotonic() - started_s)
    _finish(report, options, invite, is_complete=not stop.is_set())


def write_run(directory: Path, epochs: int) -> None:
    """Make the run directory of a demo of so many epochs."""
    from collab.swarm.identity import load_or_create_identity

    text = RUN_TEXT.format(
        epochs=epochs, warmup=min(10, epochs // 4), total=max(epochs, 2), checkpoint_every=max(1, min(25, epochs // 4))
    )
    directory.mkdir(parents=True, exist_ok=True)
    (directory / RUN_FILE).write_text(text, encoding="utf-8")
    load_or_create_identity(directory / OWNER_KEY)


# -- words -----------------------------------------------------------------------------------------------------------


async def _narrate(backbone: Child, epochs: int) -> None:
    """Tell how far the swarm is, as its backbone sees it."""
    told, is_shown = -1, False
    while True:
        if not is_shown and (shown := backbone.last("DashboardServed")) is not None:
            is_shown = True
            say(f"watch it in a browser: {shown['url']}")
        report = backbone.last("SwarmReport")
        if report is not None and report["epoch"] > told and report["loss"] is not None:
            told = report["epoch"]
            held_out = f"  held-out {report['eval_loss']:.3f}" if report["eval_epoch"] >= 0 else ""
            say(
                f"epoch {told:>4}/{epochs}  loss {report['loss']:.3f}{held_out}  "
                f"{report['samples_per_s']:.0f} samples/s  {report['trainers']} trainers"
            )
        await asyncio.sleep(2.0)


def _report(directory: Path, backbone: Child, trainers: list[Child], seconds: float) -> dict[str, Any]:
    """The object that ``--json`` prints."""
    saved = backbone.last("CheckpointSaved") or {}
    state = json.loads((Path(saved["path"]) / "collab_state.json").read_bytes()) if saved else {}
    steps = [event for trainer in trainers for event in trainer.events if event["event"] == "EpochFinished"]
    peers = [
        {
            "id": summary["id"],
            "role": summary["role"],
            "epochs_contributed": summary["epochs_contributed"],
            "samples": summary["samples"],
            "lineage": summary["lineage"],
        }
        for trainer in trainers
        if (summary := trainer.last("Summary")) is not None
    ]
    summary = backbone.last("Summary") or {}
    keeper = {"id": summary.get("id"), "role": "backbone", "epochs_contributed": 0, "samples": 0}
    return {
        "run_id": "demo",
        "epochs": state.get("epoch", 0),
        "peers": [*peers, {**keeper, "lineage": state.get("lineage")}],
        "first_loss": _loss_of(steps, min((step["epoch"] for step in steps), default=0)),
        "last_loss": _loss_of(steps, max((step["epoch"] for step in steps), default=0)),
        "eval_loss": state.get("metrics", {}).get("eval_loss"),
        "seconds": round(seconds, 1),
        "checkpoint": saved.get("path"),
        "directory": str(directory),
    }


def _loss_of(steps: list[dict[str, Any]], epoch: int) -> float | None:
    """Mean training loss of one epoch over all samples of the trainers of this demo."""
    own = [(step["loss"], step["own_samples"]) for step in steps if step["epoch"] == epoch and step["own_samples"]]
    total = sum(samples for _, samples in own)
    return sum(loss * samples for loss, samples in own) / total if total else None


def _finish(report: dict[str, Any], options: DemoOptions, invite: Path, *, is_complete: bool) -> None:
    if report["first_loss"] is not None:
        losses = f"loss {report['first_loss']:.3f} -> {report['last_loss']:.3f}"
        say(
            f"{report['epochs']} epochs in {report['seconds']:.0f} s, {losses}, "
            f"held-out {report['eval_loss'] or float('nan'):.3f}"
        )
    if is_complete and report["checkpoint"]:
        from collab.tasks.causal_lm import sample_text

        text = sample_text(Path(report["checkpoint"]), PROMPT, max_new_tokens=80, seed=1)
        say(f"the model writes:\n\n{text}\n")
        say(f"checkpoint, for transformers' AutoModelForCausalLM.from_pretrained: {report['checkpoint']}")
        say(f"while a demo runs, join it from another terminal with: {command_name()} join {invite}")
    if options.as_json:
        print(json.dumps(report), flush=True)  # noqa: T201
