"""Real processes: the clocks of their machines are set while they take part.

A machine's clock cannot be set for one process, so what each reads of it is shifted, in the whole process.
"""

from functools import partial
from pathlib import Path

from tests.live.habits import live_by_the_clock_in, set_clock
from tests.live.processes import Peer, live_swarm, wait_until
from tests.live.test_swarm_life import dashboard_of, digits

FORWARD_S, BACK_S = 600.0, -600.0
MORE = 5
"""Steps."""


def go_on(*trainers: Peer) -> None:
    """Until each has contributed to some more steps."""
    for trainer in trainers:
        done = sum(step["own_samples"] > 0 for step in trainer.steps)
        wait_until(
            lambda: sum(step["own_samples"] > 0 for step in trainer.steps) >= done + MORE,  # noqa: B023
            f"{trainer.name} to contribute",
            trainer,
        )


def test_a_trainer_and_the_first_backbone_whose_clocks_are_set_go_on_as_before(tmp_path: Path) -> None:
    clocks = {name: tmp_path / f"{name}.clock" for name in ("backbone", "set")}
    for clock in clocks.values():
        set_clock(clock, 0.0)
    its_own = {name: partial(live_by_the_clock_in, str(clock)) for name, clock in clocks.items()}
    with live_swarm(tmp_path / "run", digits(until=100000, every=35)) as swarm:
        backbone = swarm.backbone(habits=its_own["backbone"])
        trainers = [swarm.join("as it was"), swarm.join("set", habits=its_own["set"])]
        go_on(*trainers)

        set_clock(clocks["set"], FORWARD_S)
        go_on(*trainers)
        set_clock(clocks["backbone"], BACK_S)
        go_on(*trainers)

        trainers.append(swarm.join("newcomer"))
        go_on(*trainers)
        names = {trainer.name for trainer in trainers}
        shown = dashboard_of(backbone)
        assert {peer["name"] for peer in shown["peers"] if peer["role"] == "trainer"} == names
        swarm.end()
        assert len({trainer.finish()["lineage"] for trainer in trainers}) == 1
