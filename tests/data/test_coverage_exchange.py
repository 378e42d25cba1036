import msgpack
import pytest

from collab.data.blocks import BlockPlan
from collab.data.coverage import Coverage
from collab.data.coverage_exchange import COVERAGE_PROTOCOL, Word, ask_for_coverage, merge, serve_coverage
from collab.data.ledger import Ledger
from collab.net.base import Stream
from collab.net.errands import Errands
from collab.net.wire import Message
from collab.types import PeerId
from tests.fakes import FakeNetwork, run

PLAN = BlockPlan.of(240, digest="a" * 32, seed=0, microbatch_size=8)
"""Of two pages."""
FULL = [PLAN.full_page(0), PLAN.full_page(1)]


def word(trained: int, *, pass_number: int = 0, credit: float = 0.0) -> Word:
    passes = {pass_number: ([trained, 0], [0, 0])}
    return Word(data=PLAN.data, passes=passes, accounts={PeerId("alice"): (credit, 1.0)})


def merged(*words: Word) -> tuple[Coverage, Ledger]:
    coverage, ledger = Coverage(PLAN), Ledger(most_per_round=100.0)
    merge(words, coverage, ledger, 0.0)
    return coverage, ledger


def test_a_newcomer_believes_what_most_say() -> None:
    liar = Word(data=PLAN.data, passes={0: (FULL, [0, 0])}, accounts={PeerId("liar"): (1e9, 1e9)})
    coverage, ledger = merged(word(0b0111, credit=5.0), word(0b0011, credit=7.0), liar)
    assert coverage.of(0).trained == [0b0111, 0], "two of three say so"
    assert not ledger.can_pay(PeerId("liar"), 16.0, 8.0)
    assert ledger.can_pay(PeerId("alice"), 13.0, 8.0)
    assert not ledger.can_pay(PeerId("alice"), 13.1, 8.0)


def test_of_each_block_of_each_page_what_most_say_counts() -> None:
    told = [[0b0001, 1], [0b0110, FULL[1]], [0b0100, FULL[1]]]
    words = [Word(data=PLAN.data, passes={0: (pages, pages)}, accounts={}) for pages in told]
    known = merged(*words)[0].of(0)
    assert (known.trained, known.again) == ([0b0100, FULL[1]], [0b0100, FULL[1]])
    assert merged(*words[:2])[0].of(0).trained == [0, 1], "half are not most"


def test_a_pass_that_most_have_not_begun_does_not_count() -> None:
    coverage, _ = merged(word(1), word(1), word(0xFF, pass_number=10**6))
    assert sorted(coverage.passes) == [0]


def test_who_does_not_know_an_old_pass_has_no_voice_about_it() -> None:
    newer = Word(data=PLAN.data, passes={1: ([1, 0], [0, 0])}, accounts={})
    both = Word(data=PLAN.data, passes={0: (FULL, [0, 0]), 1: ([1, 0], [0, 0])}, accounts={})
    coverage, _ = merged(newer, newer, both)
    assert coverage.is_complete(0)


def test_words_about_other_data_or_cut_otherwise_do_not_count() -> None:
    other = Word(data=f"samples.240.{'b' * 32}", passes={0: (FULL, FULL)}, accounts={})
    longer = Word(data=PLAN.data, passes={0: ([1, 1, 1], [0, 0, 0])}, accounts={})
    beyond = Word(data=PLAN.data, passes={0: ([0, 1 << 15], [0, 0])}, accounts={})
    coverage, _ = merged(other, longer, beyond)
    assert coverage.passes == {}


def test_peers_answer_what_they_know_and_those_without_knowledge_do_not_count() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            known = Coverage(PLAN)
            known.note(0, 1, 0b101)
            ledger = Ledger(most_per_round=100.0)
            ledger.note_round("1", [(PeerId("alice"), 40.0)], 0.0)
            await serve_coverage(network.join("old"), Errands(), "run", lambda: (known, ledger), lambda: 10.0)
            await serve_coverage(network.join("new"), Errands(), "run", lambda: None, lambda: 10.0)
            other = network.join("other")
            await serve_coverage(other, Errands(), "another run", lambda: (known, ledger), lambda: 10.0)
            us = network.join("us")
            asked = [PeerId(name) for name in ("old", "new", "other", "gone")]
            words = await ask_for_coverage(us, Errands(), "run", asked)
            assert len(words) == 1
            coverage, accounts = merged(*words)
            assert coverage.of(0).trained == [0, 0b101]
            assert accounts.can_pay(PeerId("alice"), 48.0, 8.0)

    run(main())


ACCOUNT = [["alice", 1.0, 1.0]]


@pytest.mark.parametrize(
    "answer",
    [b"", b"\xc1", b"x" * (200 << 10), msgpack.packb([1, 2, 3]), msgpack.packb([PLAN.data, [[-1, b"", b""]], []]),
     msgpack.packb([PLAN.data, [[0, b"x", b""]], []]), msgpack.packb([PLAN.data, [[0, 7, 7]], []]),
     msgpack.packb([PLAN.data, [], [["alice", float("nan"), 1.0]]]), msgpack.packb([PLAN.data, [], [[7, 1.0, 1.0]]]),
     msgpack.packb([PLAN.data, [], ACCOUNT * 1000]), msgpack.packb(["x" * 100, [], []])],
)  # fmt: skip
def test_an_answer_that_makes_no_sense_is_none(answer: bytes) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:

            async def lie(stream: Stream) -> None:
                await stream.receive(timeout_s=1)
                await stream.send(Message("coverage", payload=answer), timeout_s=1)

            await network.join("liar").serve(COVERAGE_PROTOCOL, lie)
            assert await ask_for_coverage(network.join("us"), Errands(), "run", [PeerId("liar")]) == []

    run(main())


def test_what_others_have_read_at_different_times_still_proves_a_peers_marks() -> None:
    coverage, ledger = merged(word(0b1, credit=8.0), word(0b0, credit=8.0), word(0b0, credit=8.0))
    assert coverage.of(0).trained == [0, 0], "most have not read the page yet"
    assert ledger.can_pay(PeerId("alice"), 16.0, 8.0), "but all have seen the samples committed"


def test_a_newcomer_credits_nobody_with_more_than_twice_its_share_of_a_pass() -> None:
    _, ledger = merged(word(0, credit=1e9))
    assert not ledger.can_pay(PeerId("alice"), 2 * 240 + 9.0, 8.0)
