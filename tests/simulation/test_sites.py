"""DTS where every site has data of its own that stays there: digits of a few labels each, rounds over long ways."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from sites_swarm import Course, Sites, train_synchronously

from collab.metrics.records import BlockTrained, DataCovered, EpochFinished
from tests.simulation.test_leases import Stored, stored

__all__ = ["stored"]


def course(*, is_skewed: bool) -> Course:
    return Course(seed=0, is_skewed=is_skewed, rounds=80, step_ms=100.0)


def test_sites_with_labels_of_their_own_learn_all_of_them_and_tell_nobody_about_their_data(
    tmp_path: Path, stored: Stored
) -> None:
    skewed = course(is_skewed=True)
    assert {task.num_samples for task in skewed.tasks()} != {1297}, "no site has all"
    sites = Sites(skewed, tmp_path)
    seen = sites.run()
    trainers = sites.world.peers[1:]
    assert seen.window >= 4, "rounds take some steps"
    for peer in trainers:
        finished = [event for event in peer.events if isinstance(event, EpochFinished)]
        assert finished[-1].contributors == 4
    plain = train_synchronously(course(is_skewed=False), seen.steps)
    assert seen.result.accuracy > plain.accuracy - 0.04
    assert stored
    assert not [key for key, _ in stored if ".data." in key], "no pages of blocks"
    assert not [value for _, value in stored if b"samples." in value], "no name of any data"
    events = [event for peer in sites.world.peers for event in peer.events]
    assert not [event for event in events if isinstance(event, DataCovered | BlockTrained)]
