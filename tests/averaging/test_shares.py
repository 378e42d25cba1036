"""How the vector is divided among reducers: the special cases that others published, and the linear program."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from collab.averaging.plan import is_tiling
from collab.averaging.shares import PeerLink, solve, spans_of
from collab.types import PeerId
from tests.averaging.dedloc_lp import Reducing, fastest_round_s, random_swarm

MBIT = 1e6 / 8
GBIT = 1e9 / 8
VECTOR_BYTES = 8e6
RESNET50_BYTES = 0.4537 * GBIT
"""28.35 million parameters in half precision: what DeDLOC's table was measured with."""
HET = (200.0, 200.0, 20.0, 25.0, 30.0, 35.0, 40.0, 50.0)


def trainer(up: float, down: float | None = None, payload_bytes: float = VECTOR_BYTES) -> PeerLink:
    return PeerLink(
        peer=PeerId("trainer"),
        up_bytes_per_s=up,
        down_bytes_per_s=up if down is None else down,
        payload_bytes=payload_bytes,
        can_reduce=True,
        receives=True,
    )


def client(up: float, down: float | None = None, payload_bytes: float = VECTOR_BYTES) -> PeerLink:
    return replace(trainer(up, down, payload_bytes), can_reduce=False)


def auxiliary(rate: float) -> PeerLink:
    return replace(trainer(rate, payload_bytes=0.0), receives=False)


def follower(rate: float) -> PeerLink:
    return trainer(rate, payload_bytes=0.0)


def finished_s(links: Sequence[PeerLink], shares: Sequence[float], result_bytes: float) -> list[float]:
    """When each peer has moved all its bytes, counted transfer by transfer."""
    up, down = [0.0] * len(links), [0.0] * len(links)
    for (i, a), (j, b) in permutations(enumerate(links), 2):
        moved = a.payload_bytes * shares[j] + (result_bytes * shares[i] if b.receives else 0.0)
        up[i] += moved / a.up_bytes_per_s
        down[j] += moved / b.down_bytes_per_s
    return [max(pair) for pair in zip(up, down, strict=True)]


def swarms(count: int, seed: int) -> list[tuple[list[PeerLink], float]]:
    rng = np.random.default_rng(seed)
    return [random_swarm(rng, int(rng.integers(2, 11))) for _ in range(count)]


@pytest.mark.parametrize("num_peers", [2, 3, 8, 64])
def test_equal_links_give_all_reduce(num_peers: int) -> None:
    plan = solve([trainer(25 * MBIT)] * num_peers, VECTOR_BYTES)
    assert plan.shares == pytest.approx([1 / num_peers] * num_peers)
    assert plan.seconds == pytest.approx(2 * (num_peers - 1) / num_peers * VECTOR_BYTES / (25 * MBIT))


def test_one_peer_as_fat_as_all_others_together_is_a_parameter_server() -> None:
    others = [trainer(0.2 * GBIT)] * 16
    plan = solve([*others, trainer(16 * 0.2 * GBIT)], VECTOR_BYTES)
    assert plan.shares == pytest.approx([0.0] * 16 + [1.0], abs=1e-12)
    assert plan.seconds == pytest.approx(VECTOR_BYTES / (0.2 * GBIT))


def test_the_fatter_a_peer_the_more_of_the_vector_it_reduces() -> None:
    shares = [solve([*[trainer(0.2 * GBIT)] * 16, trainer(rate * GBIT)], 8e6).shares[-1] for rate in (0.4, 1, 2, 3)]
    assert sorted(set(shares)) == shares
    assert shares[-1] < 1.0


@pytest.mark.parametrize(("workers", "machines"), [(4, 1), (4, 2), (8, 3), (8, 7), (16, 5)])
def test_machines_that_only_reduce_give_byteps(workers: int, machines: int) -> None:
    """The load of each such machine and each worker from section 4.1 of BytePS (Jiang et al., OSDI 2020)."""
    plan = solve([*[trainer(GBIT)] * workers, *[auxiliary(GBIT)] * machines], VECTOR_BYTES)
    whole = workers**2 + machines * workers - 2 * machines
    assert plan.shares[:workers] == pytest.approx([(workers - machines) / whole] * workers)
    assert plan.shares[workers:] == pytest.approx([2 * (workers - 1) / whole] * machines)


def test_as_many_machines_that_only_reduce_as_workers_reduce_everything() -> None:
    plan = solve([*[trainer(GBIT)] * 4, *[auxiliary(GBIT)] * 4], VECTOR_BYTES)
    assert plan.shares == pytest.approx([0.0] * 4 + [0.25] * 4, abs=1e-12)
    assert plan.seconds == pytest.approx(VECTOR_BYTES / GBIT)


@pytest.mark.parametrize(
    ("rates", "all_reduce_s", "adaptive_s"),
    [
        ([1.0] * 8, 0.79, 0.79),
        ([0.2] * 16, 4.25, 4.25),
        ([1.0] * 8 + [0.2] * 16, 4.35, 2.27),
        ([0.2] * 16 + [2.5], 4.27, 2.55),
    ],
    ids=["A, gain 1.00", "B, gain 1.00", "C, gain 1.92", "D, gain 1.67"],
)
def test_the_table_of_dedloc_is_reached(rates: list[float], all_reduce_s: float, adaptive_s: float) -> None:
    links = [trainer(rate * GBIT, payload_bytes=RESNET50_BYTES) for rate in rates]
    equal_s = max(finished_s(links, [1 / len(links)] * len(links), RESNET50_BYTES))
    assert round(equal_s, 2) == all_reduce_s
    assert round(solve(links, RESNET50_BYTES).seconds, 2) == adaptive_s


def test_two_auxiliary_peers_speed_up_eight_slow_trainers_as_dedloc_says() -> None:
    slow = [trainer(0.1 * GBIT, payload_bytes=GBIT)] * 8
    assert 1 / solve(slow, GBIT).seconds == pytest.approx(0.057, abs=5e-4)
    assert 1 / solve([*slow, auxiliary(GBIT), auxiliary(GBIT)], GBIT).seconds == pytest.approx(0.100, abs=5e-4)


HOME = [(rate * MBIT, 100 * MBIT) for rate in (10, 12, 14, 16, 18, 20)]
FAT = [auxiliary(200 * MBIT)] * 2


@pytest.mark.parametrize(
    ("links", "optimum_s"),
    [
        ([trainer(25 * MBIT)] * 8, 4.48),
        ([trainer(rate * MBIT) for rate in HET], 3.20),
        ([trainer(up, down) for up, down in HOME], 7.11),
        ([trainer(up, down) for up, down in HOME] + FAT, 6.40),
        ([client(up, down) for up, down in HOME] + FAT, 6.40),
    ],
    ids=["hom25", "het", "home_only", "home_aux", "home_aux_client"],
)
def test_the_optima_of_the_measured_setups_are_reached(links: list[PeerLink], optimum_s: float) -> None:
    assert round(solve(links, VECTOR_BYTES).seconds, 2) == optimum_s


def test_peers_in_client_mode_get_no_share_however_fat_they_are() -> None:
    plan = solve([client(10 * GBIT), trainer(20 * MBIT), client(GBIT), trainer(30 * MBIT)], VECTOR_BYTES)
    assert plan.shares[0] == plan.shares[2] == 0.0


def test_the_slowest_peer_uploads_and_downloads_at_the_same_time() -> None:
    plan = solve([trainer(rate * MBIT) for rate in HET], VECTOR_BYTES)
    assert plan.shares[2] == 0.0
    assert plan.seconds == pytest.approx(VECTOR_BYTES / (20 * MBIT))


def test_a_follower_reduces_and_receives_without_sending_a_vector() -> None:
    links = [client(20 * MBIT), client(20 * MBIT), follower(100 * MBIT)]
    plan = solve(links, VECTOR_BYTES)
    assert plan.shares == (0.0, 0.0, 1.0)
    assert plan.seconds == pytest.approx(VECTOR_BYTES / (20 * MBIT))


def test_links_without_limits_take_no_time_and_share_equally() -> None:
    plan = solve([trainer(float("inf"))] * 4, VECTOR_BYTES)
    assert plan.seconds == 0.0
    assert plan.shares == (0.25,) * 4


def test_no_plan_is_faster_than_ours_in_300_random_swarms() -> None:
    for links, result_bytes in swarms(300, seed=20):
        assert solve(links, result_bytes).seconds == pytest.approx(fastest_round_s(links, result_bytes), rel=1e-6)


def test_symmetric_links_and_equal_encodings_leave_nothing_to_the_program_as_published() -> None:
    """It may reduce a part twice, which helps only where encodings or directions differ."""
    for links, _ in swarms(50, seed=21):
        even = [
            replace(link, payload_bytes=8e6 if link.payload_bytes else 0.0, down_bytes_per_s=link.up_bytes_per_s)
            for link in links
            if link.payload_bytes or not link.receives
        ]
        published_s = fastest_round_s(even, 8e6, Reducing.AS_PUBLISHED)
        assert solve(even, 8e6).seconds == pytest.approx(published_s, rel=1e-6)


def test_shares_sum_to_one_and_every_peer_is_finished_when_the_plan_says() -> None:
    for links, result_bytes in swarms(100, seed=22):
        plan = solve(links, result_bytes)
        assert sum(plan.shares) == pytest.approx(1.0, abs=1e-12)
        assert all(
            share >= 0 and (link.can_reduce or share == 0) for link, share in zip(links, plan.shares, strict=True)
        )
        assert max(finished_s(links, plan.shares, result_bytes)) == pytest.approx(plan.seconds)


def test_no_reducer_works_longer_while_another_could_take_a_little_of_its_load() -> None:
    for links, result_bytes in swarms(100, seed=23):
        shares = solve(links, result_bytes).shares
        before = finished_s(links, shares, result_bytes)
        reducers = [index for index, link in enumerate(links) if link.can_reduce]
        for giver, taker in permutations(reducers, 2):
            moved = list(shares)
            little = min(shares[giver], 1e-3)
            moved[giver], moved[taker] = shares[giver] - little, shares[taker] + little
            after = finished_s(links, moved, result_bytes)
            longest = max(before[giver], before[taker])
            assert max(after[giver], after[taker]) >= longest * (1 - 1e-9)


def test_a_slow_sender_does_not_make_the_others_work_until_the_end() -> None:
    links = [trainer(2 * MBIT), *[trainer(25 * MBIT)] * 7]
    plan = solve(links, VECTOR_BYTES)
    finished = finished_s(links, plan.shares, VECTOR_BYTES)
    assert finished[0] == pytest.approx(32.0)
    assert finished[1:] == pytest.approx([VECTOR_BYTES * (1 + 6 / 7) / (25 * MBIT)] * 7)


@given(seed=st.integers(0, 10**6), factor=st.floats(0.01, 1.0))
def test_fewer_bytes_never_make_a_round_longer(seed: int, factor: float) -> None:
    (links, result_bytes), *_ = swarms(1, seed)
    plan_s = solve(links, result_bytes).seconds
    fewer = [replace(links[0], payload_bytes=links[0].payload_bytes * factor), *links[1:]]
    assert solve(links, result_bytes * factor).seconds <= plan_s * (1 + 1e-9)
    if any(link.payload_bytes for link in fewer):
        assert solve(fewer, result_bytes).seconds <= plan_s * (1 + 1e-9)


@pytest.mark.parametrize(
    ("links", "result_bytes"),
    [
        ([], 8e6),
        ([client(1.0), client(1.0)], 8e6),
        ([follower(1.0), follower(1.0)], 8e6),
        ([auxiliary(1.0), replace(trainer(1.0), receives=False)], 8e6),
        ([trainer(0.0), trainer(1.0)], 8e6),
        ([trainer(1.0, -1.0), trainer(1.0)], 8e6),
        ([trainer(float("nan")), trainer(1.0)], 8e6),
        ([trainer(1.0, payload_bytes=-1.0), trainer(1.0)], 8e6),
        ([trainer(1.0, payload_bytes=float("inf")), trainer(1.0)], 8e6),
        ([trainer(1.0), trainer(1.0)], 0.0),
        ([trainer(1.0), trainer(1.0)], float("inf")),
    ],
    ids=[
        "nobody", "no reducer", "no sender", "no receiver", "no upload", "negative rate", "rate is no number",
        "negative payload", "endless payload", "no result", "endless result",
    ],
)  # fmt: skip
def test_a_group_that_cannot_average_is_a_value_error(links: list[PeerLink], result_bytes: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        solve(links, result_bytes)


SHARES = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=40).filter(lambda shares: sum(shares) > 1e-3)


def named(count: int) -> list[PeerId]:
    return [PeerId(f"peer{index:02d}") for index in range(count)]


@given(shares=SHARES, num_elements=st.integers(1, 10**6), shortest=st.sampled_from([1, 50, 8_192]))
def test_spans_tile_the_vector_in_the_order_given(shares: list[float], num_elements: int, shortest: int) -> None:
    spans = spans_of(shares, named(len(shares)), num_elements, shortest=shortest)
    assert is_tiling(spans, num_elements)
    assert [span.reducer for span in spans] == sorted(span.reducer for span in spans)
    assert len(spans) == 1 or all(span.num_elements >= shortest for span in spans)


@given(shares=st.lists(st.floats(0.1, 1.0), min_size=1, max_size=40), num_elements=st.integers(1000, 10**6))
def test_a_span_is_less_than_an_element_away_from_its_share(shares: list[float], num_elements: int) -> None:
    spans = spans_of(shares, named(len(shares)), num_elements, shortest=1)
    for span, share in zip(spans, shares, strict=True):
        assert abs(span.num_elements - share / sum(shares) * num_elements) < 1 + 1e-6


def test_shares_that_are_too_short_go_to_the_others() -> None:
    spans = spans_of((0.004, 0.5, 0.005, 0.491), named(4), 2_000_000, shortest=8_192)
    lengths = [(span.reducer, span.num_elements) for span in spans]
    assert lengths == [("peer01", 1_004_016), ("peer02", 10_040), ("peer03", 985_944)]


def test_a_vector_shorter_than_the_shortest_span_goes_to_the_largest_share() -> None:
    (span,) = spans_of((0.3, 0.4, 0.3), named(3), 100, shortest=8_192)
    assert (span.reducer, span.num_elements) == ("peer01", 100)


@pytest.mark.parametrize(
    ("shares", "peers", "num_elements", "shortest"),
    [
        ((), (), 4, 1),
        ((1.0,), ("a", "b"), 4, 1),
        ((0.5, 0.5), ("a", "a"), 4, 1),
        ((1.0,), ("a",), 0, 1),
        ((1.0,), ("a",), 4, 0),
        ((0.0, 0.0), ("a", "b"), 4, 1),
        ((1.5, -0.5), ("a", "b"), 4, 1),
        ((float("nan"), 1.0), ("a", "b"), 4, 1),
    ],
)
def test_what_cannot_be_cut_is_a_value_error(
    shares: tuple[float, ...], peers: tuple[str, ...], num_elements: int, shortest: int
) -> None:
    with pytest.raises(ValueError, match="share"):
        spans_of(shares, [PeerId(peer) for peer in peers], num_elements, shortest=shortest)
