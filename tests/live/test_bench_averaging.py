"""The averaging benchmark: its yardstick, its check of a result, and one run of each engine."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import averaging_compute as compute  # noqa: E402
import averaging_vectors as vectors  # noqa: E402
from averaging_gauges import Company, Periods, own_cores  # noqa: E402
from averaging_heartbeats import summary  # noqa: E402
from averaging_meters import MemoryUse  # noqa: E402
from averaging_setup import Part, Sizes, equal_shares_s, optimum_s, parse_swarm  # noqa: E402

ELEMENTS = 2_000_000


def run(*arguments: str) -> dict[str, Any]:
    """The JSON object in the program's last line."""
    command = [sys.executable, str(SCRIPTS / "bench_averaging.py"), "--json", *arguments]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return dict(json.loads(result.stdout.splitlines()[-1]))


# -- the yardstick ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "seconds"),
    [("hom25", 4.48), ("het", 3.20), ("home_only", 7.11), ("home_aux", 6.40), ("home_client", 6.40)],
)
def test_the_optimum_of_known_links_is_known(preset: str, seconds: float) -> None:
    swarm = parse_swarm(preset)
    assert optimum_s(swarm, Sizes.of(swarm, ELEMENTS, 4.0)) == pytest.approx(seconds, abs=0.005)


@pytest.mark.parametrize(
    ("preset", "seconds", "gain"),
    [("dedloc_a", 0.79, 1.00), ("dedloc_b", 4.25, 1.00), ("dedloc_c", 2.27, 1.92), ("dedloc_d", 2.55, 1.67)],
)
def test_the_optimum_and_its_gain_over_equal_shares_are_those_of_dedlocs_table(
    preset: str, seconds: float, gain: float
) -> None:
    swarm = parse_swarm(preset)
    sizes = Sizes.of(swarm, 28_350_000, 2.0)
    assert optimum_s(swarm, sizes) == pytest.approx(seconds, abs=0.01)
    assert equal_shares_s(swarm, sizes) / optimum_s(swarm, sizes) == pytest.approx(gain, abs=0.01)


def test_a_sender_that_encodes_more_tightly_shortens_the_optimum() -> None:
    swarm = parse_swarm("200,200,20")
    plain = Sizes.of(swarm, ELEMENTS, 4.0)
    encoded = Sizes(vectors={**plain.vectors, 2: 1.0 * ELEMENTS}, result=1.0 * ELEMENTS)
    assert optimum_s(swarm, plain) == pytest.approx(3.2)
    assert optimum_s(swarm, encoded) == pytest.approx(0.8)


def test_peers_are_what_they_are_marked_as() -> None:
    swarm = parse_swarm("200:aux,50,20/100@15:client,10", auxiliary=[3])
    assert swarm.parts == (Part.AUXILIARY, Part.TRAINER, Part.CLIENT, Part.AUXILIARY)
    assert swarm.trainers == (1, 2)


@pytest.mark.parametrize("text", ["loopback:1", "50", "50:client,50:client", "50:aux,50:aux", "50:what,50"])
def test_a_swarm_without_a_round_in_it_is_refused(text: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        parse_swarm(text)


# -- the check of a result -------------------------------------------------------------------------------------------


def weights_of(peers: int) -> dict[int, float]:
    return {peer: vectors.weight(peer) for peer in range(peers)}


def mean_of(weights: dict[int, float], num_elements: int) -> vectors.Floats:
    total = np.zeros(num_elements)
    for peer, weight in weights.items():
        total += vectors.vector(7, 3, peer, num_elements).astype(np.float64) * weight
    return (total / sum(weights.values())).astype(np.float32)


@pytest.mark.parametrize("codec", ["none", "half", "auto"])
@pytest.mark.parametrize("peers", [2, 8, 24])
def test_a_mean_without_one_peer_is_not_taken_for_the_mean(codec: str, peers: int) -> None:
    weights = weights_of(peers)
    mean = mean_of(weights, 100_000)
    lacking = mean_of({peer: weight for peer, weight in weights.items() if peer != 1}, 100_000)
    max_error = vectors.tolerance(codec, weights)
    assert vectors.fraction_averaged(mean, 7, 3, weights, max_error) == 1.0
    assert vectors.fraction_averaged(lacking, 7, 3, weights, max_error) < 0.02
    half = np.concatenate([mean[:50_000], lacking[50_000:]])
    assert vectors.fraction_averaged(half, 7, 3, weights, max_error) == pytest.approx(0.5, abs=0.02)


def test_a_float16_mean_counts_as_averaged_under_half_only() -> None:
    weights = weights_of(8)
    mean = mean_of(weights, 10_000).astype(np.float16).astype(np.float32)
    assert vectors.fraction_averaged(mean, 7, 3, weights, vectors.tolerance("half", weights)) == 1.0
    assert vectors.fraction_averaged(mean, 7, 3, weights, vectors.tolerance("none", weights)) == 0.0


def test_vectors_differ_from_peer_to_peer_and_round_to_round_and_are_spread_evenly() -> None:
    one, other, later = (vectors.vector(7, *which, 100_000) for which in ((3, 0), (3, 1), (4, 0)))
    for first, second in ((one, other), (one, later)):
        assert abs(np.corrcoef(first, second)[0, 1]) < 0.02
    assert one.std() == pytest.approx(vectors.SPREAD, rel=0.01)
    assert np.array_equal(one[500:600], vectors.elements(7, 3, 0, np.arange(500, 600, dtype=np.uint32)))


def test_a_float16_mean_is_checked_against_vectors_that_repeat_themselves_and_their_places_count() -> None:
    weights = weights_of(2)
    num_elements = vectors.TILE_ELEMENTS + 300_000
    ours, theirs = (vectors.half_vector(7, 3, peer, num_elements) for peer in weights)
    assert ours.dtype == np.float16
    assert np.array_equal(ours[vectors.TILE_ELEMENTS :], ours[:300_000])
    assert not np.array_equal(ours, theirs)
    mean = (ours.astype(np.float32) * weights[0] + theirs.astype(np.float32) * weights[1]) / sum(weights.values())
    max_error = vectors.tolerance("half", weights, "float16")
    assert vectors.tolerance("none", weights, "float16") == max_error
    half = mean.astype(np.float16)
    assert vectors.fraction_averaged(half, 7, 3, weights, max_error) == 1.0
    assert vectors.fraction_averaged(np.roll(half, 16_384), 7, 3, weights, max_error) < 0.02
    assert vectors.digest(half) != vectors.digest(np.roll(half, 16_384))


# -- what is measured beside the rounds ------------------------------------------------------------------------------

PERIODS = Periods(rounds=((10.0, 20.0), (30.0, 40.0)), quiet=((20.0, 30.0),))


def test_a_heartbeat_counts_where_it_was_due_and_one_without_an_answer_counts_with_the_time_waited() -> None:
    beats = [(5.0, 9.0), (11.0, 0.2), (12.0, 0.1), (25.0, 0.05), (33.0, 0.3), (39.5, None), (41.0, None)]
    found = summary(beats, Periods.from_json(PERIODS.to_json()), 42.0)
    assert (found["count"], found["worst_s"], found["unanswered"]) == (4, 2.5, 1)
    assert found["median_s"] == pytest.approx(0.25)
    assert (found["count_idle"], found["worst_idle_s"]) == (1, 0.05)


def test_compute_that_is_half_as_fast_in_one_of_two_rounds_keeps_three_quarters_of_its_speed() -> None:
    ends = np.concatenate([np.arange(0.0, 30.0, 0.1), np.arange(30.0, 40.0, 0.2), np.arange(40.0, 50.0, 0.1)])
    counts = np.arange(len(ends))
    steps = np.stack([ends, counts * 0.08, counts * 0.02], axis=1)
    found = compute.kept(steps, PERIODS)
    assert found["share_kept"] == pytest.approx(0.75, abs=1e-3)
    assert found["worst_round_share"] == pytest.approx(0.5, abs=1e-3)
    assert found["cpu_share"] == pytest.approx({"round": 0.6, "quiet": 0.8}, abs=1e-3)
    assert found["core_wait_share"] == pytest.approx({"round": 0.15, "quiet": 0.2}, abs=1e-3)
    assert found["share_kept_of_core"] == pytest.approx(0.75 * 0.8 / 0.85, abs=1e-3)


def test_rounds_too_short_for_ten_steps_say_nothing_of_compute() -> None:
    steps = np.stack([np.arange(0.0, 50.0, 3.0)] * 3, axis=1)
    assert compute.kept(steps, PERIODS)["share_kept"] is None
    company = Company(computing=(0,))
    assert company.figures({0: {"compute": compute.kept(steps, PERIODS)}}) == {"compute": None}


def test_every_computing_peer_gets_a_core_of_its_own_or_none_does() -> None:
    assert own_cores([3], [0, 1]) == ({3: 1}, (0,))
    assert own_cores([2, 5], [0, 1, 4, 7]) == ({2: 4, 5: 7}, (0, 1))
    assert own_cores([0, 1], [0, 1]) == ({}, ())
    assert own_cores([], [0, 1]) == ({}, ())


def test_the_figures_of_compute_are_those_of_the_peer_that_keeps_least() -> None:
    company = Company(computing=(0, 1, 2), cores={0: 1, 1: 2, 2: 3}, other_cores=(0,))
    found = company.figures({0: {"compute": {"share_kept": 0.9}}, 1: {"compute": {"share_kept": 0.7}}})
    assert found["compute"]["peer"] == 1
    assert (found["compute"]["share_kept"], found["compute"]["core"]) == (0.7, 2)
    assert found["compute"]["shares_kept"] == {"0": 0.9, "1": 0.7}


def test_memory_counts_what_a_round_takes_and_what_earlier_ones_left_behind() -> None:
    use = MemoryUse(peer=0, idle_bytes=300, before_bytes=900, peak_bytes=1150, vector_bytes=200)
    assert use.ratio == pytest.approx(2.25)
    assert use.ratio_in_all == pytest.approx(4.25)


# -- runs ------------------------------------------------------------------------------------------------------------


@pytest.mark.live
def test_every_engine_averages_on_loopback() -> None:
    content = run(
        "--engine", "collab,hivemind,gloo", "--links", "loopback:2", "--mb", "1", "--rounds", "2", "--skip", "0"
    )
    assert set(content["engines"]) == {"collab", "hivemind", "gloo"}
    for name, found in content["engines"].items():
        rounds = [each for each in found["rounds"] if each["committed"]]
        assert len(found["rounds"]) == 2 >= len(rounds) >= (2 if name == "collab" else 0), "hivemind may miss a peer"
        assert {each["fraction_averaged"] for each in rounds} <= {1.0}
        assert {each["contributors"] for each in rounds} <= {2}
        assert found["payload_bytes"] == pytest.approx(2e6, rel=0.01)
        assert found["optimum_s"] is None
    assert all(each["digests_equal"] for each in content["engines"]["collab"]["rounds"])


@pytest.mark.live
def test_a_round_over_links_is_measured_beside_its_optimum_and_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "use.svg"
    content = run(
        *("--engine", "collab", "--links", "50,50:aux,20:client", "--mb", "0.5", "--rounds", "1", "--skip", "1"),
        *("--trace", str(picture)),
    )
    found = content["rounds"][-1]
    assert [each["measured"] for each in content["rounds"]] == [False, True]
    assert found["committed"]
    assert found["fraction_averaged"] == 1.0
    assert found["contributors"] == 2
    assert found["all_reduce_s"] > content["optimum_s"] == pytest.approx(0.2)
    assert content["ratio"] == pytest.approx(found["all_reduce_s"] / 0.2, rel=0.01)
    assert found["whole_step_s"] >= found["all_reduce_s"]
    assert content["wire_bytes"] > content["payload_bytes"] > 0
    assert content["seed"] == 0
    assert picture.read_text().startswith("<svg")


@pytest.mark.live
def test_a_killed_peer_is_waited_for_no_more_and_the_others_go_on() -> None:
    content = run(
        *("--engine", "collab", "--links", "50,50,50", "--mb", "1", "--rounds", "2", "--skip", "0"),
        *("--fault", "kill:2:0.1"),
    )
    assert content["setup"]["fault"] == "kill:2:0.1"
    assert content["rounds"][0]["silent"] == []
    assert content["rounds"][1]["committed"]
    assert content["rounds"][1]["contributors"] == 2
    assert content["rounds"][1]["fraction_averaged"] == 1.0


@pytest.mark.live
def test_heartbeats_are_answered_while_a_slow_link_is_full() -> None:
    content = run(
        *("--engine", "collab", "--links", "10/50,50", "--mb", "1", "--rounds", "1", "--skip", "0"),
        *("--heartbeats", "0:1"),
    )
    found = content["heartbeats"]
    assert content["rounds"][0]["committed"]
    assert (found["from"], found["to"]) == (0, 1)
    assert (found["count"] >= 5, found["count_idle"] >= 10) == (True, True)
    assert 0 < found["median_s"] <= found["worst_s"]
    assert content["payload_bytes"] == pytest.approx(2e6, rel=0.01)


@pytest.mark.live
def test_a_trainers_compute_is_measured_beside_rounds_and_between_them() -> None:
    content = run(
        *("--engine", "collab", "--links", "20,20", "--mb", "6", "--rounds", "2", "--skip", "0"),
        *("--compute", "1"),
    )
    found = content["compute"]
    assert (content["setup"]["compute"], found["peer"]) == ("1", 1)
    in_rounds, at_rest = (found["steps_per_s"][name] for name in ("round", "quiet"))
    assert 0 < found["share_kept"] == pytest.approx(in_rounds / at_rest, rel=0.01)
    assert found["seconds"]["quiet"] >= 4
    cores, others = own_cores([1], sorted(os.sched_getaffinity(0)))
    assert (found["core"], found["other_cores"]) == (cores.get(1), list(others))


@pytest.mark.live
def test_float16_vectors_are_averaged_in_little_more_memory_than_vector_and_mean() -> None:
    content = run(
        *("--engine", "collab", "--links", "loopback:2", "--mb", "160", "--rounds", "1", "--skip", "0"),
        *("--dtype", "float16"),
    )
    assert content["setup"]["codec"] == "half"
    assert content["rounds"][0]["fraction_averaged"] == 1.0
    assert content["rounds"][0]["digests_equal"]
    assert content["payload_bytes"] == pytest.approx(160e6, rel=0.01)
    assert content["vector_bytes"] == 80_000_000
    assert content["memory_before_bytes"] > content["vector_bytes"]
    assert 2.0 <= content["memory_ratio"] <= 3.0


@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        (("--engine", "collab,gloo", "--heartbeats", "0:1"), "heartbeats"),
        (("--heartbeats", "0:9"), "heartbeats go from"),
        (("--engine", "gloo", "--dtype", "float16"), "float16"),
        (("--engine", "collab,gloo", "--compute"), "one engine"),
        (("--compute", "7"), "no trainer 7"),
    ],
)
def test_options_that_do_not_go_together_are_refused(option: tuple[str, ...], complaint: str) -> None:
    command = [sys.executable, str(SCRIPTS / "bench_averaging.py"), "--links", "loopback:2", *option]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2
    assert complaint in result.stderr
