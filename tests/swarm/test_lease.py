"""The publishing lease: one backbone at a time, whatever the directory, the clocks and the machines do."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from unittest.mock import patch

import pytest

from collab.ports import Ports
from collab.swarm import lease as rules
from collab.swarm.backbone_records import BackboneRecord, pack_backbone
from collab.swarm.lease import LEASE_S, MARGIN_S, RENEW_S, TURN_S, Claim, Lease, Now, Part
from tests.swarm.lease_lab import FINGERPRINT, LeaseLab, Weather

TAKEOVER_S = LEASE_S + MARGIN_S + 2 * RENEW_S
"""From the death of a holder to the next one, in fair weather."""
ROUGH = Weather(lost=0.15, longest_s=2.0)
SEEDS = (*range(10), 1036, 1124)
"""Hundreds were tried (docs/protocol.md). The last two found that a term could be claimed by a second backbone when the
first had given it up again: others told which term they had seen, and not whose."""


def churned(seed: int, *, clock_error_s: float = MARGIN_S, weather: Weather = ROUGH) -> LeaseLab:
    """Five minutes of kills, freezes and losses among three or four backbones, then a quiet minute and a half."""
    lab = LeaseLab(seed, 3 + seed % 2, weather=weather, clock_error_s=clock_error_s)
    for number in range(lab.number):
        for _ in range(3):
            time_s = lab.rng.uniform(1.0, 280.0)
            if lab.rng.random() < 0.5:
                lab.churn.freeze_at(peer=number, time_s=time_s, for_s=lab.rng.choice([3.0, 12.0, 25.0, 60.0]))
            else:
                lab.churn.fail_at(peer=number, time_s=time_s, restart_after_s=lab.rng.choice([0.5, 10.0, 40.0]))
    lab.run(300.0)
    lab.weather = Weather()
    lab.run(TAKEOVER_S + lab.number * TURN_S + 40.0)
    return lab


def test_no_two_publish_at_a_time_and_in_the_end_one_does() -> None:
    """Kills, restarts, freezes beyond the lease, lost and late answers, clocks that differ by twice the margin."""
    terms = 0
    for seed in SEEDS:
        lab = churned(seed)
        with lab.world:
            assert not lab.faults(), f"seed {seed}"
            assert len(lab.holders()) == 1, f"seed {seed}"
            assert lab.place.log[-1].at_s > 300.0, f"seed {seed}: somebody publishes in the end"
            terms += len({one.tenure for one in lab.place.log})
    assert terms > 3 * len(SEEDS), "the lease went from hand to hand"


def cut_off(seed: int) -> LeaseLab:
    """Four backbones, cut into two pairs twice; in every second world somebody is frozen, too."""
    lab = LeaseLab(seed, 4, weather=Weather(lost=0.05, longest_s=1.0), clock_error_s=MARGIN_S)
    for time_s in (40.0, 140.0):
        sides = lab.rng.sample(range(4), 4)
        lab.churn.partition_at([sides[:2], sides[2:]], time_s=time_s, for_s=lab.rng.uniform(40.0, 80.0))
    if seed % 2:
        lab.churn.freeze_at(peer=lab.rng.randrange(4), time_s=lab.rng.uniform(20.0, 200.0), for_s=30.0)
    lab.run(240.0)
    lab.weather = Weather()
    lab.run(60.0)
    return lab


def test_after_a_partition_the_higher_tenure_goes_on_and_nothing_interleaves() -> None:
    """Both sides publish to one place; what is accepted there never goes back to an earlier tenure."""
    refused = 0
    for seed in SEEDS:
        lab = cut_off(seed)
        with lab.world:
            assert not lab.faults(is_partitioned=True), f"seed {seed}"
            (holder,) = lab.holders()
            assert holder == max(one.tenure for one in lab.place.log), f"seed {seed}"
            refused += sum(not one.is_accepted for one in lab.place.log)
    assert refused > 0, "the fence had something to do"


def test_a_dead_holder_is_followed_within_half_a_minute_by_exactly_one() -> None:
    lab = LeaseLab(1, 3)
    with lab.world:
        lab.run(20.0)
        (first,) = lab.holders()
        lab.world.kill(lab._index_of(first))
        lab.run(TAKEOVER_S)
        (second,) = lab.holders()
        assert second.term == first.term + 1
        assert second.holder != first.holder
        assert not lab.faults()


def test_a_holder_that_was_frozen_for_longer_than_its_lease_publishes_nothing_when_it_wakes_up() -> None:
    lab = LeaseLab(2, 2)
    with lab.world:
        lab.run(20.0)
        (first,) = lab.holders()
        index = lab._index_of(first)
        lab.churn.freeze_at(peer=index, time_s=25.0, for_s=60.0)
        lab.run(120.0)
        assert not [one for one in lab.place.log if one.tenure == first and one.at_s > 25.0 + LEASE_S]
        assert {one.tenure.holder for one in lab.place.log if one.at_s > 100.0} != {first.holder}
        assert not lab.faults()


def test_who_cannot_publish_frees_the_lease_at_once() -> None:
    lab = LeaseLab(3, 2)
    with lab.world:
        lab.run(20.0)
        (first,) = lab.holders()
        candidate = lab.candidates[lab._index_of(first)]
        candidate.is_able = False
        lab.world.call_at(lab.world.time_s, candidate.keeper.give_up)
        lab.run(2 * RENEW_S)
        (second,) = lab.holders()
        assert second.holder != first.holder
        assert not lab.faults()


def test_a_holder_keeps_the_lease_when_its_clock_is_corrected_backwards() -> None:
    """Its last record ends ten minutes later than what it says next: keepers refuse that, if it says so."""
    lab = LeaseLab(5, 1, clock_error_s=0.0)
    with lab.world:
        lab.world.peers[0].clock.error_s = 600.0
        lab.run(20.0)
        (first,) = lab.holders()
        lab.world.peers[0].clock.error_s = 0.0
        for _ in range(6):
            lab.run(LEASE_S)
            assert lab.holders() == [first]
        assert not lab.faults()


def unheard(*, error_s: float) -> list[str]:
    """A holder's words are not heard any more, but it hears others: only its clock tells it. What goes wrong.

    Args:
        error_s: by which its clock is behind, and the other one's ahead.
    """
    lab = LeaseLab(4, 2)
    with lab.world:
        lab.run(20.0)
        (first,) = lab.holders()
        index = lab._index_of(first)
        lab.world.peers[index].clock.error_s, lab.world.peers[1 - index].clock.error_s = -error_s, error_s
        lab.run(2 * RENEW_S)
        with patch.object(lab.candidates[index].keeper, "_say", _silent):
            lab.run(TAKEOVER_S + TURN_S)
            assert [tenure.term for tenure in lab.holders()][-1:] == [first.term + 1] or lab.faults()
        return lab.faults()


def test_a_holder_that_nobody_hears_stops_before_others_begin() -> None:
    assert not unheard(error_s=MARGIN_S)


async def _silent() -> None:
    """Says nothing."""


def test_a_renewal_that_is_confirmed_too_late_does_not_count() -> None:
    lease = holding()
    lease.said(1, Now(1010.0, 10.0), Now(1000.0 + LEASE_S, LEASE_S))
    assert lease.tenure(Now(1000.0 + LEASE_S, LEASE_S)) is None


@pytest.mark.parametrize(("swarm_s", "own_s"), [(1017.0, 5.0), (1005.0, 17.0)])
def test_either_clock_ends_a_lease(swarm_s: float, own_s: float) -> None:
    """A machine that slept may have a monotonic clock that stood still; another one's wall clock may be set back."""
    lease = holding()
    assert lease.tenure(Now(1005.0, 5.0)) is not None
    assert lease.tenure(Now(swarm_s, own_s)) is None


def holding() -> Lease:
    """A lease that was claimed at 1000 s of swarm time, by its holder's clock at 0 s."""
    lease = Lease(ME)
    claim = rules.Claim(peer=ME, said_at=1000.0)
    start = Now(1000.0, 0.0)
    lease.read([], claim, start, start)
    lease.said(1, start, start)
    lease.read([], claim, start, start)
    assert lease.part is Part.HOLDING
    return lease


ME = rules.PeerId("me")


def test_an_answer_that_a_frozen_machine_slept_over_frees_no_lease() -> None:
    """Nobody claimed anything when it was asked for; another backbone has taken the lease since."""
    lease = Lease(ME)
    claim = Claim(peer=ME, said_at=1060.0)
    lease.read([], claim, Now(1000.0, 0.0), Now(1060.0, 60.0))
    assert (lease.part, lease.term) == (Part.FOLLOWING, 0)
    theirs = Claim(peer=rules.PeerId("another"), said_at=1058.0, term=1)
    lease.read([theirs], claim, Now(1060.0, 60.0), Now(1060.1, 60.1))
    assert (lease.part, lease.term) == (Part.FOLLOWING, 0)


def test_terms_that_leap_are_passed_over() -> None:
    """One liar must not use up all terms: after the highest there is none."""
    lease = holding()
    liar = rules.Claim(peer=rules.PeerId("liar"), said_at=1000.0, term=rules.MAX_TERM, seen_term=rules.MAX_TERM)
    lease.read([liar], rules.Claim(peer=ME, said_at=1000.0), Now(1001.0, 1.0), Now(1001.0, 1.0))
    assert lease.part is Part.HOLDING
    assert lease.seen.term == 1


def forged(*, is_vouched: bool) -> list[int]:
    """Terms of the honest holder after a minute in which a stranger claims the lease, and ever higher terms."""
    lab = LeaseLab(5, 2)

    async def forge(ports: Ports) -> None:
        for number in range(20):
            term = 1000 * number + 1
            claim = Claim(peer=ports.transport.peer_id, said_at=ports.clock.now(), term=term, seen_term=term)
            data = pack_backbone(BackboneRecord(fingerprint=FINGERPRINT, claim=claim), lab.world.peers[-1].identity)
            key, expires_at = f"{FINGERPRINT[:32]}.backbones", claim.said_at + 25.0
            await ports.directory.store(key, claim.peer, data, expires_at=expires_at, timeout_s=5.0)
            await asyncio.sleep(RENEW_S)

    with lab.world:
        lab.run(20.0)
        forger = lab.world.add_peer(forge)
        if not is_vouched:
            lab.strangers.add(forger.peer_id)
        lab.run(60.0)
        return [tenure.term for tenure in lab.holders()]


def test_a_forger_that_nobody_vouches_for_changes_nothing() -> None:
    assert forged(is_vouched=False) == [1]


def test_a_forger_whose_word_counts_stops_publishing_and_no_more() -> None:
    """As in an open run: docs/protocol.md says so."""
    assert forged(is_vouched=True) == []


# -- the checks can fail: each rule is broken in turn, and somebody publishes beside another --------------------------


@contextmanager
def without_margin() -> Iterator[None]:
    """Clocks are taken to be right."""
    with patch.object(rules, "MARGIN_S", 0.0):
        yield


@contextmanager
def without_a_second_look() -> Iterator[None]:
    """Whoever has said its claim holds the lease."""

    def confirm(self: Lease, *_: object) -> None:
        self.part = Part.HOLDING

    with patch.object(Lease, "_confirm", confirm):
        yield


@contextmanager
def without_an_end() -> Iterator[None]:
    """A holder looks at no clock."""
    with patch.object(Now, "is_before", lambda *_: True):
        yield


@contextmanager
def forgetful() -> Iterator[None]:
    """Terms begin anew with each life, and with each claim."""

    def note(self: Lease, *_: object) -> None:
        self.seen = rules.NOBODY

    with patch.object(Lease, "_note", note):
        yield


def test_without_a_margin_clocks_that_are_off_make_two_holders() -> None:
    with without_margin():
        assert unheard(error_s=MARGIN_S)


@pytest.mark.parametrize("broken", [without_a_second_look, without_an_end, forgetful])
def test_the_checks_find_a_broken_rule(broken: Callable[[], AbstractContextManager[None]]) -> None:
    found: list[str] = []
    with broken():
        for seed in SEEDS:
            lab = churned(seed)
            with lab.world:
                found += lab.faults()
            if found:
                break
    assert found
