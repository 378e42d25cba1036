"""What a round moves over each member's link, as it was planned."""

from collections import Counter, defaultdict

from collab.averaging.messages import Group
from collab.compression.base import codec_by_name
from collab.types import PeerId


def planned_bytes(group: Group) -> dict[PeerId, tuple[int, int]]:
    """Bytes of numbers that each member sends and receives if all goes as planned; heads of messages are left out.

    Contributors send each reducer its span; a reducer returns the mean of its span to all who want it. What a member
    has for itself moves over no link. Adds up by encoding and reducer, so that it costs little for 256 members.
    """
    contributing = Counter(member.codec for member in group.contributors)
    wanting = sum(member.receives for member in group.members)
    own, of_all = _bytes_by_reducer(group, {*contributing, group.result_codec})
    moved = {}
    for member in group.members:
        mine = own[member.peer]
        gives, wants = member.weight > 0, member.receives
        returned_to = wanting - wants
        up = (of_all[member.codec] - mine[member.codec] if gives else 0) + returned_to * mine[group.result_codec]
        down = sum(number * mine[codec] for codec, number in contributing.items())
        down -= mine[member.codec] if gives else 0
        down += of_all[group.result_codec] - mine[group.result_codec] if wants else 0
        moved[member.peer] = (up, down)
    return moved


def _bytes_by_reducer(group: Group, codecs: set[str]) -> tuple[dict[PeerId, Counter[str]], Counter[str]]:
    """Length of what each one reduces in each encoding, and of the whole vector."""
    own: dict[PeerId, Counter[str]] = defaultdict(Counter)
    of_all: Counter[str] = Counter()
    for name in codecs:
        codec = codec_by_name(name)
        for span in group.spans:
            length = codec.encoded_bytes(span.num_elements)
            own[span.reducer][name] += length
            of_all[name] += length
    return own, of_all
