"""Who contributes to a round, and in which encoding."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import get_args

import numpy as np
import pytest

from collab.averaging.contribution_plan import (
    RESULT_CODECS,
    ContributionPlan,
    Member,
    Policy,
    allowed_codecs,
    plan_contributions,
)
from collab.averaging.shares import PeerLink, solve
from collab.types import PeerId

MBIT = 1e6 / 8
NUM_ELEMENTS = 2_000_000
BYTES_PER_ELEMENT = {
    "none": 4.0, "float16": 2.0, "int8": 1 + 4 / 256, "int4": 0.5 + 2 / 32, "topk": 3.5 / 64, "topk_sign": 341 / 4096
}  # fmt: skip
HET = (200.0, 200.0, 20.0, 25.0, 30.0, 35.0, 40.0, 50.0)
HET_OPTIMUM_S = 3.2
BITS = {"float16": 16, "int8": 8, "int4": 4}


def trainer(index: int, up_mbit: float, down_mbit: float | None = None, work: float = 1.0) -> Member:
    return Member(
        peer=PeerId(f"peer{index}"),
        up_bytes_per_s=up_mbit * MBIT,
        down_bytes_per_s=(up_mbit if down_mbit is None else down_mbit) * MBIT,
        has_gradient=True,
        can_reduce=True,
        receives=True,
        work=work,
    )


def trainers(rates_mbit: Sequence[float]) -> list[Member]:
    return [trainer(index, rate) for index, rate in enumerate(rates_mbit)]


def plan(members: Sequence[Member], policy: Policy = "auto", accumulate_s: float | None = None) -> ContributionPlan:
    return plan_contributions(
        members,
        num_elements=NUM_ELEMENTS,
        bytes_per_element=BYTES_PER_ELEMENT,
        policy=policy,
        accumulate_s=accumulate_s,
    )


def round_s(members: Sequence[Member], codecs: dict[PeerId, str], result_codec: str) -> float:
    links = [
        PeerLink(
            peer=member.peer,
            up_bytes_per_s=member.up_bytes_per_s,
            down_bytes_per_s=member.down_bytes_per_s,
            payload_bytes=NUM_ELEMENTS * BYTES_PER_ELEMENT[codecs[member.peer]] if member.peer in codecs else 0.0,
            can_reduce=member.can_reduce,
            receives=member.receives,
        )
        for member in members
    ]
    return solve(links, NUM_ELEMENTS * BYTES_PER_ELEMENT[result_codec]).seconds


def random_trainers(count: int, seed: int) -> list[Member]:
    rng = np.random.default_rng(seed)
    members = [trainer(index, *np.exp(rng.uniform(np.log(5), np.log(300), 2))) for index in range(count)]
    return [*members[:1], *(replace(member, can_reduce=bool(rng.random() < 0.7)) for member in members[1:])]


@pytest.mark.parametrize(
    ("policy", "codec"), [("exact", "none"), ("half", "float16"), ("int8", "int8"), ("int4", "int4")]
)
def test_policies_but_auto_have_one_encoding_for_everything(policy: Policy, codec: str) -> None:
    chosen, seconds = plan(trainers(HET), policy), HET_OPTIMUM_S * BYTES_PER_ELEMENT[codec] / 4
    assert set(chosen.codecs.values()) == {chosen.result_codec} == {codec}
    assert len(chosen.codecs) == len(HET)
    assert chosen.seconds == pytest.approx(seconds)


def test_sparse_has_the_largest_elements_of_everybody_and_an_int8_mean() -> None:
    chosen = plan(trainers(HET), "sparse")
    assert set(chosen.codecs.values()) == {"topk"}
    assert chosen.result_codec == "int8"
    members = [trainer(index, 10, 100) for index in range(6)]
    helped = [*members, replace(trainer(6, 1000, 1000), has_gradient=False, receives=False)]
    assert plan(helped, "sparse").seconds < 0.2 * plan(helped, "auto").seconds, "with a fat link that reduces"
    slow = [*trainers([25] * 7), trainer(7, 2, 25, work=1 / 50)]
    assert not plan(slow, "sparse", accumulate_s=10.0).excluded, "half a second brings all that it has"


@pytest.mark.parametrize("policy", get_args(Policy))
def test_no_plan_has_encodings_that_its_policy_does_not_allow(policy: Policy) -> None:
    sent, result = allowed_codecs(policy)
    for seed in range(5):
        for accumulate_s in (None, 0.5, 60.0):
            chosen = plan(random_trainers(5, seed), policy, accumulate_s)
            assert set(chosen.codecs.values()) <= sent
            assert chosen.result_codec in result
    assert result <= RESULT_CODECS


def test_auto_gives_each_sender_the_codec_that_fits_its_link() -> None:
    chosen = plan(trainers(HET))
    assert list(chosen.codecs.values()) == ["float16"] * 2 + ["int8"] * 4 + ["float16"] * 2
    assert chosen.result_codec == "int8"
    assert chosen.seconds <= 0.28 * HET_OPTIMUM_S


def test_auto_goes_down_to_int4_where_uploads_are_what_everybody_waits_for() -> None:
    chosen = plan([trainer(index, 10, 100) for index in range(6)])
    assert set(chosen.codecs.values()) == {"int4"}
    assert chosen.result_codec == "int8"


def test_auto_is_exact_when_a_float32_round_is_short_beside_the_batch() -> None:
    assert plan(trainers(HET), accumulate_s=33.0) == plan(trainers(HET), "exact", accumulate_s=33.0)
    assert "none" not in plan(trainers(HET), accumulate_s=31.0).codecs.values()


def test_auto_is_no_faster_than_the_batch_is_worth() -> None:
    times = [plan(trainers(HET), accumulate_s=seconds).seconds for seconds in (0.0, 10.0, 16.0, 24.0)]
    assert times == sorted(times)
    assert times[2] == pytest.approx(1.6)


def test_without_the_smaller_codecs_auto_is_half_precision() -> None:
    half_only = {name: BYTES_PER_ELEMENT[name] for name in ("none", "float16")}
    chosen = plan_contributions(
        trainers(HET), num_elements=NUM_ELEMENTS, bytes_per_element=half_only, policy="auto", accumulate_s=None
    )
    assert chosen == plan(trainers(HET), "half")


def test_auto_is_within_five_per_cent_of_the_fastest_of_all_assignments_and_nearly_as_exact_as_any_that_is() -> None:
    kept = []
    for seed in range(20):
        members = random_trainers(3, seed)
        chosen = plan(members)
        every = {
            (codecs, result): round_s(members, {m.peer: c for m, c in zip(members, codecs, strict=True)}, result)
            for codecs in product(BITS, repeat=3)
            for result in ("float16", "int8")
        }
        fastest_s = min(every.values())
        assert chosen.seconds <= 1.05 * fastest_s * (1 + 1e-9)
        most_bits = max(sum(BITS[c] for c in codecs) for (codecs, _), s in every.items() if s <= 1.05 * fastest_s)
        kept.append(sum(BITS[codec] for codec in chosen.codecs.values()) / most_bits)
    assert min(kept) >= 0.5
    assert np.mean(kept) >= 0.95


def test_the_plan_is_the_solution_for_its_own_encodings() -> None:
    for seed in range(20):
        members = random_trainers(6, seed)
        chosen = plan(members, accumulate_s=2.0)
        assert chosen.seconds == pytest.approx(round_s(members, dict(chosen.codecs), chosen.result_codec))
        assert set(chosen.codecs) == {member.peer for member in members} - set(chosen.excluded)


@pytest.mark.parametrize("policy", ["exact", "half", "int4", "auto"])
def test_a_slow_peer_that_does_little_is_not_waited_for(policy: Policy) -> None:
    members = [*trainers([25] * 7), trainer(7, 2, 25, work=1 / 50)]
    chosen = plan(members, policy, accumulate_s=10.0)
    assert chosen.excluded == ("peer7",)
    assert chosen.seconds < 1.2 * plan(members[:7], policy, accumulate_s=10.0).seconds


def test_a_sender_stays_exactly_as_long_as_it_costs_at_most_twice_its_work_over_that_of_the_others() -> None:
    fast = trainers([25] * 7)
    without_s = plan([*fast, replace(trainer(7, 2, 25), has_gradient=False)], "exact").seconds
    accumulate_s, with_s = 500.0, NUM_ELEMENTS * 4 / (2 * MBIT)
    part = ((accumulate_s + with_s) / (accumulate_s + without_s) - 1) / 2
    for factor, excluded in ((1.001, ()), (0.999, ("peer7",))):
        work = 7 * factor * part
        members = [*fast, trainer(7, 2, 25, work=work)]
        assert plan(members, "exact", accumulate_s).excluded == excluded


def test_two_equally_slow_peers_are_left_out_together_and_the_slowest_first() -> None:
    members = [*trainers([25] * 6), trainer(6, 2, 25, work=0.02), trainer(7, 1.9, 25, work=0.02)]
    assert plan(members, accumulate_s=10.0).excluded == ("peer7", "peer6")


def test_a_slow_peer_that_does_most_of_the_work_is_waited_for() -> None:
    members = [*trainers([25] * 3), trainer(3, 5, 25, work=10.0)]
    assert plan(members, accumulate_s=10.0).excluded == ()


@pytest.mark.parametrize("work", [1.0, 0.5, 1.5])
def test_those_left_out_have_at_most_half_of_all_work(work: float) -> None:
    """A member that downloads next to nothing could reduce everything, and be alone in the mean."""
    for down_mbit in (1e-6, 1e-2, 0.1):
        members = [*trainers([25] * 7), trainer(7, 25, down_mbit, work=work)]
        chosen = plan(members, accumulate_s=30.0)
        assert sum(member.work for member in members if member.peer in chosen.excluded) <= (7 + work) / 2
        slow = [*trainers([1, 1, 1, 1, 1]), trainer(5, 300), trainer(6, 300, work=work)]
        left_out = plan(slow, accumulate_s=0.1).excluded
        assert len(left_out) <= (6 + work) / 2


def test_nobody_is_left_out_while_it_is_unknown_how_long_a_batch_takes_or_who_does_the_work() -> None:
    members = [*trainers([25] * 7), trainer(7, 0.1, 25, work=0.001)]
    assert plan(members).excluded == ()
    assert plan([replace(member, work=0.0) for member in members], accumulate_s=10.0).excluded == ()


def test_somebody_always_contributes() -> None:
    chosen = plan([trainer(0, 1, 100, work=1e-6), trainer(1, 1.1, 100, work=1e-6)], accumulate_s=0.0)
    assert len(chosen.codecs) >= 1


def test_peers_left_out_still_receive_and_reduce() -> None:
    members = [*trainers([25] * 3), trainer(3, 0.5, 1, work=0.01)]
    chosen = plan(members, "exact", accumulate_s=10.0)
    assert chosen.excluded == ("peer3",)
    assert chosen.seconds == pytest.approx(NUM_ELEMENTS * 4 / MBIT)
    assert plan([*trainers([2, 2]), trainer(2, 1, 100, work=1e-6)], accumulate_s=1.0).shares.shares[2] > 0


@pytest.mark.parametrize("missing", ["none", "float16"])
def test_a_codec_that_the_policy_needs_and_nobody_has_is_a_value_error(missing: str) -> None:
    sizes = {name: size for name, size in BYTES_PER_ELEMENT.items() if name != missing}
    with pytest.raises(ValueError, match="needs the codecs"):
        plan_contributions(
            trainers(HET), num_elements=NUM_ELEMENTS, bytes_per_element=sizes, policy="auto", accumulate_s=None
        )


def test_an_unknown_policy_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="unknown policy"):
        plan(trainers(HET), "fast")  # type: ignore[arg-type]
