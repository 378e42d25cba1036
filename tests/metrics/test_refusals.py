"""Counts of refusals over time: few words, little memory, and nothing of strangers that a terminal would obey."""

import asyncio
import logging
from typing import Any

import pytest

from collab.metrics import refusals as counting
from collab.metrics.records import Notice, PeerRefused
from collab.metrics.refusals import LINES_PER_MINUTE, MAX_PEERS, MAX_REASONS, OTHER, SAY_AGAIN_S, Refusals, Refused
from collab.types import PeerId
from tests.fakes import FakeClock, FakeObserver, run


def refused(peer: str = "a", reason: str = "too_large", *, at_s: float = 1.0, epoch: int = -1) -> PeerRefused:
    return PeerRefused(at_s=at_s, epoch=epoch, peer=PeerId(peer), reason=reason, text="its own words \x1b[31m")


def ledger(clock: FakeClock | None = None) -> tuple[Refusals, FakeObserver]:
    observer = FakeObserver()
    return Refusals(observer, clock or FakeClock()), observer


def counts(refusals: Refusals) -> dict[tuple[str, str], int]:
    return {(row.peer, row.reason): row.count for row in refusals.rows()}


def test_each_peer_and_reason_is_counted_with_its_first_and_last_time() -> None:
    async def main() -> None:
        refusals, _ = ledger()
        for at_s, reason in ((1.0, "too_large"), (2.0, "bad_message"), (5.0, "too_large")):
            refusals.observe(refused(reason=reason, at_s=at_s))
        refusals.observe(refused("b", at_s=7.0))
        first = refusals.rows()[0]
        assert (first.peer, first.reason, first.count, first.first_at_s, first.last_at_s) == ("a", "too_large", 2, 1, 5)
        assert counts(refusals) == {("a", "too_large"): 2, ("a", "bad_message"): 1, ("b", "too_large"): 1}

    run(main())


def test_what_reducer_and_leader_tell_of_one_epoch_is_one_offence() -> None:
    async def main() -> None:
        refusals, observer = ledger()
        for epoch in (3, 3, 4):
            refusals.observe(refused(reason="not_finite", epoch=epoch))
        refusals.observe(refused(reason="not_signed", epoch=4))
        assert counts(refusals) == {("a", "not_finite"): 2, ("a", "not_signed"): 1}
        assert len(observer.events) == 4, "what happens in rounds is passed on as it happens"

    run(main())


def test_a_flood_is_counted_and_said_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        refusals, observer = ledger()
        for _ in range(1000):
            refusals.observe(refused())
        assert len(observer.events) == 1
        assert counts(refusals) == {("a", "too_large"): 1000}
        await asyncio.sleep(SAY_AGAIN_S)
        refusals.observe(refused())
        assert len(observer.events) == 2

    with caplog.at_level(logging.WARNING):
        run(main())
    assert [record.getMessage() for record in caplog.records] == [
        "peer is refused peer=a reason=too_large times=1",
        "peer is refused peer=a reason=too_large times=1001",
    ]


def test_a_flood_under_ever_new_names_fills_neither_memory_nor_disk(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        refusals, observer = ledger()
        for number in range(5000):
            refusals.observe(refused(f"sybil-{number}"))
        assert len(observer.events) == LINES_PER_MINUTE
        assert len(refusals.rows()) == MAX_PEERS
        assert ("sybil-4999", "too_large") in counts(refusals)
        for number in range(1000):
            refusals.observe(refused("sybil-4999", "x" * (number % 30 + 1)))
        assert len([row for row in refusals.rows() if row.peer == "sybil-4999"]) == MAX_REASONS
        await asyncio.sleep(60.0)
        refusals.observe(refused("late"))
        assert len(observer.events) == LINES_PER_MINUTE + 1

    with caplog.at_level(logging.WARNING):
        run(main())
    assert len(caplog.records) == LINES_PER_MINUTE + 1


def test_who_is_quiet_longest_is_forgotten_first() -> None:
    async def main() -> None:
        refusals, _ = ledger()
        refusals.observe(refused("noisy"))
        for number in range(MAX_PEERS + 10):
            refusals.observe(refused(f"other-{number}"))
            refusals.observe(refused("noisy"))
        assert counts(refusals)["noisy", "too_large"] == MAX_PEERS + 11
        assert ("other-0", "too_large") not in counts(refusals)

    run(main())


def test_names_and_reasons_of_strangers_are_made_harmless(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        refusals, _ = ledger()
        refusals.observe(refused("\x1b]0;owned\x07\n" + "z" * 500, "buy now\nERROR all is lost"))
        (row,) = refusals.rows()
        assert row.reason == OTHER
        assert len(row.peer) == 64
        assert not set(row.peer) & set("\x1b\x07\n;]")

    with caplog.at_level(logging.WARNING):
        run(main())
    assert "\n" not in caplog.records[0].getMessage()
    assert "own words" not in caplog.records[0].getMessage()


def test_what_happens_to_honest_peers_is_counted_and_nobody_is_warned(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        refusals, _ = ledger()
        for reason in ("late", "member_lost", "unknown_round"):
            refusals.observe(refused(reason=reason))
        assert sum(counts(refusals).values()) == 3

    with caplog.at_level(logging.WARNING):
        run(main())
    assert caplog.records == []


def test_other_events_pass() -> None:
    async def main() -> None:
        refusals, observer = ledger()
        notice = Notice(at_s=0.0, text="fine")
        refusals.observe(notice)
        assert observer.events == [notice]
        assert refusals.rows() == []

    run(main())


def test_who_looks_while_more_is_refused_sees_what_there_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """A panel's thread looks, and the loop comes in between two rows."""

    async def main() -> None:
        told, _ = ledger()
        for peer in ("a", "b"):
            told.observe(refused(peer))

        def slowly(**fields: Any) -> Refused:
            told.observe(refused("a", "bad_message"))
            told.observe(refused("c"))
            return Refused(**fields)

        monkeypatch.setattr(counting, "Refused", slowly)
        assert {row.peer for row in told.rows()} == {"a", "b"}
        assert len(told.rows()) == 4

    run(main())
