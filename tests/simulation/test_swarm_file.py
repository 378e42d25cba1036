"""The swarm file: what is refused, in which words, and which machines come out of it."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest

from collab.errors import ConfigError
from collab.simulation.residents import residents_of
from collab.simulation.swarm_file import SwarmFile, load_swarm, parse_swarm

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "docs" / "swarms").glob("*.yaml"))
VALID: dict[str, Any] = {
    "minutes": 3,
    "task": {"name": "image_classification"},
    "strategies": [{"strategy": {"name": "dedloc", "target_batch_size": 64}}],
    "groups": [
        {"name": "backbone", "role": "backbone"},
        {"name": "homes", "count": 4, "samples_per_s": 10},
    ],
}


def changed(change: Any) -> dict[str, Any]:
    content = copy.deepcopy(VALID)
    change(content)
    return content


def parsed(content: Any) -> SwarmFile:
    return parse_swarm(json.dumps(content), origin="swarm.yaml")


def homes(**fields: Any) -> SwarmFile:
    return parsed(changed(lambda c: c["groups"][1].update(fields)))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda c: c.update(minuts=3), "minuts: unknown field (misspelt?)"),
        (lambda c: c.pop("minutes"), "minutes or epochs: how long should it be simulated?"),
        (lambda c: c.update(strategies=[]), "strategies: "),
        (lambda c: c["groups"].pop(0), "groups: there must be one of role backbone"),
        (lambda c: c["groups"].pop(1), "groups: there must be one of role trainer"),
        (lambda c: c["groups"][1].pop("samples_per_s"), "either samples_per_s or seconds_per_microbatch"),
        (lambda c: c["groups"][1].update(seconds_per_microbatch=1), "either samples_per_s or seconds_per_microbatch"),
        (lambda c: c["groups"][0].update(samples_per_s=1), "computes nothing; take its speed out"),
        (lambda c: c["groups"][0].update(client_mode=True), "must be one that can be dialled"),
        (lambda c: c["groups"][1].update(name="backbone"), "'backbone' is there twice"),
        (lambda c: c["strategies"].append(c["strategies"][0]), "'dedloc' is there twice; give each its own name"),
        (lambda c: c["groups"][1].update(up_mbit_per_s=-1), "groups.1.up_mbit_per_s: Input should be greater than"),
        (lambda c: c["groups"][1].update(churn={"kind": "sessions", "mean_session_s": 60}), "mean_absence_s"),
        (
            lambda c: c["groups"][1].update(
                churn={"kind": "trace", "happenings": [{"peer": 4, "at_s": 1, "what": "leave"}]}
            ),
            "the trace names peer 4, but there are 4, from 0",
        ),
        (lambda c: c["strategies"][0]["strategy"].update(name="deloc"), "strategies.0.strategy"),
        (
            lambda c: c.update(averaging={"worker_momentum": 0.9}, strategies=[{"strategy": {"name": "dts"}}]),
            "averaging.worker_momentum is of gradients",
        ),
        (lambda c: c.update(task={"name": "none"}), "num_elements: Field required"),
        (
            lambda c: c.update(task={"name": "none", "num_elements": 10, "thinned": 11}),
            "thinned: at most num_elements (10)",
        ),
        (
            lambda c: c.update(task={"name": "none", "num_elements": 10}, target_loss=1),
            "target_loss: with task none nothing is learnt",
        ),
    ],
)
def test_a_mistake_is_named_with_its_place(change: Any, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(changed(change))
    assert complaint in str(caught.value)
    assert "docs/simulator.md" in str(caught.value)


def test_a_file_that_is_none_ends_in_one_message_with_a_next_step(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the swarm file"):
        load_swarm(tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigError, match="should be a map of fields"):
        parse_swarm("- 1", origin="swarm.yaml")


def test_strategies_are_chosen_by_name() -> None:
    swarm = parsed(changed(lambda c: c["strategies"].append({"label": "alone", "strategy": {"name": "solo"}})))
    assert [contender.title for contender in swarm.contenders()] == ["dedloc", "alone"]
    assert [contender.title for contender in swarm.contenders(("alone",))] == ["alone"]
    with pytest.raises(ConfigError, match="no strategy 'dts'"):
        swarm.contenders(("dts",))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_a_swarm(path: Path) -> None:
    swarm = load_swarm(path)
    found = residents_of(swarm, end_s=600.0)
    assert len(found) == sum(group.count for group in swarm.groups)
    assert found[0].role == "backbone"


def test_there_are_examples() -> None:
    assert len(EXAMPLES) > 5


# -- machines --------------------------------------------------------------------------------------------------------


def test_machines_are_as_their_group_says() -> None:
    swarm = homes(up_mbit_per_s=20, down_mbit_per_s=100, latency_ms=15, price_per_hour=0.5, client_mode=True)
    backbone, *trainers = residents_of(swarm, end_s=100.0)
    assert backbone.role == "backbone"
    assert not backbone.samples_per_s
    assert [trainer.name for trainer in trainers] == ["homes 0", "homes 1", "homes 2", "homes 3"]
    for trainer in trainers:
        assert trainer.samples_per_s == pytest.approx(10.0)
        assert trainer.link.up_bytes_per_s == pytest.approx(2.5e6)
        assert trainer.link.down_bytes_per_s == pytest.approx(12.5e6)
        assert trainer.link.latency_s == pytest.approx(0.015)
        assert trainer.client_mode
        assert trainer.price_until(7200.0) == pytest.approx(1.0)


def test_speeds_spread_around_what_is_given_and_follow_from_the_seed() -> None:
    def speeds(seed: int) -> list[float]:
        swarm = homes(spread=0.3, count=400).model_copy(update={"seed": seed})
        return [resident.samples_per_s for resident in residents_of(swarm, end_s=1.0)[1:]]

    assert speeds(1) == speeds(1) != speeds(2)
    logs = [math.log(speed / 10.0) for speed in speeds(1)]
    assert abs(sum(logs) / len(logs)) < 0.05
    assert 0.27 < math.sqrt(sum(x * x for x in logs) / len(logs)) < 0.33


def test_part_timers_are_there_as_long_as_they_should_be_from_the_beginning_on() -> None:
    churn = {"kind": "sessions", "mean_session_s": 300, "mean_absence_s": 900, "killed": 0.5}
    trainers = residents_of(homes(count=400, churn=churn), end_s=7200.0)[1:]
    for until_s in (60.0, 7200.0):
        assert 0.2 < sum(t.seconds_until(until_s) for t in trainers) / until_s / 400 < 0.3
    sessions = [session for trainer in trainers for session in trainer.sessions]
    assert 0.45 < sum(session.is_killed for session in sessions) / len(sessions) < 0.55
    for trainer in trainers:
        for one, next_one in zip(trainer.sessions, trainer.sessions[1:], strict=False):
            assert one.ends_s < next_one.joins_s


def test_a_trace_is_kept_to_the_letter() -> None:
    lines = [(0, 10, "leave"), (0, 20, "join"), (0, 30, "kill"), (1, 5, "join"), (1, 6, "join")]
    happenings = [{"peer": peer, "at_s": at_s, "what": what} for peer, at_s, what in lines]
    trainers = residents_of(homes(churn={"kind": "trace", "happenings": happenings}), end_s=100.0)[1:]
    stays = [[(s.joins_s, s.ends_s, s.is_killed) for s in trainer.sessions] for trainer in trainers]
    assert stays[0] == [(0.0, 10.0, False), (20.0, 30.0, True)]
    assert stays[1] == [(5.0, math.inf, False)]
    assert stays[2] == stays[3] == [(0.0, math.inf, False)]
