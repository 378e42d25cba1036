"""A learning rate makes the loss of a swarm of real processes rise; the organiser goes back, and it learns on."""

import re
from pathlib import Path
from statistics import fmean

from tests.live.processes import Peer, live_swarm, run_cli, wait_until

RUN = """\
run_id: live-spike
microbatch_size: 8
task: {name: image_classification}
optimizer: {name: sgd, learning_rate: 0.1}
strategy: {name: dedloc, target_batch_size: 1500}
averaging: {compression: exact, reduction: mean}
checkpoints: {every_epochs: 10, keep: 1000}
"""
SPIKE = 30.0
"""A learning rate."""
NOTICE_EPOCHS = 150
"""More than are made while the command is on its way."""


def losses(peer: Peer) -> dict[int, float]:
    """By epoch; of those made twice, the newer one."""
    return {step["epoch"]: step["loss"] for step in peer.steps if step["own_samples"]}


def loss_after(peer: Peer, epoch: int) -> float:
    """Of its first step from ``epoch`` on that has samples of its own."""
    wait_until(lambda: max(losses(peer), default=-1) >= epoch, f"a loss of {peer.name} after epoch {epoch}", peer)
    found = losses(peer)
    return found[min(later for later in found if later >= epoch)]


def histories(peer: Peer) -> list[list[int]]:
    """Epochs of its steps; each time that it has gone back they begin anew."""
    found: list[list[int]] = [[]]
    for step in peer.steps:
        if found[-1] and step["epoch"] <= found[-1][-1]:
            found.append([])
        found[-1].append(step["epoch"])
    return found


def test_after_a_loss_spike_the_organiser_goes_back_and_everybody_has_one_history(tmp_path: Path) -> None:
    with live_swarm(tmp_path / "run", RUN) as swarm:
        backbone = swarm.backbone()
        trainers = [swarm.join("one"), swarm.join("two")]
        for trainer in trainers:
            trainer.wait_to_contribute()
            trainer.wait_for_epoch(12)
        wait_until(swarm.checkpoint(10).is_dir, "a checkpoint", backbone)
        change = ["--learning-rate", str(SPIKE), "--at", str(trainers[0].epoch + NOTICE_EPOCHS)]
        amended = run_cli("amend", str(swarm.directory), *change)
        assert amended.returncode == 0, amended.stderr
        told = re.search(r"from epoch (\d+) on", amended.stdout + amended.stderr)
        assert told is not None
        first = int(told[1])
        calm, spiked = loss_after(trainers[0], first), loss_after(trainers[0], first + 5)
        assert not spiked < 2 * calm, "the learning rate did harm"

        good = max(epoch for epoch in range(0, first, 10) if swarm.checkpoint(epoch).is_dir())
        back = run_cli("rollback", str(swarm.directory), str(good))
        assert back.returncode == 0, back.stderr
        assert f"void: from epoch {first} on learning rate {SPIKE}" in back.stdout + back.stderr
        for trainer in trainers:
            wait_until(lambda trainer=trainer: len(histories(trainer)) > 1, f"{trainer.name} to go back", trainer)
        last = swarm.end()
        endings = [trainer.finish() for trainer in trainers]
        assert {ending["epoch"] for ending in endings} == {last}
        assert len({ending["lineage"] for ending in endings}) == 1
        wait_until(swarm.checkpoint(last).is_dir, "the last checkpoint", backbone)
        ending = backbone.leave()
    assert ending["lineage"] == endings[0]["lineage"]
    again = [histories(trainer)[1:] for trainer in trainers]
    for steps in again:
        assert len(steps) == 1
        assert steps[0] == sorted(set(steps[0])), "no step twice in one history"
    taken = {epoch for steps in again for epoch in steps[0]}
    assert taken == set(range(good + 1, last + 1)), "whoever was later, or stood still, has some from the other"
    healed = losses(trainers[0])
    newest = sorted(epoch for epoch in again[0][0] if epoch in healed)[-20:]
    assert fmean(healed[epoch] for epoch in newest) < 2 * calm, "it does no harm any more"
