"""Real processes of a run for the invited: one that has joined carries it while the first backbone is dead."""

from pathlib import Path

from collab.checkpoints.local import STATE_FILE
from tests.live.ports import own_port
from tests.live.processes import LiveSwarm, Peer, live_swarm, wait_until
from tests.live.test_organiser import join, say
from tests.live.test_swarm_life import digits

OPEN = digits(until=100000, every=5, target=600)
RUN = OPEN.replace("run_id: live-digits", "run_id: live-closed\naccess: invite_only")


def start_first(swarm: LiveSwarm, port: str) -> Peer:
    """The backbone of the owner's directory, which others find at the same port when it comes back."""
    addresses = swarm.directory / "backbone" / "addresses.json"
    addresses.unlink(missing_ok=True)
    place = ["--host", "127.0.0.1", "--port", port]
    first = swarm.start("backbone", ["backbone", str(swarm.directory), *place, "--json"])
    wait_until(addresses.exists, "the backbone's addresses", first)
    return first


def invited(swarm: LiveSwarm, name: str) -> Peer:
    """A trainer with an invite that is made now."""
    return join(swarm, name, say(swarm, "invite", "--name", name, "--devices", "1").split()[0])


def wait_for_checkpoint(backbone: Peer, beyond: int) -> None:
    """Until it has saved a later one."""
    wait_until(
        lambda: any(event["epoch"] > beyond for event in backbone.all("CheckpointSaved")),
        f"a checkpoint beyond epoch {beyond}",
        backbone,
    )


def files_of(checkpoint: Path) -> dict[str, bytes]:
    """Of one checkpoint."""
    return {path.name: path.read_bytes() for path in checkpoint.iterdir()}


def test_a_joined_backbone_carries_a_closed_run_while_the_first_is_dead(tmp_path: Path) -> None:
    ports = own_port(), own_port()
    with live_swarm(tmp_path / "run", RUN) as swarm:
        first = start_first(swarm, ports[0])
        second = swarm.join_as_backbone("second", "--port", ports[1])
        anna = invited(swarm, "anna")
        known = swarm.directory / "anna" / "backbones.json"
        wait_until(lambda: known.is_file() and ports[1] in known.read_text(), "the trainer to know of both", anna)
        wait_for_checkpoint(second, 0)

        first.kill()
        reached = anna.epoch
        wait_for_checkpoint(second, reached)
        assert [event["term"] for event in second.all("LeaseChanged")] == [2]
        newcomer = invited(swarm, "bob")
        newcomer.wait_to_contribute()
        assert newcomer.all("StateFetched"), "the run's state is to be had"
        anna.wait_for_epoch(reached + 4)

        first = start_first(swarm, ports[0])
        wait_for_checkpoint(first, newcomer.epoch)
        last = swarm.end()
        endings = [peer.finish() for peer in (anna, newcomer)]
        assert {ending["epoch"] for ending in endings} == {last}
        assert len({ending["lineage"] for ending in endings}) == 1
        steps = [step["epoch"] for step in anna.steps]
        assert steps == sorted(set(steps)), "it never went back"
        ends = swarm.checkpoint(last), swarm.directory / "second" / "checkpoints" / swarm.checkpoint(last).name
        wait_until(lambda: all(map(Path.is_dir, ends)), "the last checkpoint, on both disks", first)
        wait_until(lambda: len({(end / STATE_FILE).read_bytes() for end in ends}) == 1, "both to be published", first)
        assert files_of(ends[0]) == files_of(ends[1])
        second.leave()
        first.leave()
