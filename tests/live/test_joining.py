"""Newcomers among real processes: donors that die, corrupt and lie, a restart in the middle, a partner that leaves."""

import json
import re
from functools import partial
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from tests.live import habits
from tests.live.ports import own_port
from tests.live.processes import LiveSwarm, Peer, live_swarm, wait_until

RUN = """\
run_id: live-joining
microbatch_size: 8
until_epoch: 100000
task: {{name: image_classification, hidden_sizes: [{width}, {width}]}}
optimizer: {{name: sgd, learning_rate: {rate}}}
strategy: {{name: dedloc, target_batch_size: {target}}}
averaging: {{compression: {compression}}}
checkpoints: {{every_epochs: {every}, keep: 3}}
"""


def run_of(
    *, width: int, target: int, rate: float = 0.01, every: int = 100000, compression: str = "half"
) -> str:
    """A run file."""
    return RUN.format(width=width, target=target, rate=rate, every=every, compression=compression)


def progress_of(newcomer: Path) -> float:
    """How much of the state that it fetches is on its disk."""
    begun = newcomer / "state" / "download"
    try:
        return (begun / "data").stat().st_size / float(json.loads((begun / "manifest.json").read_text())["num_bytes"])
    except (FileNotFoundError, ValueError):
        return 0.0  # it is being written, or removed for that of a later epoch


def fetched(peer: Peer) -> dict[str, object]:
    """What it tells of the state that it has taken over."""
    wait_until(lambda: bool(peer.all("StateFetched")), f"{peer.name} to have the state", peer)
    return peer.all("StateFetched")[-1]


def peer_id_of(peer: Peer) -> str:
    """As it says itself."""
    told = re.search(r"connected as (\w+)", peer.log.read_text())
    assert told is not None
    return told[1]


def copies_agree(swarm: LiveSwarm, *names: str) -> None:
    """The last copies on their disks are of one epoch, and of the same numbers."""
    newest = [max((swarm.directory / name / "state" / "copies").glob("epoch-*")) for name in names]
    assert len({copy.name for copy in newest}) == 1
    tensors = [load_file(next(copy.glob("*.safetensors"))) for copy in newest]
    for other in tensors[1:]:
        assert other.keys() == tensors[0].keys()
        for name, tensor in other.items():
            np.testing.assert_array_equal(tensor, tensors[0][name])


def test_a_donor_dies_one_corrupts_the_newcomer_is_killed_and_goes_on_where_it_was(tmp_path: Path) -> None:
    hold, found = tmp_path / "hold", tmp_path / "corrupt"
    resting = partial(habits.compute_slowly, 0.06, partial(habits.rest_while_there_is, str(hold)))
    corrupting = partial(habits.compute_slowly, 0.06, partial(habits.corrupt_chunks, str(hold), str(found)))
    with live_swarm(tmp_path / "run", run_of(width=1400, target=1200)) as swarm:
        swarm.backbone()
        slow = ("--max-upload", "20")
        one, two, corrupter, dying = (
            swarm.join(name, *slow, habits=corrupting if name == "corrupter" else resting)
            for name in ("one", "two", "corrupter", "dying")
        )
        for peer in (one, two, corrupter, dying):
            peer.wait_for_epoch(2)
        hold.touch()
        newcomer, folder = swarm.join("newcomer", habits=resting), swarm.directory / "newcomer"
        wait_until(lambda: progress_of(folder) > 0.1, "a part of the state", newcomer)
        dying.kill()
        wait_until(lambda: progress_of(folder) > 0.4, "half of the state", newcomer)
        newcomer.kill()
        again = swarm.join("newcomer", habits=resting)
        came = fetched(again)
        donors = came["donors"]
        assert isinstance(donors, dict)
        assert sum(donors.values()) < 0.9 * float(str(came["num_bytes"])), "the rest was there"
        assert found.exists(), "the newcomer had corrupt chunks"
        assert peer_id_of(corrupter) not in donors
        hold.unlink()
        again.wait_to_contribute()
        last = swarm.end()
        endings = [peer.finish() for peer in (one, two, corrupter, again)]
        assert {ending["epoch"] for ending in endings} == {last}
        assert len({ending["lineage"] for ending in endings}) == 1
        copies_agree(swarm, "one", "newcomer")


def test_liars_one_that_works_and_three_that_do_not_lead_no_newcomer_astray(tmp_path: Path) -> None:
    log = tmp_path / "lies"
    slowly = partial(partial, habits.compute_slowly, 0.03)
    lying, late = slowly(partial(habits.lie_about_the_state, str(log))), slowly(habits.give_late)
    lying_only = partial(habits.lie_and_do_nothing_else, str(log))
    with live_swarm(tmp_path / "run", run_of(width=64, target=1500)) as swarm:
        swarm.backbone()
        one, two = (swarm.join(name, habits=late) for name in ("one", "two"))
        liar = swarm.join("liar", habits=lying)
        for peer in (one, two, liar):
            peer.wait_to_contribute()
        fakes = [swarm.join(f"fake-{number}", habits=lying_only) for number in range(3)]
        for fake in fakes:
            wait_until(lambda fake=fake: bool(fake.all("StateFetched")), "a fake to have the state", fake)  # type: ignore[misc]
        before = one.epoch
        log.write_text("")
        newcomer = swarm.join("newcomer", habits=partial(habits.compute_slowly, 0.03))
        fetched(newcomer)
        newcomer.wait_to_contribute()
        assert len(set(log.read_text().split())) >= 2, "some liars have offered it their state"
        one.wait_for_epoch(before + 1)
        last = swarm.end()
        endings = [peer.finish() for peer in (one, two, newcomer)]
        epochs = {ending["epoch"] for ending in endings}
        assert len(epochs) == 1, epochs
        assert min(epochs) >= last, "those who lie about where they are may make the command name an earlier step"
        copies_agree(swarm, "one", "two", "newcomer")


def test_a_newcomer_never_sees_two_steps_in_one_state_while_rounds_go_on(tmp_path: Path) -> None:
    log = tmp_path / "loads"
    counting = partial(habits.compute_slowly, 0.06, partial(habits.count_steps_in_parameters, str(log)))
    with live_swarm(tmp_path / "run", run_of(width=500, target=800, rate=habits.LEARNING_RATE)) as swarm:
        swarm.backbone()
        donors = [swarm.join(name, "--max-upload", "16", habits=counting) for name in ("one", "two", "three")]
        for donor in donors:
            donor.wait_for_epoch(2)
        log.unlink(missing_ok=True)
        before = donors[0].epoch
        newcomer = swarm.join("newcomer", habits=counting)
        fetched(newcomer)
        newcomer.wait_to_contribute()
        donors[0].wait_for_epoch(before + 1)  # the newcomer may tell of a step before a donor does
        loads = [json.loads(line) for line in log.read_text().splitlines()]
        assert loads
        for loaded in loads:
            assert loaded["values"] == [float(loaded["epoch"])]


def test_a_newcomer_whose_only_partner_leaves_says_so_and_trains_when_somebody_is_back(tmp_path: Path) -> None:
    with live_swarm(tmp_path / "run", run_of(width=900, target=400)) as swarm:
        place = ("--port", own_port())
        backbone = swarm.backbone(*place)
        partner = swarm.join("partner", "--max-upload", "4")
        partner.wait_for_epoch(2)
        newcomer, folder = swarm.join("newcomer"), swarm.directory / "newcomer"
        wait_until(lambda: progress_of(folder) > 0.0, "a part of the state", newcomer)
        for peer in (backbone, partner):
            peer.kill()

        def complaint() -> bool:
            return any(notice["text"] == "no other trainer is here any more" for notice in newcomer.all("Notice"))

        wait_until(complaint, "the newcomer to say so", newcomer)
        assert not newcomer.all("StateFetched")
        swarm.backbone(*place)
        swarm.join("partner")
        fetched(newcomer)
        newcomer.wait_to_contribute()
