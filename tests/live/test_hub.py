"""A run of six real processes, and its checkpoints on a Hub of this machine: found, published, lost and resumed."""

import hashlib
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.hub.client import use_hub
from tests.hub.standin import TOKEN, HubStandIn
from tests.live.ports import own_port
from tests.live.processes import LIMIT_S, LiveSwarm, Peer, live_swarm, wait_until
from tests.live.wandb_offline import lives, use_wandb_offline

NAME = "org/live"
RUN = f"""\
run_id: live-hub
hub_repo: {NAME}
microbatch_size: 8
task: {{name: image_classification}}
optimizer: {{name: sgd, learning_rate: 0.5}}
strategy: {{name: dedloc, target_batch_size: 1600}}
averaging: {{compression: exact}}
checkpoints: {{every_epochs: 5, keep: 2}}
"""


@pytest.fixture
def hub() -> Iterator[HubStandIn]:
    with HubStandIn() as server:
        yield server


class Run:
    """The peers of the run; its backbone listens where it has said that it does."""

    def __init__(self, swarm: LiveSwarm, hub: HubStandIn) -> None:
        self.swarm, self.hub = swarm, hub
        self.habit = partial(begin, hub.url, str(swarm.directory / "home"))
        self.port = own_port()

    def backbone(self, *arguments: str) -> Peer:
        address = f"/ip4/127.0.0.1/tcp/{self.port}"
        place = ["--host", "127.0.0.1", "--port", self.port, "--announce", address]
        told = ["--hub-every", "0", "--track", "wandb", "--json", "--log-level", "debug"]
        command = ["backbone", str(self.swarm.directory), *place, *told]
        return self.swarm.start("backbone", [*command, *arguments], habits=self.habit)

    def trainer(self, name: str, *arguments: str) -> Peer:
        """It knows nothing but the repository's name."""
        data_dir = str(self.swarm.directory / name)
        command = ["join", NAME, "--name", name, "--data-dir", data_dir, "--json", *arguments]
        return self.swarm.start(name, command, habits=self.habit)

    def epochs(self) -> list[int]:
        """On the Hub, of commits that are whole."""
        repository = self.hub.repositories.get(NAME)
        return [] if repository is None else [whole(commit.files) for commit in repository.commits[1:]]

    def card(self) -> str:
        """On the Hub, of the newest commit."""
        return self.hub.repositories[NAME].head.files["README.md"].decode()

    def held_out(self) -> list[float]:
        """Losses on held-out data that the model's page has told, in the order of the commits."""
        cards = [commit.files["README.md"].decode() for commit in self.hub.repositories[NAME].commits[1:]]
        return [float(told[1]) for card in cards if (told := re.search(r"loss on held-out data (\d+\.\d{4})", card))]

    def on_disk(self) -> int:
        """The newest epoch that the backbone keeps."""
        names = (path.name for path in (self.swarm.directory / "backbone" / "checkpoints").glob("epoch-*"))
        return max(int(name.removeprefix("epoch-")) for name in names)

    def wait_for(self, epoch: int, peer: Peer) -> None:
        wait_until(lambda: max(self.epochs(), default=-1) >= epoch, f"epoch {epoch} on the Hub", peer)


def whole(files: dict[str, bytes]) -> int:
    """The epoch of a commit, all of whose files are there and of one checkpoint."""
    state = json.loads(files["collab_state.json"])
    assert all(hashlib.sha256(files[name]).hexdigest() == digest for name, digest in state["sha256"].items())
    assert f"after {state['epoch']} global steps" in files["README.md"].decode()
    return int(state["epoch"])


def begin(hub_url: str, home: str) -> None:
    """What each of the run's processes does first."""
    os.environ["XDG_DATA_HOME"] = home
    use_hub(hub_url)
    use_wandb_offline()


def test_a_run_of_six_is_found_on_the_hub_published_there_whole_and_resumed_from_there(
    tmp_path: Path, hub: HubStandIn
) -> None:
    with live_swarm(tmp_path / "run", RUN) as swarm:
        run = Run(swarm, hub)
        backbone = run.backbone()
        run.wait_for(0, backbone)
        trainers = {name: run.trainer(name, "--credit") for name in ("anna", "bela")}
        trainers |= {name: run.trainer(name) for name in ("carl", "dora", "emil")}
        for trainer in trainers.values():
            trainer.wait_to_contribute()
        wait_until(lambda: len(run.epochs()) >= 3, "three checkpoints on the Hub", backbone)

        arrived, released = threading.Event(), threading.Event()

        def hold() -> None:
            arrived.set()
            released.wait(LIMIT_S)

        hub.fault("PUT /large/.*", -1, meanwhile=hold)
        wait_until(arrived.is_set, "the next upload", backbone)
        backbone.kill()
        released.set()
        before = run.epochs()
        backbone = run.backbone()
        run.wait_for(max(before) + 5, backbone)
        for kind in ("CheckpointSaved", "CheckpointOnHub"):
            wait_until(lambda kind=kind: bool(backbone.all(kind)), f"{kind} of its new life", backbone)
        assert backbone.all("CheckpointOnHub")[0]["place"] == NAME
        wait_until(lambda: "anna" in run.card(), "who trained it on the model's page", backbone)

        gave = {name: trainer.leave()["samples"] for name, trainer in trainers.items()}
        wait_until(lambda: run.epochs()[-1] == run.on_disk(), "the newest checkpoint on the Hub", backbone)
        backbone.leave()
        assert run.epochs() == sorted(set(run.epochs())), "each epoch once, and never an earlier one after a later one"
        head = hub.repositories[NAME].head.files
        newest = whole(head)
        check_card(run.card(), gave, newest)
        assert len(run.held_out()) >= 2
        assert run.held_out()[-1] < run.held_out()[0], "it has learnt, as the pages say"
        assert all(b"<svg" in head[name] for name in ("loss.svg", "samples_per_s.svg", "learning_rate.svg"))
        losses = {step["epoch"]: step["loss"] for trainer in trainers.values() for step in trainer.steps}
        first_life, second_life = lives(swarm.directory / "backbone")
        assert first_life[0] == second_life[0], "one run of wandb's, in two lives"
        assert min(first_life[1], second_life[1]) > 0

        for lost in ("backbone/checkpoints", *trainers):
            shutil.rmtree(swarm.directory / lost)
        check_refusal_without_login(run)
        backbone = run.backbone()
        model = swarm.checkpoint(newest) / "model.safetensors"
        wait_until(model.exists, "the state from the Hub", backbone)
        assert model.read_bytes() == head["model.safetensors"]
        trainer = run.trainer("franz")
        trainer.wait_to_contribute()
        first = trainer.steps[0]
        assert first["epoch"] == newest + 1
        learnt = losses[1] - losses[newest]
        assert learnt > 0.2
        assert first["loss"] == pytest.approx(losses[newest], abs=learnt / 4), "it goes on where it was"
        run.wait_for(newest + 5, trainer)
        check_first_line_of_the_dashboard(run, backbone)
        check_status_by_name(run)
        trainer.leave()
        backbone.leave()
        assert run.epochs() == sorted(set(run.epochs()))
        check_begun_from_the_hub(run)
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or TOKEN.encode() not in path.read_bytes(), path


def check_refusal_without_login(run: Run) -> None:
    """While the Hub does not know the token, a backbone that has lost its disk begins nothing."""
    run.hub.writers.clear()
    refused = run.backbone()
    assert refused.process.wait(LIMIT_S) != 0
    for told in ("nothing is on this disk", "the token of this machine is missing, wrong or has expired", "auth login"):
        assert told in refused.tail()
    assert not list((run.swarm.directory / "backbone" / "checkpoints").glob("epoch-*"))
    run.hub.writers.add(TOKEN)


def check_first_line_of_the_dashboard(run: Run, backbone: Peer) -> None:
    """It says that nothing is published while the Hub takes nothing, and that all is well when it does again."""
    (served,) = backbone.all("DashboardServed")

    def health() -> dict[str, str]:
        return dict(httpx.get(f"{served['url']}api/v1/state", timeout=LIMIT_S).json()["health"])

    run.hub.writers.clear()
    wait_until(lambda: "is not on the Hub yet" in health()["text"], "the dashboard to say so", backbone)
    assert health()["level"] == "trouble"
    assert "hf auth login" in health()["hint"]
    assert TOKEN not in str(health())
    run.hub.writers.add(TOKEN)
    wait_until(lambda: "Hub" not in health()["text"], "the dashboard to say that all is well", backbone)
    assert health()["level"] == "good"


def check_status_by_name(run: Run) -> None:
    """Who trains is seen by who knows no more than the repository's name."""
    looked = run.swarm.start("status", ["status", NAME], habits=run.habit)
    assert looked.process.wait(LIMIT_S) == 0, looked.tail()
    wait_until(lambda: any("franz" in line for line in looked.lines), "the trainer in what it says")


def check_begun_from_the_hub(run: Run) -> None:
    """By a machine with the run file and the owner's key only: from the newest checkpoint, and from a named one."""
    _, first, *_, newest = run.hub.repositories[NAME].commits
    for place, commit in ((NAME, newest), (f"{NAME}@{first.id}", first)):
        shutil.rmtree(run.swarm.directory / "backbone")
        backbone = run.backbone("--from", place)
        wait_until(lambda peer=backbone: _serves(peer), f"a backbone with {place}", backbone)  # type: ignore[misc]
        assert run.on_disk() == whole(commit.files)
        model = run.swarm.checkpoint(run.on_disk()) / "model.safetensors"
        assert model.read_bytes() == commit.files["model.safetensors"]
        backbone.leave()


def _serves(backbone: Peer) -> bool:
    return any("serving run" in told["text"] for told in backbone.all("Notice"))


def check_card(card: str, gave: dict[str, int], epoch: int) -> None:
    """Everything that the model's page says is so.

    Args:
        gave: samples of each trainer, by its own count at its end, which is as far as the newest checkpoint or further.
    """
    assert f"the state after {epoch} global steps" in card
    assert f"collab-peer join {NAME}" in card
    thanked = re.findall(r"^- (\w+): ([\d,]+) samples", card, re.MULTILINE)
    told = {name: int(samples.replace(",", "")) for name, samples in thanked}
    assert told.keys() == {"anna", "bela"}, "only who agreed is named"
    assert all(0 < told[name] <= gave[name] for name in told)
    assert "- 3 more machines" in card
    assert not {"carl", "dora", "emil"} & set(re.findall(r"\w+", card))
