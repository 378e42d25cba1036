"""Real backbones that are told not to do everything: what is off leaves no trace, and the run ends as it should."""

from pathlib import Path

from tests.live.processes import live_swarm, run_cli, wait_until
from tests.live.test_swarm_life import digits


def test_two_backbones_share_the_duties_and_the_run_is_finished(tmp_path: Path) -> None:
    with live_swarm(tmp_path / "run", digits(until=100000, every=5)) as swarm:
        first = swarm.backbone("--without", "metrics,reducer,relay")
        second = swarm.join_as_backbone("second", "--without", "bootstrap,state")
        trainers = [swarm.join("anna"), swarm.join("bert")]
        for trainer in trainers:
            trainer.wait_for_epoch(5)
        wait_until(lambda: bool(second.all("CheckpointSaved")), "a copy of a checkpoint", second)
        told = {peer["name"]: peer["without"] for peer in swarm.status()["peers"]}
        here, there = ["relay", "reducer", "metrics"], ["bootstrap", "state"]
        assert told == {"backbone": here, "second": there, "anna": [], "bert": []}
        ids = {peer["name"]: peer["id"] for peer in swarm.status()["peers"]}
        last = swarm.end()
        for trainer in trainers:
            assert trainer.finish()["epoch"] == last
        wait_until(lambda: swarm.checkpoint(last).is_dir(), "the last checkpoint", first)
        wait_until(lambda: second.all("CheckpointSaved")[-1]["epoch"] == last, "its copy", second)
        assert not second.all("LeaseChanged")
        assert second.process.poll() is None
        second.leave()
        first.leave()
        files = {path.name for path in (swarm.directory / "backbone").iterdir()}
        assert files.isdisjoint({"metrics.sqlite", "metrics.jsonl", "credits.sqlite"})
        assert not first.all("DashboardServed")
        assert (swarm.directory / "second" / "metrics.sqlite").is_file()
        address = (swarm.directory / "anna" / "backbones.json").read_text()
        assert ids["backbone"] in address
        assert ids["second"] not in address


def test_a_backbone_that_lets_nobody_in_does_not_begin_where_nobody_answers(tmp_path: Path) -> None:
    run_cli("init", str(tmp_path / "run"))
    found = run_cli("backbone", str(tmp_path / "run"), "--host", "127.0.0.1", "--without", "bootstrap,relay")
    assert found.returncode == 1
    assert "knows of no other one" in found.stderr
