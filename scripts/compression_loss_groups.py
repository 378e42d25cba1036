"""How the rounds of a run were really encoded: the groups that its peers were told of, and what they amount to."""

from collections import Counter
from dataclasses import dataclass, field

from collab.averaging.messages import ROUND_PROTOCOL, Group
from collab.net.base import Handler, Stream, Transport
from collab.net.wire import Message
from collab.types import PeerId


@dataclass(slots=True)
class Course:
    """What became of one run."""

    num_elements: int
    losses: list[float]
    """Training loss of each epoch, mean over all samples."""
    held_out_loss: float = 0.0
    groups: list[Group] = field(default_factory=list)
    """Of the rounds that committed, in order."""
    round_s: list[float] = field(default_factory=list)
    """Of these rounds, from joining to the verdict, virtual."""
    training_s: float = 0.0
    """Virtual, after the probes."""
    sent_bytes: int = 0
    """Of all peers in that time."""
    peers: list[PeerId] = field(default_factory=list)
    replicas_equal: bool = False
    """Whether all peers ended with the same parameters, bit by bit."""
    data_digest: str = ""
    """Of the first parameters and of the ids of all samples, in order."""

    def codecs_of(self, index: int) -> Counter[str]:
        """Rounds of one sender by the codec of its parts."""
        codecs = [{member.peer: member.codec for member in group.contributors} for group in self.groups]
        return Counter(found[self.peers[index]] for found in codecs)

    def result_codecs(self) -> Counter[str]:
        """Rounds by the codec of the means."""
        return Counter(group.result_codec for group in self.groups)

    def sent_fractions(self) -> dict[str, float]:
        """Of all elements that contributors sent to reducers, by codec; nobody encodes the span that it reduces."""
        sent: Counter[str] = Counter()
        for group in self.groups:
            for member in group.contributors:
                own = group.span_of(member.peer)
                sent[member.codec] += group.num_elements - (own.num_elements if own else 0)
        return {codec: count / sent.total() for codec, count in sorted(sent.items())}


class GroupWatch:
    """Implements ``Transport`` around another one: keeps the groups that its peer is told of."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.addresses, self.dial = inner.addresses, inner.dial
        self.groups: dict[str, Group] = {}
        """By round id."""

    @property
    def peer_id(self) -> PeerId:
        return self._inner.peer_id

    async def open(self, peer: PeerId, protocol: str, *, timeout_s: float) -> Stream:
        stream = await self._inner.open(peer, protocol, timeout_s=timeout_s)
        return _WatchedStream(stream, self.groups) if protocol == ROUND_PROTOCOL else stream

    async def serve(self, protocol: str, handler: Handler) -> None:
        await self._inner.serve(protocol, handler)


class _WatchedStream:
    """Implements ``Stream`` around a member's end of the stream to its leader."""

    def __init__(self, inner: Stream, groups: dict[str, Group]) -> None:
        self._inner, self._groups = inner, groups
        self.send, self.close = inner.send, inner.close

    @property
    def remote(self) -> PeerId:
        return self._inner.remote

    async def receive(self, *, timeout_s: float) -> Message:
        message = await self._inner.receive(timeout_s=timeout_s)
        if message.kind == "begin":
            group = Group.from_message(message)
            self._groups[group.round_id] = group
        return message
