"""Real processes: the first backbone dies for good, then everybody does, and the run goes on."""

from pathlib import Path

import torch

from collab.checkpoints.local import load_newest
from collab.swarm.bundle import load_bundle
from collab.swarm.invite import read_invite
from collab.swarm.snapshots import Snapshot
from collab.tasks.registry import build_task
from collab.training.genesis import build_replica
from tests.live.ports import own_port
from tests.live.processes import LiveSwarm, live_swarm, wait_until
from tests.live.test_swarm_life import digits
from tests.live.wandb_offline import lives, use_wandb_offline


def newest_on_disk(swarm: LiveSwarm) -> Snapshot:
    """Of all that peers have left, whole."""
    fingerprint = read_invite(swarm.invite.read_text()).fingerprint
    roots = [*swarm.directory.glob("*/checkpoints"), *swarm.directory.glob("*/state/copies")]
    held = [snapshot for root in roots if (snapshot := load_newest(root, fingerprint=fingerprint)) is not None]
    return max(held, key=lambda snapshot: snapshot.epoch)


def loss_of(swarm: LiveSwarm, snapshot: Snapshot) -> float:
    """On the held-out samples."""
    bundle = load_bundle(swarm.directory / "second" / "run", read_invite(swarm.invite.read_text()).fingerprint)
    assert bundle is not None
    task = build_task(bundle.run, assets=bundle.assets, cache_dir=swarm.directory, peer_id="")
    replica = build_replica(bundle, task, torch.device("cpu"))
    replica.load(snapshot)
    return task.evaluate(replica.model).loss


def test_the_run_survives_its_first_backbone_and_then_the_death_of_everybody(tmp_path: Path) -> None:
    with live_swarm(tmp_path / "run", digits(until=100000, every=5)) as swarm:
        port = own_port()
        settings = ("--port", port, "--track", "wandb")
        first = swarm.backbone("--port", own_port())
        second, trainer = swarm.join_as_backbone("second", *settings, habits=use_wandb_offline), swarm.join("trainer")
        known = swarm.directory / "trainer" / "backbones.json"
        wait_until(lambda: known.is_file() and port in known.read_text(), "the trainer to know of both", trainer)
        trainer.wait_for_epoch(3)

        first.kill()
        reached = trainer.epoch
        wait_until(
            lambda: any(event["epoch"] > reached for event in second.all("CheckpointSaved")), "a checkpoint", second
        )
        (taken,) = second.all("LeaseChanged")
        assert taken["term"] == 2
        alone = [step["epoch"] for step in trainer.steps if step["epoch"] > reached and step["at_s"] < taken["at_s"]]
        assert alone, "nobody waited for that"

        second.kill()
        trainer.kill()
        newest = newest_on_disk(swarm)
        assert newest.epoch > reached
        second, trainer = swarm.join_as_backbone("second", *settings, habits=use_wandb_offline), swarm.join("trainer")
        wait_until(
            lambda: any(event["epoch"] > newest.epoch for event in second.all("CheckpointSaved")), "one more", second
        )
        assert min(step["epoch"] for step in trainer.all("EpochFinished")) == newest.epoch + 1
        assert loss_of(swarm, newest_on_disk(swarm)) < 1.01 * loss_of(swarm, newest)
        trainer.leave()
        second.leave()
        (name, first_bytes), (name_again, second_bytes) = lives(swarm.directory / "second")
        assert name == name_again
        assert min(first_bytes, second_bytes) > 0, "its curves are tracked, in both of its lives"
