"""Swarms of which only the trainers are played: what rounds come to by hand, who misses them, how near it all is."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import torch

from collab.data.sampling import SampleSampler
from collab.errors import ConfigError
from collab.simulation.account import Account
from collab.simulation.calculated.swarm import CalculatedSwarm
from collab.simulation.residents import residents_of
from collab.simulation.round_forecast import plan_round
from collab.simulation.swarm_file import SwarmFile, parse_swarm
from collab.swarm.bundle import Bundle
from collab.swarm.identity import Identity
from collab.training.replica import Replica
from peers.calculating import Calculation
from peers.figures import Figures
from peers.trying import learnt, simulate

ELEMENTS = 100_000
BACKBONE = {"name": "backbone", "role": "backbone", "up_mbit_per_s": 200, "down_mbit_per_s": 200}
HOMES = {"name": "homes", "count": 4, "seconds_per_microbatch": 0.5, "up_mbit_per_s": 2, "down_mbit_per_s": 10}
DEDLOC = {"name": "dedloc", "target_batch_size": 256}
DIGITS = {"name": "image_classification", "hidden_sizes": [8]}


def swarm_of(*strategies: dict[str, Any], **changes: Any) -> SwarmFile:
    content = {
        "seed": 3,
        "minutes": 2,
        "task": {"name": "none", "num_elements": ELEMENTS, "samples": 4000},
        "optimizer": {"name": "sgd", "learning_rate": 1e-6},
        "averaging": {"compression": "half", "reduction": "mean"},
        "strategies": [{"label": str(number), "strategy": rule} for number, rule in enumerate(strategies)],
        "groups": [BACKBONE, HOMES],
        **changes,
    }
    return parse_swarm(json.dumps(content), origin="the test")


def calculated(swarm: SwarmFile) -> list[Figures]:
    return [outcome.figures for outcome in simulate(swarm, is_calculated=True)]


class Played:
    """A swarm and everything in it."""

    def __init__(self, swarm: SwarmFile) -> None:
        torch.set_num_threads(1)
        self.task, assets = learnt(swarm, Path())
        self.account = Account(has_rounds=True)
        bundle = Bundle(swarm.run_of(swarm.strategies[0]), assets, Identity.from_seed(bytes(32)).peer_id)
        self.residents = residents_of(swarm, end_s=120.0)
        self.swarm = CalculatedSwarm(bundle, self.task, self.residents, self.account)

    def spoil(self, name: str) -> None:
        """Whatever that trainer computes is not finite."""
        loss = self.task.loss

        def spoilt(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
            return loss(model, tensors) * (math.nan if model is self.swarm.trainers[name].replica.model else 1.0)

        self.task.loss = spoilt  # type: ignore[method-assign]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.swarm.__exit__(None, None, None)


def parameters(replica: Replica) -> np.ndarray[Any, np.dtype[np.float32]]:
    return torch.cat([parameter.detach().reshape(-1) for parameter in replica.model.parameters()]).numpy().copy()


# -- one strategy after the other ------------------------------------------------------------------------------------


def test_a_step_is_that_of_one_machine_with_the_whole_batch() -> None:
    """Two equal trainers, 16 samples each in a step: plain SGD on the 32 samples that both have drawn."""
    pair = {**HOMES, "count": 2}
    rule = {**DEDLOC, "target_batch_size": 32, "max_gradient_norm": None}
    with Played(
        swarm_of(
            rule,
            task=DIGITS,
            groups=[BACKBONE, pair],
            optimizer={"name": "sgd", "learning_rate": 0.1},
            averaging={"compression": "exact", "reduction": "mean"},
        )
    ) as played:
        model, sampler = played.task.build_model(), SampleSampler(played.task.num_samples, seed=3, peer_id="")
        model.load_state_dict(played.swarm.keeper.model.state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        played.swarm.run(until_s=10.0)
        for _ in range(played.swarm.keeper.epoch):
            optimizer.zero_grad()
            played.task.loss(model, played.task.batch(sampler.next(32)).tensors).backward()
            optimizer.step()
        assert played.swarm.keeper.epoch >= 3
        expected = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).numpy()
        assert np.allclose(parameters(played.swarm.keeper), expected, atol=1e-5)
        assert np.abs(expected).max() > 0.01


def test_a_step_takes_a_batch_and_the_round_that_is_planned() -> None:
    swarm = swarm_of(DEDLOC)
    (found,) = calculated(swarm)
    planned = plan_round(residents_of(swarm, end_s=120.0), num_elements=ELEMENTS, policy="half", batch_s=4.0)
    assert found.round_s == pytest.approx(planned.seconds, rel=1e-6)
    assert found.step_s == pytest.approx(256 / 8 / 4 * 0.5 + planned.seconds, rel=1e-6)
    assert found.samples_per_s == pytest.approx(256 / found.step_s, rel=1e-6)
    assert found.committed_samples == 256 * found.steps
    sent = planned.bytes_of["homes 0"][0] * found.steps
    assert found.sent_bytes_of_a_trainer == pytest.approx(sent, rel=0.01)


def test_what_waits_for_nobody_computes_all_the_time() -> None:
    delayed, windows, phases = calculated(
        swarm_of(
            {**DEDLOC, "delay": 1},
            {"name": "dts", "target_batch_size": 256},
            {"name": "diloco", "target_batch_size": 256, "delay": 1},
        )
    )
    for found in (delayed, windows, phases):
        assert found.compute_use > 0.99
        assert found.samples_per_s == pytest.approx(64, rel=0.02)
        assert found.lost_share == 0


def test_units_wait_for_their_parameters_and_for_the_servers_link() -> None:
    """40 samples in 2.5 s; 0.4 MB at 10 Mbit/s down and 2 up take 1.9 s and some ways."""
    units = {"name": "vc_asgd", "shards": 100}
    (free,) = calculated(swarm_of(units))
    assert free.step_s * 4 == pytest.approx(2.5 + 0.32 + 1.6, rel=0.15)
    assert free.committed_samples == 40 * free.steps
    thin = {**BACKBONE, "up_mbit_per_s": 2, "down_mbit_per_s": 2}
    (held_up,) = calculated(swarm_of(units, groups=[thin, HOMES]))
    assert held_up.step_s == pytest.approx(1.6, rel=0.05), "the server sends one after the other"


def test_more_units_at_once_hide_the_way_of_the_parameters() -> None:
    one, three = calculated(
        swarm_of({"name": "vc_asgd", "shards": 50}, {"name": "vc_asgd", "shards": 50, "units_at_once": 3})
    )
    assert three.compute_use > 0.95 > 0.8 > one.compute_use


def test_what_encodings_leave_out_comes_with_a_later_round() -> None:
    """Most elements do not travel in a round, and the model learns nearly as well: they do not stay behind."""
    sparse, exact = calculated(
        swarm_of(
            DEDLOC, DEDLOC, task=DIGITS, minutes=3, optimizer={"name": "sgd", "learning_rate": 0.1},
            strategies=[
                {"label": name, "strategy": {**DEDLOC, "target_batch_size": 64},
                 "averaging": {"compression": name, "reduction": "mean"}}
                for name in ("sparse", "exact")
            ],
        )
    )  # fmt: skip
    assert sparse.sent_bytes_of_a_trainer < exact.sent_bytes_of_a_trainer / 2
    assert exact.held_out_loss < 2.0
    assert sparse.held_out_loss < 2.2
    assert not math.isclose(sparse.held_out_loss, exact.held_out_loss, rel_tol=1e-3)


# -- comings and goings ----------------------------------------------------------------------------------------------


def coming_and_going(*happenings: dict[str, Any], **group: Any) -> list[dict[str, Any]]:
    some = {**HOMES, "name": "some", "count": 1, "churn": {"kind": "trace", "happenings": list(happenings)}, **group}
    return [BACKBONE, HOMES, some]


def test_a_newcomer_takes_over_the_state_and_is_in_the_next_round() -> None:
    groups = coming_and_going({"peer": 0, "at_s": 30, "what": "join"})
    with Played(swarm_of({**DEDLOC, "target_batch_size": 64}, task=DIGITS, groups=groups)) as played:
        played.swarm.run(until_s=33.0)
        assert not played.swarm.trainers["some"].replica.lineage, "three seconds to find the swarm"
        played.swarm.run(until_s=60.0)
        trainers = played.swarm.trainers
        assert len(trainers) == 5
        assert len({trainer.epoch for trainer in trainers.values()}) == 1
        for trainer in trainers.values():
            assert np.array_equal(parameters(trainer.replica), parameters(played.swarm.keeper))
        assert played.account.tallies["some"].computed_samples > 0
        assert played.account.committed_samples + played.swarm.held_samples == played.account.computed_samples


@pytest.mark.parametrize("what", ["kill", "leave"])
def test_who_goes_takes_along_what_no_step_has(what: str) -> None:
    (found,) = calculated(swarm_of(DEDLOC, groups=coming_and_going({"peer": 0, "at_s": 63, "what": what})))
    lost = found.computed_samples - found.committed_samples - found.held_samples
    assert 0 < lost <= 256 / 5 + 8
    assert lost % 8 == 0
    assert found.rounds_lost == 0
    assert found.steps > 20, "the others go on"


def test_who_is_killed_in_a_round_is_not_in_its_mean() -> None:
    swarm = swarm_of(DEDLOC)
    (undisturbed,) = calculated(swarm)
    in_a_round_s = 2 * undisturbed.step_s - undisturbed.round_s / 2
    killed = {"name": "gone", "count": 1, "churn": {
        "kind": "trace", "happenings": [{"peer": 0, "at_s": in_a_round_s, "what": "kill"}]
    }}  # fmt: skip
    groups = [BACKBONE, {**HOMES, "count": 3}, {**HOMES, **killed}]
    (found,) = calculated(swarm_of(DEDLOC, groups=groups))
    lost = found.computed_samples - found.committed_samples - found.held_samples
    assert lost == 64, "its quarter of the batch"


def test_a_slow_one_is_not_waited_for_and_loses_nothing() -> None:
    slow = {**HOMES, "name": "slow", "count": 1, "seconds_per_microbatch": 20}
    with Played(swarm_of(DEDLOC, groups=[BACKBONE, {**HOMES, "count": 8}, slow])) as played:
        for _ in range(12):
            played.swarm.run(until_s=played.swarm.time_s + 10.0)
            late = played.swarm.trainers["slow"]
            assert played.swarm.epoch - late.epoch <= 8, "a microbatch of 20 s is some seven steps of the others"
        played.swarm.run(until_s=121.0)
        assert played.swarm.epoch > late.epoch > 25
        assert played.account.tallies["slow"].computed_samples == 5 * 8
        assert played.account.committed_samples + played.swarm.held_samples == played.account.computed_samples


def test_who_has_computed_nothing_finite_is_not_waited_for() -> None:
    with Played(swarm_of({**DEDLOC, "target_batch_size": 32}, task=DIGITS)) as played:
        played.spoil("homes 0")
        played.swarm.run(until_s=20.0)
        assert played.swarm.epoch > 5


def test_a_round_waits_until_somebody_can_reduce() -> None:
    away = {"kind": "trace", "happenings": [{"peer": 0, "at_s": 40, "what": "join"}]}
    groups = [{**BACKBONE, "churn": away}, {**HOMES, "client_mode": True}]
    with Played(swarm_of(DEDLOC, groups=groups)) as played:
        played.swarm.run(until_s=39.9)
        assert played.swarm.epoch == 0
        played.swarm.run(until_s=60.0)
        assert played.swarm.epoch > 1


def test_who_leaves_counts_with_what_is_over_in_two_seconds_and_is_gone_then() -> None:
    """Microbatches of 20 s: the one that is under way is not waited for."""
    slow = {**HOMES, "name": "slow", "count": 1, "seconds_per_microbatch": 20}
    away = {"kind": "trace", "happenings": [{"peer": 0, "at_s": 30, "what": "leave"}]}
    with Played(swarm_of(DEDLOC, groups=[BACKBONE, HOMES, {**slow, "churn": away}])) as played:
        played.swarm.run(until_s=29.9)
        assert "slow" in played.swarm.trainers
        played.swarm.run(until_s=34.0)
        assert "slow" not in played.swarm.trainers
        assert played.account.tallies["slow"].computed_samples == 8


def test_a_stay_that_is_over_before_the_last_one_has_ended_does_not_begin() -> None:
    slow = {**HOMES, "name": "slow", "count": 1, "seconds_per_microbatch": 20}
    happenings = [
        {"peer": 0, "at_s": at_s, "what": what}
        for at_s, what in ((30, "leave"), (30.5, "join"), (31.2, "leave"), (60, "join"), (61, "kill"))
    ]
    trace = {"kind": "trace", "happenings": happenings}
    with Played(swarm_of(DEDLOC, groups=[BACKBONE, HOMES, {**slow, "churn": trace}])) as played:
        played.swarm.run(until_s=50.0)
        assert "slow" not in played.swarm.trainers
        assert len(played.account.tallies["slow"].accesses) == 1
        played.swarm.run(until_s=60.5)
        assert len(played.account.tallies["slow"].accesses) == 2


@pytest.mark.parametrize(
    "rule", [DEDLOC, {**DEDLOC, "delay": 1}, {"name": "solo", "target_batch_size": 32}, {"name": "vc_asgd"}]
)
def test_it_ends_with_the_last_epoch_and_not_later(rule: dict[str, Any]) -> None:
    swarm = swarm_of(rule, task=DIGITS, minutes=None, epochs=7, optimizer={"name": "sgd", "learning_rate": 0.1})
    (found,) = calculated(swarm)
    each = 4 if rule["name"] == "solo" else 1
    in_flight = 3 if rule["name"] == "vc_asgd" else 0
    assert 7 * each <= found.steps <= 7 * each + in_flight
    assert found.held_out_loss < 2.35


def test_a_client_whose_units_give_nothing_finite_goes_on_to_others() -> None:
    with Played(swarm_of({"name": "vc_asgd", "shards": 20}, task=DIGITS)) as played:
        played.spoil("homes 0")
        played.swarm.run(until_s=60.0)
        assert played.swarm.epoch > 1
        assert "homes 0" not in played.account.tallies or played.account.tallies["homes 0"].computed_samples == 0


def test_a_unit_whose_client_is_killed_is_done_by_another_when_its_lease_is_over() -> None:
    units = {"name": "vc_asgd", "shards": 40, "first_lease_s": 20}
    groups = coming_and_going({"peer": 0, "at_s": 31, "what": "kill"})
    (found,) = calculated(swarm_of(units, minutes=3, groups=groups))
    lost = found.computed_samples - found.committed_samples - found.held_samples
    assert 0 < lost <= 100
    assert found.steps > 80, "two passes, each unit of them once"


# -- the whole of it -------------------------------------------------------------------------------------------------


def test_one_seed_gives_one_digest_and_another_seed_another() -> None:
    churn = {"kind": "sessions", "mean_session_s": 40, "mean_absence_s": 20, "killed": 0.5}
    rules = DEDLOC, {"name": "dts", "target_batch_size": 256}, {"name": "vc_asgd", "shards": 50}
    swarm = swarm_of(*rules, task=DIGITS, groups=[BACKBONE, {**HOMES, "churn": churn}])
    first, again = calculated(swarm), calculated(swarm)
    assert [found.digest for found in first] == [found.digest for found in again]
    assert [found.held_out_loss for found in first] == [found.held_out_loss for found in again]
    other = calculated(swarm.model_copy(update={"seed": 4}))
    assert all(one.digest != another.digest for one, another in zip(first, other, strict=True))


def test_it_comes_to_what_the_roles_of_a_real_run_come_to() -> None:
    rules = DEDLOC, {"name": "diloco", "target_batch_size": 512, "delay": 1}, {"name": "vc_asgd", "shards": 50}
    swarm = swarm_of(*rules, groups=[BACKBONE, {**HOMES, "spread": 0.3}])  # else clients push all at once
    played = [outcome.figures for outcome in simulate(swarm)]
    for near, found in zip(calculated(swarm), played, strict=True):
        assert near.samples_per_s == pytest.approx(found.samples_per_s, rel=0.1)
        assert near.step_s == pytest.approx(found.step_s, rel=0.1)
        assert 0.7 < near.sent_bytes_of_a_trainer / found.sent_bytes_of_a_trainer < 1.05, "without words and probes"


def test_rounds_of_several_windows_are_refused() -> None:
    swarm = swarm_of({"name": "dts", "target_batch_size": 256, "windows": 8})
    task, assets = learnt(swarm, Path())
    with pytest.raises(ConfigError, match="rounds of several windows cannot be calculated"):
        Calculation(swarm, swarm.strategies[0], task, assets)
