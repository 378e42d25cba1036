"""What a planned round moves over each link."""

from collab.averaging.link_load import planned_bytes
from collab.averaging.messages import Group, Member
from collab.averaging.plan import Span
from collab.types import Lineage, PeerId

A, B, C, HELPER = (PeerId(name) for name in ("a", "b", "c", "helper"))


def group(members: tuple[Member, ...], spans: tuple[Span, ...]) -> Group:
    return Group(
        round_id="r", epoch=3, lineage=Lineage("l"), num_elements=1000, leader=A, members=members, spans=spans,
        result_codec="float16",
    )  # fmt: skip


def test_bytes_of_a_round_by_hand() -> None:
    """``c`` is behind: it only wants the mean; ``helper`` only reduces; 4 bytes an element, of a mean 2, of ``b`` 2."""
    members = (
        Member(A, 8.0), Member(B, 8.0, codec="float16"), Member(C, 0.0, reduces=False),
        Member(HELPER, 0.0, receives=False),
    )  # fmt: skip
    moved = planned_bytes(group(members, (Span(A, 0, 300), Span(HELPER, 300, 1000))))
    assert moved == {
        A: (4 * 700 + 2 * 300 * 2, 2 * 300 + 2 * 700),
        B: (2 * 1000, 2 * 1000),
        C: (0, 2 * 1000),
        HELPER: (3 * 2 * 700, 4 * 700 + 2 * 700),
    }
    assert sum(up for up, _ in moved.values()) == sum(down for _, down in moved.values()), "what is sent arrives"


def test_who_is_alone_moves_nothing() -> None:
    assert planned_bytes(group((Member(A, 8.0),), (Span(A, 0, 1000),))) == {A: (0, 0)}
