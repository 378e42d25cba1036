"""What a member brings to a successor, and what no honest member brings."""

from dataclasses import replace
from typing import Any

import pytest

from collab.averaging.division import Division, Job
from collab.averaging.messages import Group
from collab.averaging.plan import SMALLEST_PART_ELEMENTS, Span
from collab.averaging.succession import Resume
from collab.errors import BadMessage
from collab.net.wire import Message
from collab.types import PeerId
from tests.averaging.course_lab import A, B, C, make_group
from tests.fakes import through_the_wire

PART = SMALLEST_PART_ELEMENTS
LENGTH = 9 * PART
GROUP: Group = replace(
    make_group(),
    num_elements=LENGTH,
    part_elements=PART,
    spans=(Span(A, 0, 3 * PART), Span(B, 3 * PART, 6 * PART), Span(C, 6 * PART, LENGTH)),
)
DIVISION = Division.of(GROUP.spans, PART)
STRANGER = PeerId("stranger")


def resume(**changes: Any) -> Message:
    """Of a round whose first job was given to others, with ``changes``."""
    mended = DIVISION.mended([0], {B: (1,)}, {B: 1.0, C: 1.0})
    assert mended is not None
    fields: dict[str, Any] = {
        "group": GROUP.to_message().fields,
        "generation": 1,
        "jobs": mended.to_rows(),
        "promised": 1,
        "gone": [A, STRANGER],
    }
    return through_the_wire(Message("resume", fields | changes))


def test_a_member_brings_the_round_as_it_knows_it() -> None:
    received = Resume.from_message(resume())
    assert received.group == GROUP
    assert received.division.continues(DIVISION)
    assert received.division.is_sound(LENGTH)
    assert (received.generation, received.promised, received.gone) == (1, 1, frozenset((A,)))


def rows(*jobs: Job) -> list[list[object]]:
    return Division(jobs, PART).to_rows()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[(field, None) for field in ("group", "generation", "jobs", "promised", "gone")],
        *[("generation", value) for value in (-1, "1", True)],
        *[("promised", value) for value in (-1, 1 << 53)],
        ("jobs", []),
        ("jobs", DIVISION.to_rows()[:2]),
        ("jobs", rows(Job(Span(A, 0, LENGTH), 9))),
        ("jobs", rows(Job(Span(B, 0, 3 * PART), 3), *DIVISION.jobs[1:])),
        ("jobs", rows(*DIVISION.jobs[1:], DIVISION.jobs[0])),
        ("jobs", rows(replace(DIVISION.jobs[0], holder=STRANGER), *DIVISION.jobs[1:])),
        ("jobs", rows(replace(DIVISION.jobs[0], valid=0), *DIVISION.jobs[1:], Job(Span(STRANGER, 0, 3 * PART), 3))),
        ("jobs", rows(replace(DIVISION.jobs[0], valid=0), *DIVISION.jobs[1:], Job(Span(STRANGER, 0, 3 * PART), 3, B))),
        ("jobs", rows(*DIVISION.jobs, Job(Span(A, 0, 1 << 62), 1 << 49))),
    ],
)
def test_nonsense_is_a_bad_message(field: str, value: Any) -> None:
    with pytest.raises(BadMessage):
        Resume.from_message(resume(**{field: value}))
