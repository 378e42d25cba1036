"""Join and BEGIN: what is written is read, and whatever else comes is refused with one kind of error."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from collab.averaging.messages import MAX_ELEMENTS, MAX_MEMBERS, Group, Join, Member, plan_digest
from collab.averaging.plan import MAX_RATE, MIN_RATE, Span, is_tiling
from collab.compression.base import codec_by_name
from collab.errors import BadMessage
from collab.net.wire import Message
from collab.types import Lineage, PeerId
from tests.averaging.spans import equal_shares
from tests.fakes import through_the_wire

JOIN = Join(
    fingerprint="f" * 64, epoch=3, lineage=Lineage("a" * 64), num_elements=10, weight=4.5, can_reduce=True
).to_message()
GROUP = Group(
    round_id="r1",
    epoch=3,
    lineage=Lineage("a" * 64),
    num_elements=10,
    leader=PeerId("x"),
    members=(Member(PeerId("x"), 2.0), Member(PeerId("y"), 0.0), Member(PeerId("z"), 1.0)),
    spans=(Span(PeerId("x"), 0, 5), Span(PeerId("y"), 5, 10)),
)
BEGIN = GROUP.to_message()
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.integers(-2, 12)
    | st.floats()
    | st.sampled_from(["x", "y", "z", "xy", "1", "nan"])
    | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


def altered(message: Message, **changes: Any) -> Message:
    """The message with fields replaced; ``...`` leaves a field out. What it says of itself is true."""
    fields = {name: value for name, value in {**message.fields, **changes}.items() if value is not ...}
    if message.kind == "begin" and "digest" not in changes:
        fields["digest"] = plan_digest(fields)
    return Message(message.kind, fields)


def hostile(field: str, *values: Any) -> list[tuple[str, Any]]:
    """One case for each value."""
    return [(field, value) for value in values]


def members(*weights: Any) -> list[list[Any]]:
    return [[name, weight] for name, weight in zip("xyz", weights, strict=True)]


@pytest.mark.parametrize(("num_elements", "weight"), [(10, 4.5), (0, 0.0), (1, 1e-3), (MAX_ELEMENTS, 1e6)])
def test_a_join_arrives_as_it_was_sent(num_elements: int, weight: float) -> None:
    join = Join(
        fingerprint="f", epoch=0, lineage=Lineage(""), num_elements=num_elements, weight=weight, can_reduce=False
    )
    assert Join.from_message(through_the_wire(join.to_message())) == join


@pytest.mark.parametrize("rate", [0.0, MIN_RATE, 2.5e6, MAX_RATE])
def test_a_join_with_a_rate_that_a_link_may_have_arrives_as_it_was_sent(rate: float) -> None:
    join = replace(Join.from_message(JOIN), up_bytes_per_s=rate, down_bytes_per_s=rate)
    assert Join.from_message(through_the_wire(join.to_message())) == join


def test_a_group_arrives_as_it_was_sent() -> None:
    received = Group.from_message(through_the_wire(BEGIN))
    assert received == GROUP
    assert received.contributors == (Member(PeerId("x"), 2.0), Member(PeerId("z"), 1.0))
    assert received.span_of(PeerId("y")) == Span(PeerId("y"), 5, 10)
    assert received.span_of(PeerId("z")) is None


def test_who_contributes_is_listed_once_for_each_group() -> None:
    group = Group.from_message(through_the_wire(BEGIN))
    assert group.contributors is group.contributors
    other = replace(group, members=group.members[:1])
    assert other.contributors == group.members[:1]


def test_a_group_whose_plan_was_changed_on_the_way_is_refused() -> None:
    assert Group.from_message(altered(BEGIN, epoch=GROUP.epoch + 1)).digest != GROUP.digest
    for changes in ({"epoch": GROUP.epoch + 1}, {"round_id": "other"}, {"result_codec": "float16"}):
        with pytest.raises(BadMessage, match="digest"):
            Group.from_message(altered(BEGIN, **changes, digest=GROUP.digest))


def test_a_group_of_the_largest_size_arrives_as_it_was_sent() -> None:
    peers = tuple(PeerId(f"Qm{i:03d}") for i in range(MAX_MEMBERS))
    group = Group(
        round_id="r", epoch=0, lineage=Lineage(""), num_elements=1000, leader=peers[0],
        members=tuple(Member(peer, 1.0) for peer in peers), spans=equal_shares(1000, peers),
    )  # fmt: skip
    assert Group.from_message(through_the_wire(group.to_message())) == group


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *hostile("fingerprint", ..., None, 5, b"f" * 64, ["f"], {}),
        *hostile("lineage", ..., None, 0, b"a", ["a"]),
        *hostile("epoch", ..., None, -1, 1.0, "3", True, [3], math.nan),
        *hostile("num_elements", ..., -1, 10.0, "10", True, None, MAX_ELEMENTS + 1, 2**64 - 1, 0),
        *hostile("weight", ..., -1.0, math.nan, math.inf, -math.inf, "4", True, None, [1.0], 0.0),
        *hostile("can_reduce", ..., 1, 0, "yes", None),
        *hostile("up_bytes_per_s", ..., -1.0, math.nan, math.inf, 1e-320, 1e-3, 999.0, 2e12, "fast", None),
        *hostile("down_bytes_per_s", ..., -1.0, math.nan, math.inf, 1e-320, 1e-3, 999.0, 2e12, "fast", None),
    ],
)
def test_a_join_with_a_hostile_field_is_a_bad_message(field: str, value: Any) -> None:
    with pytest.raises(BadMessage):
        Join.from_message(altered(JOIN, **{field: value}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *hostile("round_id", ..., None, 5, b"r1", ["r1"]),
        *hostile("lineage", ..., None, 5, b"a"),
        *hostile("leader", ..., None, 5, b"x"),
        *hostile("epoch", ..., None, -1, 3.0, True, "3"),
        *hostile("num_elements", ..., 9, 11, 0, -10, 10.0, True, 2**64 - 1),
        *hostile("members", ..., None, [], {}, "xyz", 3, [["x", 2.0], 5], [["x"]], [["x", 1.0, 2.0]]),
        ("members", [*members(2.0, 0.0, 1.0), ["x", 2.0]]),  # twice
        ("members", [*members(2.0, 0.0, 1.0), ["x", 0.0]]),
        *hostile("members", *(members(weight, 0.0, 1.0) for weight in (-1.0, math.nan, math.inf, None, "2", True))),
        ("members", members(0.0, 0.0, 0.0)),  # zero-sum
        ("members", members(1.0, 0.0, -1.0)),
        ("members", members(1.7e308, 0.0, 1.7e308)),  # their sum is infinite
        ("members", [[None, 2.0], ["y", 0.0], ["x", 1.0]]),
        ("members", [[["x"], 2.0], ["y", 0.0], ["x", 1.0]]),
        ("members", ["x2", "y0", "z1"]),  # text of two characters is no pair
        ("members", [{"x": 0, "2": 0}, ["y", 0.0], ["z", 1.0]]),
        ("members", [[f"Qm{i}", 1.0] for i in range(MAX_MEMBERS - 1)] + [["x", 1.0], ["y", 0.0]]),
        *hostile("spans", ..., None, [], {}, "xyz", 3, [["x", 0]], [["x", 0, 10, 1]], [5], [None]),
        ("spans", [["x", 0, 5]]),
        ("spans", [["x", 0, 5], ["y", 6, 10]]),
        ("spans", [["x", 0, 6], ["y", 5, 10]]),
        ("spans", [["y", 5, 10], ["x", 0, 5]]),
        ("spans", [["x", 0, 5], ["x", 5, 10]]),
        ("spans", [["x", 0, 5], ["stranger", 5, 10]]),
        ("spans", [["x", 0, 11]]),
        ("spans", [["x", 0, 0], ["y", 0, 10]]),
        ("spans", [["x", 0, math.inf]]),
        ("spans", [["x", 0, math.nan]]),
        ("spans", [["x", 0, 10.0]]),
        ("spans", [["x", 0.5, 10]]),
        ("spans", [["x", False, 10]]),
        ("spans", [["x", "0", "10"]]),
        ("spans", [["x", 0, 2**64 - 1]]),
    ],
)  # fmt: skip
def test_a_group_with_a_hostile_field_is_a_bad_message(field: str, value: Any) -> None:
    with pytest.raises(BadMessage):
        Group.from_message(altered(BEGIN, **{field: value}))


def test_a_group_over_more_elements_than_any_vector_has_is_a_bad_message() -> None:
    huge = 2**62
    message = altered(BEGIN, num_elements=huge, spans=[["x", 0, huge // 2], ["y", huge // 2, huge]])
    with pytest.raises(BadMessage):
        Group.from_message(message)


@given(fields=st.dictionaries(st.sampled_from(sorted(JOIN.fields)), PLAIN))
@settings(max_examples=150)
def test_any_join_is_refused_or_makes_sense(fields: dict[str, Any]) -> None:
    try:
        join = Join.from_message(altered(JOIN, **fields))
    except BadMessage:
        return
    assert join.epoch >= 0
    assert math.isfinite(join.weight)
    assert (join.weight > 0) == (join.num_elements > 0)
    assert type(join.can_reduce) is bool
    assert Join.from_message(through_the_wire(join.to_message())) == join


@given(fields=st.dictionaries(st.sampled_from(sorted(BEGIN.fields)), PLAIN, min_size=1))
@settings(max_examples=150)
def test_any_group_is_refused_or_makes_sense(fields: dict[str, Any]) -> None:
    check_group(altered(BEGIN, **fields))


NUMBER = st.integers(-1, 12) | st.floats() | st.booleans() | st.integers(2**60, 2**64 - 1)
NAME = st.sampled_from(["x", "y", "z"]) | st.none()


@given(
    pairs=st.lists(st.tuples(NAME, NUMBER).map(list), max_size=4),
    triples=st.lists(st.tuples(NAME, NUMBER, NUMBER).map(list), max_size=3),
    num_elements=NUMBER,
)
@settings(max_examples=150)
def test_any_members_and_spans_are_refused_or_make_sense(pairs: Any, triples: Any, num_elements: Any) -> None:
    check_group(altered(BEGIN, members=pairs))
    check_group(altered(BEGIN, spans=triples, num_elements=num_elements))


def check_group(message: Message) -> None:
    """Refused, or fit to be reduced."""
    try:
        group = Group.from_message(message)
    except BadMessage:
        return
    peers = {member.peer for member in group.members}
    assert len(peers) == len(group.members)
    assert group.contributors
    assert is_tiling(group.spans, group.num_elements)
    assert {span.reducer for span in group.spans} <= peers
    assert all(type(edge) is int for span in group.spans for edge in (span.start, span.stop))

    assert all(member.weight > 0 for member in group.contributors)
    assert all(codec_by_name(name) for name in (group.result_codec, *(member.codec for member in group.members)))
    assert Group.from_message(through_the_wire(group.to_message())) == group


def test_a_mean_in_an_encoding_that_no_plan_has_is_refused() -> None:
    with pytest.raises(BadMessage, match="never one of a mean"):
        Group.from_message(replace(GROUP, result_codec="bfloat16").to_message())
