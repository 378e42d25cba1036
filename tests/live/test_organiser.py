"""What an organiser does with a run of real processes: invite, amend, ban, end."""

import json
from pathlib import Path

import pytest

import collab
from collab.config import load_run
from collab.errors import CollabError
from collab.joining import Local
from collab.swarm.bundle import Bundle
from collab.tasks.registry import build_task
from tests.live.ports import own_port
from tests.live.processes import LIMIT_S, LiveSwarm, Peer, live_swarm, run_cli, wait_until

RUN = """\
run_id: live-organiser
access: invite_only
microbatch_size: 8
task: {name: image_classification}
optimizer: {name: sgd, learning_rate: 0.1}
strategy: {name: dedloc, target_batch_size: 600}
averaging: {compression: exact}
checkpoints: {every_epochs: 1000, keep: 3}
"""


def say(swarm: LiveSwarm, command: str, *arguments: str) -> str:
    """One command of the organiser; what it tells the person."""
    done = run_cli(command, str(swarm.directory), *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def join(swarm: LiveSwarm, name: str, word: str) -> Peer:
    return swarm.start(name, ["join", word, "--name", name, "--data-dir", str(swarm.directory / name), "--json"])


def turned_away(*arguments: str) -> str:
    """Why a run would not have this machine, as the doctor says."""
    looked = run_cli("doctor", *arguments, "--json")
    last = json.loads(looked.stdout)["checks"][-1]
    assert (looked.returncode, last["check"], last["outcome"]) == (1, "join", "problem"), looked.stdout
    return str(last["text"])


def test_an_organiser_invites_amends_bans_and_ends_a_run_and_another_one_carries_it_on(tmp_path: Path) -> None:
    with live_swarm(tmp_path / "run", RUN) as swarm:
        early = run_cli("invite", str(swarm.directory), "--name", "Anna")
        assert early.returncode == 1
        assert "owner" in early.stderr, "the key comes with the backbone, or with 'collab-peer init'"
        backbone = swarm.start("backbone", ["backbone", str(swarm.directory), "--host", "127.0.0.1", "--json"])
        wait_until((swarm.directory / "backbone" / "addresses.json").exists, "the backbone's addresses", backbone)
        people = ("Anna", "Bob", "Guest")
        words = {name: say(swarm, "invite", "--name", name, "--devices", "1").split()[0] for name in people}
        looks = (run_cli("doctor", words["Bob"], "--json"), run_cli("status", words["Bob"], "--json"))
        assert json.loads(looks[0].stdout)["checks"][-1]["outcome"] == "ok", looks[0].stdout
        assert looks[1].returncode == 0, looks[1].stderr
        anna, bob = (join(swarm, name.lower(), words[name]) for name in people[:2])
        for peer in (anna, bob):
            peer.wait_for_epoch(3)
        assert run_cli("status", words["Bob"], "--json").returncode == 0, "whoever takes part may look, too"
        looked = json.loads(run_cli("doctor", words["Bob"], "--json").stdout)["checks"][-1]
        assert (looked["check"], looked["outcome"]) == ("join", "note")
        assert "in use by bob" in looked["text"]

        second = join(swarm, "anna-again", words["Anna"])
        assert second.process.wait(LIMIT_S) == 1
        assert "in use on 1 device" in second.tail()

        told = say(swarm, "amend", "--target-batch", "1200")
        assert "target batch 1200" in told
        assert "the swarm knows" in told
        first = int(told.split("from epoch ")[1].split()[0])
        anna.wait_for_epoch(first + 4)
        bigger = [event["swarm_samples"] for event in anna.all("EpochFinished") if event["epoch"] > first + 1]
        assert min(bigger) >= 1200

        assert "is banned: sends noise" in say(swarm, "ban", "Bob", "--reason", "sends noise")
        assert bob.process.wait(LIMIT_S) == 1
        assert "the organiser has banned you for good: sends noise" in bob.tail()
        assert "banned you for good: sends noise" in turned_away(words["Bob"])
        reached = anna.epoch
        anna.wait_for_epoch(reached + 3)
        rows = {row["person"]: row for row in json.loads(say(swarm, "invite", "--list", "--json"))["invites"]}
        assert [rows[name]["state"] for name in people] == ["valid", "revoked", "valid"]
        assert [[user["name"] for user in rows[name]["used_by"]] for name in people] == [["anna"], [], []]
        assert rows["Bob"]["reason"] == "sends noise"
        for whose in (words["Guest"], str(swarm.directory)):
            orders = json.loads(run_cli("status", whose, "--json").stdout)["orders"]
            assert orders["bans"] == [
                {"who": rows["Bob"]["id"], "name": "Bob", "reason": "sends noise", "until": None},
            ]  # fmt: skip
            assert (orders["count"], orders["target_batch_size"], orders["ordered_end"]) == (2, 1200, None)
            assert [(what["from_epoch"], what["is_planned"]) for what in orders["amendments"]] == [(first, False)]

        assert "the run ends at epoch" in say(swarm, "end")
        ending = anna.finish()
        last = swarm.checkpoint(ending["epoch"])
        wait_until(last.is_dir, "the last checkpoint", backbone)
        backbone.leave()
    with live_swarm(tmp_path / "carried", RUN.replace("access: invite_only", "access: open")) as other:
        other.backbone("--from", str(last), "--new-owner")
        trainer = other.join("new")
        trainer.wait_for_epoch(ending["epoch"] + 2)
        assert min(step["epoch"] for step in trainer.all("EpochFinished")) == ending["epoch"] + 1


def test_an_organiser_whose_router_does_not_lead_back_reaches_the_backbone_of_this_machine(tmp_path: Path) -> None:
    """What is announced is for others."""
    port = own_port()
    with live_swarm(tmp_path / "run", RUN) as swarm:
        place = ["--host", "127.0.0.1", "--port", port, "--announce", f"203.0.113.7:{port}"]
        backbone = swarm.start("backbone", ["backbone", str(swarm.directory), *place, "--json"])
        wait_until((swarm.directory / "backbone" / "addresses.json").exists, "the backbone's addresses", backbone)
        (address,) = json.loads((swarm.directory / "backbone" / "addresses.json").read_text())
        assert address.startswith(f"/ip4/203.0.113.7/tcp/{port}/")
        assert [peer["name"] for peer in json.loads(say(swarm, "status", "--json"))["peers"]] == ["backbone"]
        run_file = swarm.directory / "run.yaml"
        run_file.write_text(RUN.replace("learning_rate: 0.1", "learning_rate: 0.2"))
        refused = run_cli("end", str(swarm.directory), "--at", "5")
        assert refused.returncode == 1
        assert "is not the run that the backbone of this directory serves" in refused.stderr
        run_file.write_text(RUN)
        assert "the swarm knows" in say(swarm, "end", "--at", "5")


def test_a_loop_of_ones_own_hears_that_it_is_banned(tmp_path: Path) -> None:
    run = RUN.replace("access: invite_only", "access: open").replace("live-organiser", "live-own-loop")
    with live_swarm(tmp_path / "run", run.replace("target_batch_size: 600", "target_batch_size: 16")) as swarm:
        swarm.backbone()
        bundle = Bundle(load_run(swarm.directory / "run.yaml"), {})
        task = build_task(bundle.run, assets={}, cache_dir=tmp_path, peer_id="")
        model = task.build_model()
        place = tmp_path / "own"
        with collab.join(model, None, swarm.invite.read_text(), Local(name="own-loop", data_dir=place)) as ours:

            def train(until_epoch: int) -> None:
                while ours.epoch < until_epoch:
                    batch = task.batch(tuple(range(8)))
                    task.loss(model, batch.tensors).backward()
                    ours.step(samples=8)

            train(3)
            assert "is banned" in say(swarm, "ban", "own-loop", "--reason", "a loop that never ends")
            with pytest.raises(CollabError, match="banned you for good: a loop that never ends"):
                train(1_000_000)
        told = turned_away(str(swarm.invite), "--data-dir", str(place))
        assert "banned you for good: a loop that never ends" in told
        assert "may take part again" in say(swarm, "pardon", "own-loop"), "it has gone, and is found by its name"
        status = json.loads(run_cli("status", str(swarm.invite), "--json").stdout)
        assert (status["orders"]["count"], status["orders"]["bans"]) == (2, [])
