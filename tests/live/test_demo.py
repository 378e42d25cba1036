"""The demo as a user runs it, and what can be done with what it leaves."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from collab.config import load_run
from collab.tasks.registry import build_task
from peers.places import cache_dir
from tests.live.processes import LIMIT_S, LiveSwarm, commands_about, processes_about, run_cli, wait_until
from tests.test_package import ROOT, SETUP_INPUTS, program

EPOCHS = 6
LONGER = 12
"""Steps in which one can kill a trainer."""
PIP = """\
import sys
with open({asked!r}, "a") as asked:
    print(*sys.argv[1:], file=asked)
"""
"""In place of the real one: it installs nothing."""
DONE = re.compile(r"(\d+) epochs in \d+ s, loss (\S+) -> (\S+), held-out \S+")


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


def checkout_with_everything(root: Path) -> Path:
    """One that has what ``scripts/demo.sh`` reads, and an environment in which pip finds everything in place: what it
    has is lent by the environment of this test. Where pip writes what it was asked for.
    """
    for name in (*SETUP_INPUTS, "scripts/demo.sh"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(root / ".venv")], check=True, timeout=LIMIT_S)
    (packages,) = (root / ".venv").glob("lib/python*/site-packages")
    (packages / "lent.pth").write_text(f"{ROOT}\n{sysconfig.get_path('purelib')}\n")
    asked = root / "pip.log"
    (packages / "pip").mkdir()
    (packages / "pip" / "__init__.py").touch()
    (packages / "pip" / "__main__.py").write_text(PIP.format(asked=str(asked)))
    bin_dir = root / ".venv" / "bin"
    program(bin_dir, "collab-peer", f'exec "{bin_dir}/python" -m peers.cli "$@"')
    return asked


@contextmanager
def demo_script(root: Path, *arguments: str) -> Iterator[tuple["subprocess.Popen[bytes]", Path, Path]]:
    """It runs, and is gone afterwards with all of its processes; with it, where its output and its words go."""
    output, words = root / "output.txt", root / "words.txt"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COVERAGE"))}
    with output.open("wb") as out, words.open("wb") as errors:
        command = ["bash", str(root / "scripts" / "demo.sh"), *arguments]
        script = subprocess.Popen(command, cwd=root.parent, env=inherited, stdout=out, stderr=errors)
    try:
        yield script, output, words
    finally:
        script.kill()
        script.wait(LIMIT_S)
        wait_until(lambda: not processes_about(root), f"every process about {root} to be gone")


def test_the_script_sets_up_and_trains_to_the_end_though_a_trainer_is_killed(tmp_path: Path) -> None:
    root = tmp_path / "checkout"
    asked = checkout_with_everything(root)
    with demo_script(root, "--epochs", str(LONGER), "--json") as (script, output, words):

        def runs(what: bool) -> bool:
            assert script.poll() is None, words.read_text()
            return what

        def steps_of(name: str) -> int:
            written = root.glob(f"runs/demo-*/{name}/metrics.jsonl")
            return sum(path.read_text().count("EpochFinished") for path in written)

        wait_until(lambda: runs(steps_of("trainer-3") > 0), "the trainer to take part")
        (killed,) = (pid for pid, line in commands_about(root).items() if "--name trainer-3 " in line)
        os.kill(killed, signal.SIGKILL)
        assert script.wait(2 * LIMIT_S) == 0, words.read_text()
        report, told = json.loads(output.read_text()), words.read_text()
    assert f"--editable {root}[dev]" in asked.read_text()
    assert "trainer-3 was killed by SIGKILL; the others go on without it" in told
    done = DONE.search(told)
    assert done is not None, told
    assert int(done[1]) == report["epochs"] == LONGER
    assert float(done[3]) < float(done[2])
    assert "the model writes" in told
    (directory,) = (root / "runs").iterdir()
    assert f".venv/bin/collab-peer join runs/{directory.name}/invite.txt" in told
    assert (root / report["checkpoint"] / "model.safetensors").exists()
    assert [peer["role"] for peer in report["peers"]] == ["trainer", "trainer", "backbone"], "one said nothing more"
    assert len({peer["lineage"] for peer in report["peers"]}) == 1
    assert min(peer["epochs_contributed"] for peer in report["peers"][:2]) > 0
