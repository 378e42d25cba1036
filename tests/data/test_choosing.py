"""How many blocks a peer claims: no more than others can know it to need."""

from collab.data.blocks import PAGE_BLOCKS, BlockId, BlockPlan
from collab.data.choosing import Choice
from collab.data.coverage import Coverage
from collab.data.holders import Holders
from collab.data.ledger import Ledger
from collab.data.pace import KNOWN_S, SLACK, Pace
from collab.types import PeerId

ME, OTHER = PeerId("me"), PeerId("other")
AT_FIRST = PAGE_BLOCKS / SLACK
"""Half of what anybody is granted."""
PLAN = BlockPlan.of(1600, digest="a" * 32, seed=1, microbatch_size=8)
SLOW, FAST = Pace(speeds={ME: 0.0, OTHER: 8.0}, step_s=10.0), Pace(speeds={ME: 8.0, OTHER: 8.0}, step_s=10.0)


def choice_at(pace: Pace, now: float, coverage: Coverage | None = None) -> tuple[Choice, Holders]:
    coverage = coverage or Coverage(PLAN)
    holders = Holders(ME, coverage, Ledger(most_per_round=1000.0))
    holders.pace = pace
    choice = Choice(ME, coverage, holders)
    choice.look(now)
    return choice, holders


def test_who_has_just_become_faster_claims_more_when_everybody_can_have_read_it() -> None:
    choice, holders = choice_at(SLOW, 100.0)
    holders.pace = FAST
    choice.look(101.0)
    assert choice.number_wanted(0, 0) == AT_FIRST
    choice.look(101.0 + KNOWN_S - 0.5)
    assert choice.number_wanted(0, 0) == AT_FIRST
    choice.look(101.0 + KNOWN_S)
    assert choice.number_wanted(0, 0) > 10


def test_who_has_become_slower_claims_less_at_once() -> None:
    choice, holders = choice_at(FAST, 100.0)
    assert choice.number_wanted(0, 0) > 10
    holders.pace = SLOW
    choice.look(101.0)
    assert choice.number_wanted(0, 0) <= AT_FIRST


def test_near_the_end_of_a_pass_what_is_short_is_taken_of_the_next_one() -> None:
    coverage = Coverage(PLAN)
    choice, _ = choice_at(FAST, 100.0, coverage)
    assert choice.number_short(0, 0, 10.0, 100.0) == 0, "there is enough of this one"
    for page in range(PLAN.num_pages - 1):
        coverage.note(0, page, PLAN.full_page(page))
    assert choice.number_wanted(0, 0) == 2, "so that others have some, too"
    assert choice.number_short(0, 0, 10.0, 100.0) == 10
    assert choice.number_short(0, 8, 10.0, 100.0) == 2
    assert choice.number_short(0, 0, 1.0, 100.0) == 0, "a block lasts as long as that"


def test_a_free_block_that_has_become_ours_since_is_claimed_as_well() -> None:
    choice, holders = choice_at(Pace(speeds={ME: 1.0, OTHER: 8.0}, step_s=10.0), 100.0)
    own = {block for page in range(PLAN.num_pages) for block in choice.own((0, page), 100.0)}
    for block in own:
        choice.held.add(BlockId(0, block))
    holders.pace = FAST
    for page in range(PLAN.num_pages):
        found = {block.block for block in choice.best((0, page), 101.0)}
        assert found == set(range(16 * page, min(16 * page + 16, PLAN.num_blocks))) - own
