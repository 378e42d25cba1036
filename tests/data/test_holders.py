"""What a reader believes of others' claims and marks."""

from collab.data.blocks import PAGE_BLOCKS, BlockPlan
from collab.data.coverage import Coverage
from collab.data.holders import FORGOTTEN_S, Holders
from collab.data.lease_records import Page, PageEntry
from collab.data.ledger import Account, Ledger
from collab.data.pace import KNOWN_S, SHORTEST_PATIENCE_S, Pace
from collab.types import PeerId

PLAN = BlockPlan.of(256 * 8, digest="a" * 32, seed=0, microbatch_size=8)
KEY, HALF, EVERYTHING = (0, 0), 128, (1 << 128) - 1
"""Everything: of one half of the pass, which is what is read."""
PAGES = HALF // PAGE_BLOCKS
ME, ALICE, LIAR = PeerId("me"), PeerId("alice"), PeerId("liar")


class Reader:
    """One peer that reads half of a pass; bits are of its blocks."""

    def __init__(self, **speeds: float) -> None:
        self.coverage, self.ledger = Coverage(PLAN), Ledger(most_per_round=1000.0)
        self.is_behind = False
        self.holders = Holders(ME, self.coverage, self.ledger, lambda: self.is_behind)
        self.holders.pace = Pace(speeds={PeerId(peer): speed for peer, speed in speeds.items()}, step_s=10.0)
        self.life_s = 1e9
        """Of all claims."""

    def reads(self, now: float, *, half: int = 0, **said: tuple[int, int]) -> int:
        """What others hold after reading that each of ``said`` holds and has trained something, said just now."""
        for page in range(PAGES * half, PAGES * (half + 1)):
            entries = {
                PeerId(peer): PageEntry(
                    page=Page(fingerprint="f", data=PLAN.data, pass_number=0, page=page),
                    said_at=now,
                    life_s=self.life_s,
                    held=of_page(held, page % PAGES),
                    trained=of_page(trained, page % PAGES),
                )
                for peer, (held, trained) in said.items()
            }
            self.holders.take_in((0, page), entries, now)
        return self.held(now, half)

    def held(self, now: float, half: int = 0) -> int:
        """What others hold."""
        return joined([self.holders.held((0, PAGES * half + page), now) for page in range(PAGES)])

    @property
    def trained(self) -> int:
        return joined(self.coverage.of(0).trained[:PAGES])


def of_page(bits: int, page: int) -> int:
    return bits >> page * PAGE_BLOCKS & (1 << PAGE_BLOCKS) - 1


def joined(pages: list[int]) -> int:
    return sum(bits << page * PAGE_BLOCKS for page, bits in enumerate(pages))


def test_who_claims_everything_holds_what_it_could_train() -> None:
    reader = Reader(me=4.0, alice=4.0, liar=4.0)
    most = reader.holders.pace.most_blocks(LIAR, PLAN)
    assert reader.reads(0.0, liar=(EVERYTHING, 0)).bit_count() == most == 2 * (2 + 4 * 40 // 8)
    assert reader.reads(1.0, half=1, liar=(EVERYTHING, 0)).bit_count() <= 1, "and that on all pages together"
    for second in range(2, 60):
        reader.reads(float(second), liar=(EVERYTHING, 0))
    held = reader.held(60.0).bit_count()
    assert held <= most + 2 * 4 * 60 // 8, "more comes as fast as it could train"


def test_a_claim_that_is_given_up_costs_its_peer_nothing() -> None:
    reader = Reader(me=4.0, alice=4.0)
    most = reader.holders.pace.most_blocks(ALICE, PLAN)
    for second in range(2 * most):
        assert reader.reads(second / 1000, alice=(1 << second, 0)) == 1 << second
    assert reader.reads(1.0, alice=(EVERYTHING, 0)).bit_count() == most


def test_blocks_that_are_trained_make_room_for_as_many() -> None:
    reader = Reader(me=4.0, alice=4.0)
    most = reader.holders.pace.most_blocks(ALICE, PLAN)
    held, trained = (1 << most) - 1, 0
    for number in range(128 - most):
        assert reader.reads(number / 1000, alice=(held, trained)) == held
        reader.ledger.note_round(f"{number}", [(ALICE, 8.0)], number / 1000)
        trained |= 1 << number
        held = (held | 1 << number + most) & ~trained


def test_claims_take_no_room_that_are_read_when_rounds_have_shown_what_was_trained_of_them() -> None:
    """Of what it has trained since a peer says nothing for ten seconds; who reads it first then takes it as held."""
    reader = Reader(me=4.0, alice=4.0)
    most = reader.holders.pace.most_blocks(ALICE, PLAN)
    before, now = (1 << most) - 1, ((1 << most) - 1) << most
    reader.holders.look(reader.holders.pace, 0.0)
    reader.ledger.note_round("1", [(ALICE, 8.0 * most)], 0.0)
    assert reader.reads(0.0, alice=(before, 0)) == before
    assert reader.reads(0.1, alice=(before | now, 0)) == before | now
    assert reader.reads(0.2, alice=(EVERYTHING, 0)) == before | now, "and no more"


def test_who_trains_for_long_and_names_no_block_of_it_holds_twice_what_others_do_and_no_more() -> None:
    reader = Reader(me=4.0, alice=4.0, liar=4.0)
    most = reader.holders.pace.most_blocks(LIAR, PLAN)
    reader.holders.look(reader.holders.pace, 0.0)
    for number in range(50):
        reader.ledger.note_round(f"{number}", [(LIAR, 80.0)], 0.0)
    assert reader.reads(0.0, liar=(EVERYTHING, 0)).bit_count() == 2 * most
    reader.reads(reader.holders.pace.patience_s(LIAR, PLAN) + 1, liar=(EVERYTHING, 0))
    assert reader.reads(100.0, half=1, liar=(EVERYTHING, 0)) == 0, "as it has finished none of these"
    reader.ledger.note_round("50", [(LIAR, 800.0)], 100.0)
    assert reader.reads(100.0, half=1, liar=(EVERYTHING, 0)).bit_count() == most, "its word is worth less now"


def test_what_a_newcomer_is_told_of_earlier_rounds_gives_nobody_more_room() -> None:
    """Of blocks that it believes others of it does not know whose they were."""
    reader = Reader(me=4.0, alice=4.0)
    most = reader.holders.pace.most_blocks(ALICE, PLAN)
    reader.ledger.adopt({ALICE: (8.0 * 128, 4.0)}, 0.0, pass_samples=8.0 * 256)
    assert reader.ledger.unspent(ALICE) > 8.0 * most
    reader.holders.look(reader.holders.pace, 0.0)
    assert reader.reads(0.0, alice=(EVERYTHING, 0)).bit_count() == most
    reader.is_behind = True
    reader.ledger.adopt({ALICE: (8.0 * 999, 4.0)}, 1.0, pass_samples=8.0 * 256)
    reader.holders.look(reader.holders.pace, 1.0)
    reader.is_behind = False
    for now in (2.0, 2.0 + KNOWN_S):
        reader.holders.look(reader.holders.pace, now)
    assert reader.reads(8.0, half=1, alice=(EVERYTHING, 0)).bit_count() == most, "of what it trained meanwhile neither"


def test_who_never_finishes_holds_no_block_for_ever_and_none_twice() -> None:
    reader = Reader(me=4.0, alice=4.0, liar=4.0)
    first = reader.reads(0.0, liar=(0xFF, 0))
    patience_s = reader.holders.pace.patience_s(LIAR, PLAN)
    assert patience_s >= SHORTEST_PATIENCE_S
    assert first == 0xFF
    assert reader.reads(patience_s - 1, liar=(0xFF, 0)) == 0xFF
    assert reader.reads(patience_s + 1, liar=(0xFF, 0)) == 0
    assert reader.reads(patience_s + 500, liar=(0xFF, 0)) == 0


def test_who_is_not_in_the_swarm_holds_nothing() -> None:
    reader = Reader(me=4.0, alice=4.0)
    assert reader.reads(0.0, stranger=(EVERYTHING, EVERYTHING), alice=(1, 0)) == 1
    assert reader.holders.has_strangers(KEY)


def test_marks_are_believed_as_far_as_committed_samples_go() -> None:
    reader = Reader(me=4.0, alice=4.0, liar=4.0)
    reader.ledger.note_round("1", [(ALICE, 80.0)], 0.0)
    reader.reads(1.0, alice=(0, 0xFF), liar=(0, EVERYTHING))
    assert reader.trained & 0xFF == 0xFF
    assert reader.trained.bit_count() <= 9, "of the liar one block, since we may have missed a round of it"
    reader.ledger.note_round("2", [(LIAR, 16.0)], 2.0)
    reader.reads(3.0, alice=(0, 0xFF), liar=(0, EVERYTHING))
    assert reader.trained.bit_count() <= 11


def test_a_mark_that_is_not_proven_yet_keeps_its_block_from_being_trained_again() -> None:
    reader = Reader(me=4.0, alice=4.0)
    assert reader.reads(0.0, alice=(0, 0b110)) | reader.trained == 0b110
    reader.ledger.note_round("1", [(ALICE, 16.0)], 1.0)
    assert reader.reads(2.0, alice=(0, 0b110)) == 0
    assert reader.trained == 0b110


def test_a_mark_that_is_not_proven_yet_counts_though_its_author_says_nothing_more_of_the_page() -> None:
    reader = Reader(me=4.0, alice=4.0, liar=4.0)
    reader.life_s = 45.0
    most, patience_s = reader.holders.pace.most_blocks(LIAR, PLAN), reader.holders.pace.patience_s(ALICE, PLAN)
    reader.reads(0.0, alice=(0b1000, 0b0111))
    assert reader.held(50.0) | reader.trained == 0b0111, "what it held it holds no more"
    first = reader.reads(51.0, half=1, liar=(0, EVERYTHING)).bit_count()
    assert first == most, "who has trained nothing that anybody knows of gets no more than a claim would get it"
    assert reader.reads(52.0 + patience_s, half=1, liar=(0, EVERYTHING)) == 0, "nor for longer"


def test_who_once_brought_less_than_it_says_waits_a_while_with_each_mark_and_with_none_for_ever() -> None:
    """As after a restart of everybody: what rounds have shown is forgotten, and what was trained is not."""
    reader = Reader(me=4.0, alice=4.0)
    reader.reads(0.0, alice=(0, 0b11111))
    assert reader.trained.bit_count() == 1
    for number in range(20):
        reader.ledger.note_round(f"{number}", [(ALICE, 8.0)], float(number))
        reader.reads(float(number), half=1, alice=(0, (2 << number) - 1))
    assert reader.trained == 0b11111, "though nobody has looked there again"
    assert joined(reader.coverage.of(0).trained[PAGES:]) == (1 << 20 - 4) - 1


def test_a_weight_that_no_peer_can_have_computed_proves_no_more_than_a_few_batches() -> None:
    reader = Reader(me=4.0, liar=4.0)
    reader.ledger.note_round("1", [(LIAR, 1e15)], 0.0)
    reader.reads(1.0, liar=(0, EVERYTHING))
    assert reader.trained.bit_count() <= 1000 // 8 + 1
    assert reader.ledger.rates(60.0)[LIAR] <= 1000 / 30


def test_a_round_that_is_told_twice_counts_once() -> None:
    reader = Reader(me=4.0, alice=4.0)
    for _ in range(2):
        reader.ledger.note_round("1", [(ALICE, 16.0)], 0.0)
    reader.reads(1.0, alice=(0, 0xFF))
    assert reader.trained.bit_count() == 3


def test_a_block_that_two_peers_have_trained_counts_as_trained_again() -> None:
    reader = Reader(me=4.0, alice=4.0, bob=4.0)
    reader.ledger.note_round("1", [(ALICE, 80.0), (PeerId("bob"), 80.0)], 0.0)
    reader.reads(1.0, alice=(0, 0b011), bob=(0, 0b110))
    reader.reads(2.0, alice=(0, 0b011), bob=(0, 0b110))
    assert reader.trained == 0b111
    assert reader.coverage.of(0).again[0] == 0b010


def test_a_speed_is_measured_over_some_minutes() -> None:
    reader = Reader(me=4.0)
    for step in range(1, 61):
        reader.ledger.note_round(f"{step}", [(ALICE, 50.0)], 100.0 + 5.0 * step)
    assert 9.0 < reader.ledger.rates(400.0)[ALICE] < 11.0
    assert reader.ledger.rates(2000.0)[ALICE] < 1.0


def test_while_we_may_have_missed_rounds_all_claims_count_but_those_of_who_lets_them_lapse() -> None:
    reader = Reader(me=8.0, alice=8.0, liar=8.0)
    reader.is_behind = True
    assert reader.reads(0.0, alice=(EVERYTHING, 0)) == EVERYTHING
    assert reader.reads(0.0, liar=(EVERYTHING, 0)) == EVERYTHING
    late_s = reader.holders.pace.patience_s(LIAR, PLAN) + 1.0
    assert reader.reads(late_s, alice=(0, 0), liar=(EVERYTHING, 0)) == 0, "for as long as anybody may hold them"
    granted = reader.reads(late_s + 1.0, half=1, liar=(EVERYTHING, 0))
    assert granted.bit_count() <= reader.holders.pace.most_blocks(LIAR, PLAN)
    reader.is_behind = False
    fresh = reader.reads(late_s + 2.0, half=1, alice=(EVERYTHING, 0), liar=(0, 0))
    assert 0 < fresh.bit_count() <= reader.holders.pace.most_blocks(ALICE, PLAN) < HALF


def test_what_was_believed_while_rounds_were_missed_leaves_room_for_what_is_claimed_afterwards() -> None:
    reader = Reader(me=8.0, alice=8.0)
    reader.is_behind = True
    reader.reads(0.0, alice=(EVERYTHING, 0))
    reader.is_behind = False
    most = reader.holders.pace.most_blocks(ALICE, PLAN)
    assert 0 < most < HALF
    assert reader.reads(0.0, half=1, alice=(EVERYTHING, 0)).bit_count() == most


def test_rates_of_all_are_those_of_each_and_what_many_share_is_reckoned_once(monkeypatch) -> None:
    ledger, reckoned = Ledger(most_per_round=1e9), []
    for number, (now_s, peers) in enumerate([(10.0, "abcd"), (40.0, "abc"), (300.0, "ab")]):
        ledger.note_round(str(number), [(PeerId(peer), 8.0 + number) for peer in peers], now_s)
    each = {peer: Account(*amounts).rate(700.0) for peer, amounts in ledger.to_values().items()}
    factors = Account.factors
    monkeypatch.setattr(Account, "factors", lambda self, now_s: reckoned.append(self) or factors(self, now_s))
    assert ledger.rates(700.0) == each
    assert len(reckoned) == 3, "a and b were in the same rounds"


def test_of_a_peer_that_is_gone_for_long_only_stays_that_its_blocks_are_trained() -> None:
    reader = Reader(alice=100.0)
    reader.ledger.note_round("1", [(ALICE, 3 * 8.0)], 0.0)
    reader.reads(0.0, alice=(0b1000, 0b0111))
    assert reader.trained == 0b0111
    reader.reads(10.0)
    assert reader.holders.num_entries(KEY) == 1, "it may be there again in a moment"
    reader.reads(10.0 + FORGOTTEN_S)
    assert reader.holders.num_entries(KEY) == 1
    reader.reads(11.0 + FORGOTTEN_S)
    assert reader.holders.num_entries(KEY) == 0
    assert reader.trained == 0b0111
    reader.reads(1000.0, alice=(0, 0b0111))
    assert reader.coverage.covered(0).again == 0, "it says what it has said before"
    assert reader.ledger.unspent(ALICE) == 0.0


def test_who_has_trained_what_of_a_page_is_forgotten_when_it_is_done_and_nobody_reads_it_any_more() -> None:
    reader = Reader(alice=100.0)
    reader.ledger.note_round("1", [(ALICE, 8.0 * HALF)], 0.0)
    whole = (1 << PAGE_BLOCKS) - 1
    reader.reads(0.0, alice=(0, whole))
    assert reader.coverage.of(0).trained[0] == whole
    reader.holders.forget(0, FORGOTTEN_S)
    assert reader.holders.num_entries(KEY) == 1
    reader.holders.forget(0, 1.0 + FORGOTTEN_S)
    assert reader.holders.num_entries(KEY) == 0
    assert reader.holders.num_entries((0, 1)) == 1, "there is something left to train"
    assert reader.coverage.of(0).trained[0] == whole
    assert reader.held(1.0 + FORGOTTEN_S) == 0


def test_what_a_peer_has_trained_and_no_round_has_shown_yet_is_remembered_while_it_is_there() -> None:
    reader = Reader(alice=100.0)
    reader.reads(0.0, alice=(0, 0b11))
    for at_s in (1.0, 2.0 + FORGOTTEN_S):
        reader.reads(at_s)
    assert reader.trained == 0b01, "one block is believed in advance"
    assert reader.holders.num_entries(KEY) == 1
    reader.ledger.note_round("1", [(ALICE, 16.0)], 700.0)
    reader.reads(700.0, half=1, alice=(0b1, 0))
    assert reader.trained == 0b11, "it is at work on another page"


def test_what_a_peer_has_trained_that_is_gone_and_no_round_has_shown_is_forgotten() -> None:
    reader = Reader(alice=100.0)
    reader.reads(0.0, alice=(0, 0b11))
    reader.holders.pace = Pace(speeds={}, step_s=10.0)
    for at_s in (1.0, 2.0 + FORGOTTEN_S):
        reader.reads(at_s)
    assert reader.holders.num_entries(KEY) == 0
