"""How long samples that a peer has brought are remembered."""

from collab.data.ledger import FORGOTTEN_S, Ledger
from collab.types import PeerId

ALICE, BOB, LIAR = PeerId("alice"), PeerId("bob"), PeerId("liar")
NOW = 1e9


def heard(ledger: Ledger, at_s: float, *peers: PeerId) -> None:
    """A round of that time, of eight samples each."""
    ledger.note_round(str(at_s), [(peer, 8.0) for peer in peers], NOW + at_s)


def known(ledger: Ledger) -> set[PeerId]:
    return set(ledger.rates(NOW))


def test_whoever_has_brought_nothing_for_half_an_hour_begins_anew() -> None:
    ledger = Ledger(most_per_round=100.0)
    heard(ledger, 0.0, ALICE, BOB)
    heard(ledger, FORGOTTEN_S, BOB)
    assert known(ledger) == {ALICE, BOB}
    assert ledger.unspent(ALICE) == 8.0
    heard(ledger, FORGOTTEN_S + 1.0, BOB)
    assert known(ledger) == {BOB}
    assert ledger.unspent(BOB) == 24.0
    heard(ledger, FORGOTTEN_S + 2.0, ALICE)
    assert (ledger.unspent(ALICE), ledger.total(ALICE)) == (8.0, 8.0)


def test_for_who_has_not_brought_anything_what_was_believed_in_advance_counts_as_long() -> None:
    ledger = Ledger(most_per_round=100.0)
    heard(ledger, 0.0, BOB)
    assert ledger.can_pay(LIAR, 8.0, 8.0)
    ledger.pay(LIAR, 8.0)
    heard(ledger, FORGOTTEN_S, BOB)
    assert not ledger.can_pay(LIAR, 8.0, 8.0)


def test_what_others_have_seen_counts_from_when_they_say_it() -> None:
    ledger = Ledger(most_per_round=100.0)
    ledger.adopt({ALICE: (80.0, 0.0)}, NOW, pass_samples=1000.0)
    heard(ledger, FORGOTTEN_S, BOB)
    assert ledger.total(ALICE) == 80.0
    heard(ledger, FORGOTTEN_S + 1.0, BOB)
    assert ledger.total(ALICE) == 0.0
