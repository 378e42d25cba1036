"""VC-ASGD's benchmark, in short: fleets in virtual time."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from vcasgd_swarm import Course, train, train_serially


def test_a_fleet_does_every_unit_and_learns() -> None:
    course = Course(seed=0, passes=4, shards=8, clients=3, hidden=32, rate=0.5)
    fleet, found = train(course)
    assert fleet.store.version() == 32
    assert found.accuracy > 0.8, "guessing has 0.1"
    assert train_serially(course).accuracy > 0.8


def test_more_servers_on_thin_links_are_done_sooner() -> None:
    """A client's pulls and pushes go to all of them."""
    sizes = {"passes": 2, "shards": 10, "clients": 4, "hidden": 512, "server_mbit": 4.0}
    one, three = (train(Course(seed=0, servers=servers, **sizes))[0] for servers in (1, 3))  # type: ignore[arg-type]
    assert one.store.version() == three.store.version() == 20
    assert three.training_s < 0.8 * one.training_s
