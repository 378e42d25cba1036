"""How many blocks a peer claims: no more than others can know it to need."""

from collab.data.blocks import BlockPlan
from collab.data.choosing import KNOWN_S, Choice
from collab.data.coverage import Coverage
from collab.data.holders import SPARE_BLOCKS, Holders, Pace
from collab.data.ledger import Ledger
from collab.types import PeerId

ME, OTHER = PeerId("me"), PeerId("other")
PLAN = BlockPlan.of(1600, digest="a" * 32, seed=1, microbatch_size=8)
SLOW, FAST = Pace(speeds={ME: 0.0, OTHER: 8.0}, step_s=10.0), Pace(speeds={ME: 8.0, OTHER: 8.0}, step_s=10.0)


def choice_at(pace: Pace, now: float) -> tuple[Choice, Holders]:
    coverage = Coverage(PLAN)
    holders = Holders(ME, coverage, Ledger(most_per_round=1000.0))
    holders.pace = pace
    choice = Choice(ME, coverage, holders)
    choice.look(now)
    return choice, holders


def test_who_has_just_become_faster_claims_more_when_everybody_can_have_read_it() -> None:
    choice, holders = choice_at(SLOW, 100.0)
    holders.pace = FAST
    choice.look(101.0)
    assert choice.number_wanted(0, 0) == SPARE_BLOCKS
    choice.look(101.0 + KNOWN_S - 0.5)
    assert choice.number_wanted(0, 0) == SPARE_BLOCKS
    choice.look(101.0 + KNOWN_S)
    assert choice.number_wanted(0, 0) > 10


def test_who_has_become_slower_claims_less_at_once() -> None:
    choice, holders = choice_at(FAST, 100.0)
    assert choice.number_wanted(0, 0) > 10
    holders.pace = SLOW
    choice.look(101.0)
    assert choice.number_wanted(0, 0) <= SPARE_BLOCKS
