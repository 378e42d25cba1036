"""What a peer keeps of rounds that are over is of those who are still there."""

from collab.averaging.idle_streams import UNUSED_S, IdleStreams
from collab.types import PeerId
from tests.fakes import FakeNetwork, FakeStream

A, B = PeerId("a"), PeerId("b")


class Story:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.idle = IdleStreams(lambda: self.now_s)

    def stream(self, peer: PeerId) -> FakeStream:
        return FakeStream(FakeNetwork(), PeerId("me"), peer, "collab/parts/1")


def test_what_was_kept_is_taken_once() -> None:
    story = Story()
    first, second, other = story.stream(A), story.stream(A), story.stream(B)
    for stream in (first, second, other):
        story.idle.keep(stream)
    assert {story.idle.take(A), story.idle.take(A)} == {first, second}
    assert story.idle.take(A) is None
    assert story.idle.take(B) is other
    assert not any(stream.is_closed for stream in (first, second, other))


def test_streams_to_those_who_are_gone_are_closed_and_not_kept_for_ever() -> None:
    story = Story()
    gone, here = [story.stream(A), story.stream(A)], story.stream(B)
    for stream in (*gone, here):
        story.idle.keep(stream)
    for _ in range(3):
        story.now_s += UNUSED_S / 2
        assert story.idle.take(B) is here
        story.idle.keep(here)
    assert all(stream.is_closed for stream in gone)
    assert not here.is_closed
    assert story.idle.take(A) is None
    assert len(story.idle) == 1


def test_however_many_strangers_come_only_those_of_late_are_kept() -> None:
    story = Story()
    for number in range(1000):
        story.now_s += UNUSED_S / 10
        story.idle.keep(story.stream(PeerId(f"stranger-{number}")))
        assert len(story.idle) <= 11
