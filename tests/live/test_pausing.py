"""A real peer whose owner wants the machine back, and gives it again; and a doctor that visits its run."""

import json
import signal
import sys
from pathlib import Path

from peers.guest import Condition, condition_of
from peers.places import DataDir, is_in_use
from tests.live.processes import live_swarm, pids_about, run_cli, wait_until
from tests.live.test_swarm_life import digits


def test_a_peer_pauses_at_its_owners_word_with_nothing_lost_and_works_again(tmp_path: Path) -> None:
    with live_swarm(tmp_path / "run", digits(until=100000, every=50)) as swarm:
        swarm.backbone()
        other, guest = swarm.join("other"), swarm.join("guest")
        for peer in (other, guest):
            peer.wait_to_contribute()
        doctor = json.loads(run_cli("doctor", str(swarm.invite), "--json").stdout)
        found = {check["check"]: check for check in doctor["checks"]}
        assert doctor["is_able"], doctor
        assert [found[check]["outcome"] for check in ("clock", "NAT", "join")] == ["ok", "ok", "ok"]
        assert "bandwidth" in found  # whoever helps may have no time
        place = swarm.directory / "guest"
        paused = run_cli("pause", "--data-dir", str(place))
        assert paused.returncode == 0, paused.stderr
        assert "its device is free" in paused.stderr
        wait_until(lambda: bool(guest.all("Paused")), "its word of it to be read here", guest)
        wait_until(lambda: not pids_about(place), "its daemon to be gone", guest)
        assert len(guest.all("Paused")) == 1
        computed = sum(event["samples"] for event in guest.all("MicrobatchDone"))
        assert computed == sum(step["own_samples"] for step in guest.steps), "all that it computed is in steps"
        other.wait_for_epoch(other.epoch + 3)
        moved = json.loads((place / "traffic.json").read_text())["bytes"]
        assert moved > 1000
        steps = len(guest.steps)
        resumed = run_cli("resume", "--data-dir", str(place))
        assert resumed.returncode == 0, resumed.stderr
        wait_until(lambda: any(step["own_samples"] for step in guest.steps[steps:]), "it to be of use again", guest)
        assert guest.all("Resumed")
        summary = guest.leave()
        assert summary["epochs_contributed"] > sum(1 for step in guest.steps[:steps] if step["own_samples"])
        assert json.loads((place / "traffic.json").read_text())["bytes"] > moved


ON_A_GPU = """
import sys
from peers.session import Given
Given.had_gpu = property(lambda _: True, lambda *_: None)
if __name__ == "__main__":
    from peers.cli import main
    main()
"""


def be_on_a_gpu() -> None:
    """As far as what follows from it goes; begun anew it is the same command again."""
    sys.orig_argv = [sys.executable, "-c", ON_A_GPU, *sys.argv[1:]]
    exec(ON_A_GPU, {"__name__": "here"})


def test_a_peer_that_had_a_gpu_begins_anew_while_it_is_paused_and_goes_on_as_before(tmp_path: Path) -> None:
    with live_swarm(tmp_path / "run", digits(until=100000, every=50)) as swarm:
        swarm.backbone()
        other, guest = swarm.join("other"), swarm.join("guest", habits=be_on_a_gpu)
        for peer in (other, guest):
            peer.wait_to_contribute()
        place, maps = swarm.directory / "guest", Path("/proc", str(guest.process.pid), "maps")
        assert "libtorch" in maps.read_text()
        swarm.invite.rename(swarm.directory / "moved")
        assert run_cli("pause", "--data-dir", str(place)).returncode == 0
        wait_until(lambda: "libtorch" not in maps.read_text(), "its program to begin anew", guest)
        assert is_in_use(place), "nobody else gets its directory"
        wait_until(lambda: condition_of(DataDir(place)) is not None, "its word", guest)
        told = condition_of(DataDir(place))
        assert told is not None
        assert (told.condition, told.pid) == (Condition.PAUSED, guest.process.pid)
        steps = len(guest.steps)
        other.wait_for_epoch(other.epoch + 3)
        resumed = run_cli("resume", "--data-dir", str(place))
        assert resumed.returncode == 0, resumed.stderr
        wait_until(lambda: any(step["own_samples"] for step in guest.steps[steps:]), "it to be of use again", guest)
        assert len(guest.all("Paused")) == 1, "told once"
        assert guest.all("Resumed")[0]["paused_s"] > 0
        summary = guest.leave(signal.SIGTERM)
        assert summary["epochs_contributed"] == sum(1 for step in guest.steps if step["own_samples"])
        words = guest.log.read_text()
        assert words.count("getting ready") == 1
