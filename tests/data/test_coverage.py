import asyncio
import json
from pathlib import Path

import pytest

from collab.data.blocks import BlockId, BlockPlan
from collab.data.coverage import Coverage, keep_coverage, load_coverage
from collab.data.ledger import Ledger
from collab.errors import StateError
from collab.types import PeerId
from tests.fakes import FakeCompute

PLAN = BlockPlan.of(1500, digest="a" * 32, seed=0, microbatch_size=8)
ALICE = PeerId("alice")
LONG = BlockPlan.of(8_000_000, digest="a" * 32, seed=0, microbatch_size=8)


def test_coverage_counts_blocks_and_samples_trained_once_and_more_often() -> None:
    coverage = Coverage(PLAN)
    coverage.note_ours(BlockId(0, 3))
    coverage.note(0, 0, 0b11000)
    coverage.note(0, BlockId(0, 187).page, BlockId(0, 187).bit)
    covered = coverage.covered(0)
    assert (covered.trained, covered.again, covered.blocks) == (3, 1, 188)
    assert (covered.samples, covered.samples_again) == (8 + 8 + 4, 8), "the last block has four samples"
    assert covered.share == 3 / 188
    assert not coverage.is_complete(0)
    for page in range(PLAN.num_pages):
        coverage.note(0, page, PLAN.full_page(page))
    assert coverage.is_complete(0)
    assert coverage.covered(0).samples == 1500


def test_the_oldest_pass_is_forgotten_for_a_new_one() -> None:
    coverage = Coverage(LONG)
    for number in range(9):
        coverage.of(number)
    assert sorted(coverage.passes) == [5, 6, 7, 8]


def test_what_was_written_is_there_in_the_next_life(tmp_path: Path) -> None:
    coverage = Coverage(PLAN)
    coverage.note_ours(BlockId(2, 150))
    coverage.note(2, BlockId(2, 150).page, BlockId(2, 150).bit)
    ledger = Ledger(most_per_round=100.0)
    ledger.note_round("1", [(ALICE, 40.0)], 10.0)
    ledger.pay(ALICE, 16.0)
    path = tmp_path / "new" / "coverage.json"
    asyncio.run(keep_coverage(FakeCompute(), path, coverage, ledger))
    restored, accounts = Coverage(PLAN), Ledger(most_per_round=100.0)
    accounts.note_round("2", [(ALICE, 8.0)], 20.0)
    assert load_coverage(path, restored, accounts)
    assert restored.covered(2) == coverage.covered(2)
    assert restored.of(2).ours == coverage.of(2).ours
    assert accounts.can_pay(ALICE, 40.0 - 16.0 + 8.0, 0.0)
    assert not accounts.can_pay(ALICE, 40.0 - 16.0 + 9.0, 0.0), "what it had shown then, and since"
    ledger.note_round("2", [(ALICE, 8.0)], 20.0)
    assert accounts.rows(30.0) == ledger.rows(30.0)
    assert not load_coverage(tmp_path / "none.json", restored, accounts)


DAMAGES = ["{", "[]", "{}", "other data", "too many pages", "no such block", "text", "account"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_cannot_be_used_changes_nothing(tmp_path: Path, damage: str) -> None:
    coverage = Coverage(PLAN)
    coverage.note_ours(BlockId(0, 1))
    values = coverage.to_values() | {"accounts": {"alice": [1.0, 2.0, 3.0, 4.0, 5.0]}}
    match damage:
        case "other data":
            values["plan"][0] = f"samples.1500.{'b' * 32}"
        case "too many pages":
            values["passes"]["0"]["trained"].append("0")
        case "no such block":
            values["passes"]["0"]["again"][1] = f"{1 << 100:x}"
        case "text":
            values["passes"]["0"]["ours"] = "??"
        case "account":
            values["accounts"]["alice"][1] = float("nan")
    (tmp_path / "c.json").write_text(damage if damage in ("{", "[]", "{}") else json.dumps(values))
    other, ledger = Coverage(PLAN), Ledger(most_per_round=100.0)
    with pytest.raises(StateError):
        load_coverage(tmp_path / "c.json", other, ledger)
    assert other.passes == {}
    assert not ledger.rows(0.0)
