import numpy as np

from collab.data import assignment
from collab.data.assignment import RUNS_EACH, Cut, believed_speeds, distances, page_order, preferences
from collab.data.blocks import MAX_BLOCKS, PAGE_BLOCKS, BlockPlan
from collab.types import PeerId

PLAN = BlockPlan.of(4000 * 8, digest="a" * 32, seed=3, microbatch_size=8)
BLOCKS = list(range(PLAN.num_blocks))


def owned(speeds: dict[str, float], pass_number: int = 0) -> dict[str, set[int]]:
    known = {PeerId(peer): speed for peer, speed in speeds.items()}
    return {peer: set(preferences(PLAN, pass_number, BLOCKS, PeerId(peer), known)[0]) for peer in speeds}


def test_every_block_has_one_owner_and_shares_follow_speeds() -> None:
    shares = owned({"a": 1.0, "b": 2.0, "c": 5.0})
    assert sum(len(blocks) for blocks in shares.values()) == len(BLOCKS) == len(set.union(*shares.values()))
    assert [round(len(shares[peer]) / len(BLOCKS) * 8) for peer in "abc"] == [1, 2, 5]


def test_when_a_peer_leaves_only_its_blocks_move() -> None:
    before, after = owned({"a": 1.0, "b": 2.0, "c": 5.0}), owned({"a": 1.0, "b": 2.0})
    assert before["a"] <= after["a"]
    assert before["b"] <= after["b"]


def test_each_pass_is_divided_anew() -> None:
    assert owned({"a": 1.0, "b": 1.0}, 0)["a"] != owned({"a": 1.0, "b": 1.0}, 1)["a"]


def test_blocks_of_others_come_last_and_those_nearest_to_us_first() -> None:
    speeds = {PeerId(peer): 1.0 for peer in "abc"}
    own, others = preferences(PLAN, 0, BLOCKS, PeerId("a"), speeds)
    assert sorted(own + others) == BLOCKS
    assert others[:20] != preferences(PLAN, 0, BLOCKS, PeerId("b"), speeds)[1][:20]


def test_a_claimed_speed_counts_up_to_the_median_or_what_was_shown() -> None:
    claimed = {PeerId("a"): 10.0, PeerId("b"): 12.0, PeerId("c"): 9.0, PeerId("liar"): 1e12, PeerId("new"): 0.0}
    speeds = believed_speeds(claimed, {})
    assert speeds[PeerId("liar")] == speeds[PeerId("b")] == speeds[PeerId("new")] == 10.0
    assert speeds[PeerId("c")] == 9.0
    shown = believed_speeds(claimed | {PeerId("fast"): 100.0}, {PeerId("fast"): 90.0})
    assert shown[PeerId("fast")] == 100.0


def test_until_half_of_all_have_said_how_fast_they_are_the_first_to_say_so_is_not_believed() -> None:
    claimed = {PeerId("liar"): 1e9, PeerId("a"): 0.0, PeerId("b"): 0.0}
    assert set(believed_speeds(claimed, {}).values()) == {1.0}, "nobody is faster than another one"
    assert believed_speeds(claimed, {PeerId("liar"): 50.0})[PeerId("liar")] == 75.0, "but by what rounds have shown"
    assert believed_speeds(claimed | {PeerId("a"): 4.0}, {})[PeerId("liar")] == 4.0


def test_peers_visit_the_pages_in_orders_of_their_own() -> None:
    orders = [page_order(PLAN, 0, PeerId(peer)) for peer in "abcd"]
    assert all(sorted(order) == list(range(PLAN.num_pages)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4


def test_a_run_is_one_trainers_and_its_owner_begins_where_others_come_last() -> None:
    speeds, cut = {PeerId(peer): 1.0 for peer in "abc"}, Cut(run=PAGE_BLOCKS)
    own, others = preferences(PLAN, 0, BLOCKS, PeerId("a"), speeds, cut)
    assert own == sorted(own)
    assert not {block // PAGE_BLOCKS for block in own} & {block // PAGE_BLOCKS for block in others}
    first = [block for block in others if block // PAGE_BLOCKS == others[0] // PAGE_BLOCKS]
    assert first == others[: len(first)] == sorted(first, reverse=True)


def test_runs_are_pages_for_a_few_trainers_and_blocks_for_many() -> None:
    assert Cut.among(PLAN, 1).run == PAGE_BLOCKS
    for trainers in (10, 50, 100, 400, 10_000):
        run = Cut.among(PLAN, trainers).run
        assert run == 1 or PLAN.num_blocks / (run * trainers) >= RUNS_EACH
        assert run & (run - 1) == 0, "who counts one trainer more cuts alike, nearly always"


def test_trainers_that_know_few_of_a_crowd_by_name_want_different_blocks_first() -> None:
    names = [PeerId(f"peer {number}") for number in range(100)]
    firsts, wanted = [], dict.fromkeys(BLOCKS, 0)
    for me in names:
        known = dict.fromkeys([*names[:8], me], 1.0)
        cut = Cut.among(PLAN, len(names), unknown_per_s=float(len(names) - len(known)))
        own = preferences(PLAN, 0, BLOCKS, me, known, cut)[0]
        firsts.append(own[0])
        for block in own:
            wanted[block] += 1
    assert len(set(firsts)) >= 0.9 * len(names)
    assert 0.7 < sum(wanted.values()) / len(BLOCKS) < 1.3, "and as many as there are"


def test_how_near_a_block_is_does_not_depend_on_what_else_is_asked_and_is_drawn_once(monkeypatch) -> None:
    me, drawn, draw = PeerId("asks again"), [], assignment._drawn
    monkeypatch.setattr(assignment, "_drawn", lambda words, *whose: drawn.append(len(words)) or draw(words, *whose))
    whole = distances(PLAN, 7, BLOCKS, me, 2.0)
    assert np.array_equal(distances(PLAN, 7, BLOCKS[3:50:9], me, 2.0), whole[3:50:9])
    assert drawn == [PLAN.num_blocks]
    assert np.array_equal(distances(PLAN, 7, BLOCKS, me, 4.0), whole / 2)
    assert not np.array_equal(distances(PLAN, 8, BLOCKS, me, 2.0), whole)
    assert len(drawn) == 2


def test_of_more_blocks_than_are_remembered_each_is_as_near_as_among_all() -> None:
    shards = BlockPlan.of_shards(MAX_BLOCKS + 1, digest="a" * 32, seed=3)
    whole = distances(shards, 0, range(shards.num_blocks), PeerId("a"), 1.0)
    assert np.array_equal(distances(shards, 0, [5, MAX_BLOCKS], PeerId("a"), 1.0), whole[[5, MAX_BLOCKS]])
