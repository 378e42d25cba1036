"""The demo as a user runs it, and what can be done with what it leaves."""

import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from collab.config import load_run
from collab.tasks.registry import build_task
from peers.places import cache_dir
from tests.live.processes import LIMIT_S, LiveSwarm, run_cli, wait_until

EPOCHS = 6


def test_the_demo_leaves_a_model_that_transformers_loads_and_a_run_that_resumes(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    arguments = ("--peers", "3", "--epochs", str(EPOCHS), "--directory", str(directory), "--json")
    result = run_cli("demo", *arguments, timeout_s=2 * LIMIT_S)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout.strip().splitlines()[-1])
    trainers = [peer for peer in report["peers"] if peer["role"] == "trainer"]
    assert report["epochs"] == EPOCHS
    assert len(trainers) == 3
    assert {peer["lineage"] for peer in report["peers"]} == {trainers[0]["lineage"]}
    assert sum(peer["samples"] for peer in trainers) >= EPOCHS * 48
    assert report["last_loss"] < report["first_loss"]
    assert "collab-peer join" in result.stderr
    assert "the model writes" in result.stderr

    checkpoint = Path(report["checkpoint"])
    model, loading = AutoModelForCausalLM.from_pretrained(checkpoint, output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    run = load_run(directory / "run.yaml")
    assets = {path.name: path.read_bytes() for path in next((directory / "assets").iterdir()).iterdir()}
    task = build_task(run, assets=assets, cache_dir=cache_dir(), peer_id="")
    assert abs(task.evaluate(model).loss - report["eval_loss"]) < 1e-5
    tokens = AutoTokenizer.from_pretrained(checkpoint)("def main():", return_tensors="pt")
    with torch.no_grad():
        assert model.generate(**tokens, max_new_tokens=5, do_sample=False).shape[1] > tokens["input_ids"].shape[1]

    restarted = LiveSwarm(directory, (directory / "run.yaml").read_text())
    backbone = restarted.backbone()
    try:
        wait_until(lambda: restarted.status()["epoch"] == EPOCHS, "the backbone to resume its epoch", backbone)
        summary = backbone.leave()
        assert summary["lineage"] == trainers[0]["lineage"]
    finally:
        backbone.close()
