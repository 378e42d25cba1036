"""Real processes: peers come, go and die, and the run goes on."""

import json
import signal
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

from tests.live import habits
from tests.live.ports import own_port
from tests.live.processes import LIMIT_S, Peer, live_swarm, wait_until

DIGITS = """\
run_id: live-digits
microbatch_size: 8
until_epoch: {until}
task: {{name: image_classification}}
optimizer: {{name: sgd, learning_rate: 0.1}}
strategy: {{name: dedloc, target_batch_size: {target}}}
averaging: {{compression: exact}}
checkpoints: {{every_epochs: {every}, keep: 3}}
"""


def digits(*, until: int, every: int, target: int = 1500) -> str:
    """A run file."""
    return DIGITS.format(until=until, every=every, target=target)


def dashboard_of(backbone: Peer) -> dict[str, Any]:
    """What a backbone shows of its run."""
    wait_until(lambda: bool(backbone.all("DashboardServed")), "its dashboard", backbone)
    url = backbone.all("DashboardServed")[-1]["url"]
    with urllib.request.urlopen(f"{url}api/v1/state", timeout=LIMIT_S) as answer:
        return dict(json.loads(answer.read()))


def test_a_run_survives_a_kill_a_latecomer_and_a_goodbye_and_all_end_with_one_lineage(tmp_path: Path) -> None:
    with live_swarm(tmp_path / "run", digits(until=100000, every=35)) as swarm:
        backbone = swarm.backbone()
        first, killed, leaver = (swarm.join(name) for name in ("first", "killed", "leaver"))
        for peer in (first, killed, leaver):
            peer.wait_for_epoch(3)
        killed.kill()
        first.wait_for_epoch(first.epoch + 3)
        late = swarm.join("late")
        late.wait_for_epoch(1)
        here = {"first", "leaver", "late"}
        wait_until(lambda: here <= {peer["name"] for peer in dashboard_of(backbone)["peers"]}, "all on the page")
        wait_until(lambda: dashboard_of(backbone)["health"]["level"] == "good", "all to be well")
        shown = dashboard_of(backbone)
        assert shown["now"]["epoch"] >= 3
        assert sum(row["samples"] for row in shown["contributors"]["rows"]) > 0
        assert leaver.leave(signal.SIGINT)["epochs_contributed"] > 0
        last = swarm.end()
        endings = [first.finish(), late.finish()]
        assert {ending["epoch"] for ending in endings} == {last}
        assert len({ending["lineage"] for ending in endings}) == 1
        assert late.all("StateFetched"), "the latecomer took over a state"
        assert min(ending["epochs_contributed"] for ending in endings) > 0
        wait_until(swarm.checkpoint(last).is_dir, "the last checkpoint", backbone)
        assert swarm.status()["epoch"] == last
        ending = backbone.leave(signal.SIGTERM)
        assert ending["lineage"] == endings[0]["lineage"]


def test_training_goes_on_while_the_backbone_is_dead_and_it_finds_its_run_again(tmp_path: Path) -> None:
    with live_swarm(tmp_path / "run", digits(until=100000, every=20)) as swarm:
        place = ("--port", own_port())
        backbone = swarm.backbone(*place)
        trainers = [swarm.join("one"), swarm.join("two")]
        for trainer in trainers:
            trainer.wait_for_epoch(5)
        backbone.kill()
        reached = max(trainer.epoch for trainer in trainers)
        for trainer in trainers:
            trainer.wait_for_epoch(reached + 20)
        restarted = swarm.backbone(*place)
        wait_until(
            lambda: any(event["epoch"] > reached for event in restarted.all("CheckpointSaved")),
            "the restarted backbone to save an epoch that it missed",
            restarted,
        )
        status = swarm.status()
        assert {peer["role"] for peer in status["peers"]} == {"backbone", "trainer"}
        for trainer in trainers:
            summary = trainer.leave(signal.SIGTERM)
        wait_until(
            lambda: any(event["epoch"] >= summary["epoch"] for event in restarted.all("CheckpointSaved")),
            "the state that the last trainer handed over before it left",
            restarted,
        )
        restarted.leave()


def test_a_trainer_killed_and_started_again_contributes_within_two_epochs_and_downloads_nothing(tmp_path: Path) -> None:
    """The other one goes on while it is away, but for fewer steps than are kept for those who missed them."""
    hold = tmp_path / "hold"
    resting = partial(habits.rest_while_there_is, str(hold))
    with live_swarm(tmp_path / "run", digits(until=100000, every=1000, target=15000)) as swarm:
        swarm.backbone()
        other, victim = swarm.join("other", habits=resting), swarm.join("victim")
        for peer in (other, victim):
            peer.wait_for_epoch(2)
        copies = swarm.directory / "victim" / "state" / "copies"
        wait_until(lambda: any(copies.glob("epoch-*")), "its copy")
        victim.kill()
        other.wait_for_epoch(other.epoch + 1)
        hold.touch()
        again = swarm.join("victim")
        wait_until(lambda: bool(again.all("MicrobatchDone")), "it to train again", again)
        trained_at = other.epoch
        hold.unlink()
        wait_until(lambda: any(step["own_samples"] for step in again.all("EpochFinished")), "it to contribute", again)
        first = next(step["epoch"] for step in again.all("EpochFinished") if step["own_samples"])
        assert first <= trained_at + 2
        assert not again.all("StateFetched"), "it had the state, and the rounds since then are kept by the other"


def test_the_second_interrupt_ends_a_peer_at_once(tmp_path: Path) -> None:
    with live_swarm(tmp_path / "run", digits(until=100000, every=1000)) as swarm:
        backbone = swarm.backbone(habits=habits.never_say_goodbye_to_backbones)
        backbone.process.send_signal(signal.SIGINT)
        wait_until(lambda: "again to leave at once" in backbone.log.read_text(), "it to leave", backbone)
        backbone.process.send_signal(signal.SIGINT)
        assert backbone.process.wait(LIMIT_S) == 130


def test_an_auxiliary_peer_reduces_and_contributes_nothing(tmp_path: Path) -> None:
    with live_swarm(tmp_path / "run", digits(until=40, every=20, target=300)) as swarm:
        swarm.backbone()
        helper = swarm.join("helper", "--role", "auxiliary")
        wait_until(lambda: bool(helper.all("Notice")), "the helper to be ready", helper)
        trainer = swarm.join("trainer")
        assert trainer.finish()["epochs_contributed"] == 40
        summary = helper.finish()
        assert summary["role"] == "auxiliary"
        assert summary["rounds"] >= 30
