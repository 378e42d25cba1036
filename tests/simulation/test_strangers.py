"""What a backbone remembers of trainers that came once and are gone: for weeks there are new ones every minute."""

from collections import deque
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.swarm import SimSwarm

BOUNDED = {
    "Certificate.electors": "of the last rounds",
    "Certificate.votes": "of the last rounds",
    "CommitRecord.contributors": "of the last rounds",
    "CommitRecord.members": "of the last rounds",
    "Courtesy._waited_at": "those whose word is there, when the next word comes",
    "Downlink._paths": "ten minutes, when the next one comes",
    "Electors._met_s": "4,096, half an hour",
    "Guard._quiet": "two minutes, when the next one comes; 1,024 at most",
    "Holders._known": "those who are there, when trainers tell of data again",
    "Holders._words": "ten minutes, when the page is read again, or when it has long been done",
    "Ledger._accounts": "half an hour, when the next round has committed; 4,096 at most",
    "Pace.shown": "those of the ledger",
    "Pace.speeds": "those who are there, when the directory was read",
    "Planner._basis": "of the last round",
    "Presence._asked_s": "4,096",
    "Presence._seen_s": "4,096",
    "Presence._left": "4,096",
    "Uplink._paths": "ten minutes, when the next one comes",
    "WorkUnits._brought_s": "1,024",
    "WorkUnits._leased": "until the lease is over, when the next client asks",
}
"""Attributes that hold names of peers, and how long or of how many. A ``TTLCache`` has a bound, and is passed over."""
SHARED = ("collab.simulation", "collab.net.memory", "peers.simulated_roles")
"""What all peers of a simulation have together: nothing of a backbone's own."""
COLLECTIONS = dict | list | set | frozenset | deque | tuple


@pytest.mark.parametrize(
    ("strategy", "units", "met"),
    [
        ("dedloc", "", {"Presence._seen_s", "Ledger._accounts", "Guard._quiet"}),
        ("vc_asgd", "shards: 50, first_lease_s: 10.0", {"Presence._asked_s"}),
    ],
)
def test_all_that_a_backbone_remembers_of_strangers_has_a_bound(
    tmp_path: Path, strategy: str, units: str, met: set[str]
) -> None:
    swarm = SimSwarm(tmp_path, strategy=strategy, until=100_000, every=50, units=units)
    swarm.add_backbone()
    swarm.backbones_stay_s = 1000.0
    strangers: list[str] = []
    trainers: list[int] = []

    def come() -> None:
        new = [swarm.add_trainer() for _ in range(3)]
        for index in trainers[-2:]:
            swarm.world.kill(index)
        trainers.extend(peer.index for peer in new)
        strangers.extend(peer.peer_id for peer in new)

    def leave() -> None:
        for index in trainers:
            swarm.stops[index].set()

    found: set[str] = set()

    def look() -> None:
        found.update(holding(next(iter(swarm.backbones.values())), strangers))

    for at_s in (5.0, 25.0, 45.0):
        swarm.world.call_at(at_s, come)
    swarm.world.call_at(70.0, leave)
    swarm.world.call_at(900.0, look)
    with swarm.world:
        swarm.world.run(until_s=901.0)
    assert met <= found, "they were here, and are looked for"
    assert found <= BOUNDED.keys(), "bound what is new, and say here how"


def holding(root: object, names: Collection[str]) -> set[str]:
    """Class and attribute of all from ``root`` on that holds one of ``names``."""
    found: set[str] = set()
    seen, left = {id(root)}, deque([("", root)])
    while left:
        owner, one = left.popleft()
        for name, part in parts_of(owner, one):
            if isinstance(part, str) and part in names and isinstance(one, COLLECTIONS):
                found.add(name)
            elif id(part) not in seen and not isinstance(part, str | bytes | int | float | type | None):
                seen.add(id(part))
                left.append((name, part))
    return found


def parts_of(owner: str, one: Any) -> Iterator[tuple[str, Any]]:
    """What ``one`` holds, each with the class and attribute that it is found under."""
    kind = type(one)
    if isinstance(one, dict):
        yield from ((owner, part) for part in (*one.keys(), *one.values()))
    elif isinstance(one, COLLECTIONS):
        yield from ((owner, part) for part in one)
    elif (bound := getattr(one, "__self__", None)) is not None:
        yield owner, bound
    elif closure := getattr(one, "__closure__", None):
        yield from ((owner, cell.cell_contents) for cell in closure)
    elif kind.__module__.startswith(("collab", "peers")) and not kind.__module__.startswith(SHARED):
        slots = [slot for base in kind.__mro__ for slot in getattr(base, "__slots__", ())]
        for name in {*getattr(one, "__dict__", ()), *slots}:
            if hasattr(one, name):
                yield f"{kind.__name__}.{name}", getattr(one, name)
