"""A parameter store that fails: the run goes on where another backbone reaches it, and people hear why it does not."""

from pathlib import Path

from collab.metrics.records import Notice
from collab.swarm.parameter_store.eras import EraStores
from tests.simulation.mortal_store import COMPLAINT, FULL, MortalStore, Way
from tests.simulation.swarm import SimSwarm


def test_a_backbone_whose_own_way_to_the_store_breaks_leaves_the_run_to_one_that_reaches_it(tmp_path: Path) -> None:
    units = "shards: 8, first_lease_s: 20.0"
    swarm = SimSwarm(tmp_path, strategy="vc_asgd", until=64, every=8, units=units)
    store = MortalStore(swarm.world)
    ways = Way(store), Way(store)
    swarm.roles.stores = EraStores(lambda _era: ways[0])
    swarm.backbones_stay_s = 20.0
    first = swarm.add_backbone()

    def join() -> None:
        swarm.roles.stores = EraStores(lambda _era: ways[1])
        swarm.add_backbone(has_joined=True)

    told: list[tuple[str, str]] = []

    def break_it() -> None:
        ways[0].is_broken = True

    swarm.world.call_at(1.0, join)
    swarm.world.call_at(20.0, break_it)
    swarm.world.call_at(60.0, lambda: told.append(swarm.backbones[first.index].not_saved()))
    for _ in range(2):
        swarm.add_trainer()
    with swarm.world:
        swarm.world.run(until_s=300.0)
    stored = store.read()
    assert stored is not None
    assert stored.version == 64
    problems = [event for event in swarm.events(first, Notice) if event.is_problem]
    assert [event.text for event in problems].count(COMPLAINT) == 1
    assert told == [(COMPLAINT, "is the way to it open?")]


def test_that_a_store_takes_no_push_is_told_where_it_is_kept_and_clients_hear_only_that_it_fails(
    tmp_path: Path,
) -> None:
    swarm = SimSwarm(tmp_path, strategy="vc_asgd", until=48, every=8, units="shards: 8, first_lease_s: 20.0")
    way = Way(MortalStore(swarm.world))
    swarm.roles.stores = EraStores(lambda _era: way)
    swarm.backbones_stay_s = 40.0
    backbone, client = swarm.add_backbone(), swarm.add_trainer()
    told: list[str] = []

    def be_full(now: bool) -> None:
        way.is_full = now

    swarm.world.call_at(12.0, lambda: be_full(True))
    swarm.world.call_at(50.0, lambda: told.append(swarm.backbones[backbone.index].not_saved()[0]))
    swarm.world.call_at(60.0, lambda: be_full(False))
    with swarm.world:
        swarm.world.run(until_s=400.0)
    assert way.version() == 48, "nothing that was computed is lost"
    assert told == [FULL]
    heard = [event for event in swarm.events(backbone, Notice) if FULL in (event.text, event.settles)]
    assert [event.is_problem for event in heard] == [True, False]
    waits = [event.text for event in swarm.events(client, Notice) if "what we computed waits" in event.text]
    assert len(waits) == 1
    assert "the parameter store fails" in waits[0]
    assert "10.1.2.3" not in waits[0]
