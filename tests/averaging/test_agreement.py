"""The chain of committed rounds."""

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from collab.averaging.agreement import MAX_MEMBERS, CommitRecord, genesis, local_lineage
from collab.errors import BadMessage
from collab.net.wire import Message
from collab.types import Lineage, PeerId
from tests.averaging.records import X, Y, make_record
from tests.fakes import through_the_wire

RECORD = make_record(
    round_id="r1",
    epoch=3,
    lineage=Lineage("a" * 64),
    contributors=((X, 2.0), (Y, 1.5)),
    members=(X, Y),
    pieces=((X, 0, 6), (Y, 6, 8)),
    digests=("d1", "d2"),
    gaps=((Y, 2, 4),),
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def test_equal_records_give_equal_lineages_also_after_travelling() -> None:
    message = through_the_wire(Message("commit", {"record": RECORD.to_fields()}))
    received = CommitRecord.from_fields(message.get("record", dict))
    assert received == RECORD
    assert received.next_lineage() == RECORD.next_lineage()
    assert len(RECORD.next_lineage()) == 64


@pytest.mark.parametrize(
    "change",
    [
        {"round_id": "r2"},
        {"epoch": 4},
        {"lineage": Lineage("b" * 64)},
        {"contributors": ((PeerId("y"), 1.5), (PeerId("x"), 2.0))},
        {"contributors": ((PeerId("x"), 2.0),)},
        {"contributors": ((PeerId("x"), 2.0), (PeerId("y"), math.nextafter(1.5, 2)))},
        {"contributors": ((PeerId("z"), 2.0), (PeerId("y"), 1.5))},
        {"digests": ("d2", "d1")},
        {"digests": ("d1d2",)},
        {"digests": ()},
        {"members": (X,)},
        {"pieces": ((X, 0, 5), (Y, 5, 8))},
        {"pieces": ((Y, 0, 6), (Y, 6, 8))},
        {"gaps": ()},
        {"gaps": ((Y, 2, 5),)},
    ],
)
def test_the_lineage_changes_with_every_part_of_the_record(change: dict[str, Any]) -> None:
    assert dataclasses.replace(RECORD, **change).next_lineage() != RECORD.next_lineage()


def test_the_lineage_is_reckoned_once_for_each_record(monkeypatch) -> None:
    record, asked = dataclasses.replace(RECORD, epoch=8), []
    monkeypatch.setattr(CommitRecord, "to_fields", lambda each: asked.append(each) or {"epoch": each.epoch})
    assert len({record.next_lineage() for _ in range(3)}) == 1
    assert asked == [record]
    assert dataclasses.replace(record, epoch=9).next_lineage() != record.next_lineage()


def test_a_record_that_is_known_already_is_recognised_and_every_other_one_is_read() -> None:
    fields = through_the_wire(Message("commit", {"record": RECORD.to_fields()})).get("record", dict)
    assert CommitRecord.from_fields(fields, RECORD) is RECORD
    other = dataclasses.replace(RECORD, epoch=RECORD.epoch + 1)
    assert CommitRecord.from_fields(other.to_fields(), RECORD) == other
    with pytest.raises(BadMessage):
        CommitRecord.from_fields({**fields, "digests": ["d1"]}, RECORD)


def test_the_three_kinds_of_links_never_coincide() -> None:
    a, b = "a" * 64, "b" * 64
    links = {genesis(a, b), genesis(b, a), local_lineage(Lineage(a), b), local_lineage(Lineage(b), a)}
    assert len(links) == 4
    assert genesis(a, b) == genesis(a, b)


def test_the_weight_of_a_record_is_the_sum_over_its_contributors() -> None:
    assert make_record(contributors=((X, 2.0), (Y, 1.5))).weight == 3.5


def test_what_is_missing_of_a_contributor_does_not_count() -> None:
    assert RECORD.weight == 2.0 + 1.5 * 6 / 8
    assert RECORD.used_of(X) == ((0, 8),)
    assert RECORD.used_of(Y) == ((0, 2), (4, 8))
    assert RECORD.used_of(PeerId("z")) == ()
    assert RECORD.reduced_by(Y) == ((6, 8),)


def test_gaps_may_touch_and_reach_both_ends() -> None:
    record = make_record(contributors=((X, 1.0), (Y, 1.0)), gaps=((Y, 0, 2), (Y, 2, 3), (Y, 7, 8)))
    assert record.used_of(Y) == ((3, 7),)
    assert make_record(gaps=((X, 0, 8),)).used_of(X) == ()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("round_id", value) for value in (..., None, 5)],
        *[("epoch", value) for value in (..., None, "x", "3", -1, 3.5, math.inf, math.nan, True, [3])],
        *[("lineage", value) for value in (..., None, 5)],
        *[("contributors", value) for value in (..., None, 5, "xy", [5], [["x"]], [["x", 1, 2]], ["x1"], {"x1": 2})],
        *[("contributors", [["x", weight]]) for weight in (-1.0, math.nan, math.inf, None, "heavy", "1", 0.0)],
        ("contributors", [["x", 1.7e308], ["y", 1.7e308]]),
        ("contributors", []),
        ("contributors", [["x", 1.0], ["x", 1.0]]),
        *[("digests", value) for value in (..., None, 5, "d1", [5], [None], ["d1"])],
        *[("members", value) for value in (..., None, 5, [], [5], ["x", "x"])],
        *[("pieces", value) for value in (..., None, [], [["x", 0, 6]], [["x", 0, 6], ["y", 5, 8]])],
        *[("pieces", value) for value in ([["x", 1, 6], ["y", 6, 8]], [["x", 0, 6], ["y", 7, 8]])],
        *[("gaps", value) for value in (..., None, [["z", 0, 1]], [["y", 4, 4]], [["y", 4, 9]], [["y", -1, 2]])],
    ],
)
def test_a_record_with_a_hostile_field_is_a_bad_message(field: str, value: Any) -> None:
    fields = {name: content for name, content in {**RECORD.to_fields(), field: value}.items() if content is not ...}
    with pytest.raises(BadMessage):
        CommitRecord.from_fields(fields)


@pytest.mark.parametrize("field", ["contributors", "members"])
def test_a_record_names_no_more_peers_than_a_group_has(field: str) -> None:
    for count in (MAX_MEMBERS, MAX_MEMBERS + 1):
        names = [PeerId(f"p{number}") for number in range(count)]
        rows: list[Any] = [[name, 1.0] for name in names] if field == "contributors" else list(names)
        fields = {**RECORD.to_fields(), "gaps": [], field: rows}
        if count <= MAX_MEMBERS:
            CommitRecord.from_fields(fields)
            continue
        with pytest.raises(BadMessage, match="at most"):
            CommitRecord.from_fields(fields)


def test_a_record_is_checked_without_looking_through_its_gaps_for_each_contributor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[PeerId] = []
    monkeypatch.setattr(CommitRecord, "used_of", lambda _, peer: asked.append(peer))
    names = [PeerId(f"p{number}") for number in range(MAX_MEMBERS)]
    whole = {**RECORD.to_fields(), "contributors": [[name, 1.0] for name in names]}
    with pytest.raises(BadMessage, match="nothing of any contributor"):
        CommitRecord.from_fields(whole | {"gaps": [[name, start, start + 4] for name in names for start in (0, 4)]})
    CommitRecord.from_fields(whole | {"gaps": [[name, 0, 8] for name in names[1:]] + [[names[0], 0, 7]]})
    assert asked == []


@given(changes=st.dictionaries(st.sampled_from(sorted(RECORD.to_fields())), PLAIN, min_size=1))
@settings(max_examples=150)
def test_any_record_is_refused_or_makes_sense(changes: dict[str, Any]) -> None:
    try:
        record = CommitRecord.from_fields({**RECORD.to_fields(), **changes})
    except BadMessage:
        return
    assert math.isfinite(record.weight)
    assert record.weight > 0
    assert len(record.next_lineage()) == 64
    assert CommitRecord.from_fields(record.to_fields()) == record
