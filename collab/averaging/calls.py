"""What leaders and peers say to each other before a round.

leader -> peer     call      a group for this epoch forms: are you coming?
peer -> leader     coming    in so many seconds | not at all
"""

import math
from dataclasses import dataclass

from collab.errors import BadMessage
from collab.net.wire import Message
from collab.types import Lineage

CALL_PROTOCOL = "collab/call/1"


@dataclass(frozen=True, slots=True)
class Call:
    """A leader asks a peer to come to the group of (epoch, lineage)."""

    epoch: int
    lineage: Lineage
    patience_s: float
    """So long the others will wait for a peer that is computing."""

    def to_message(self) -> Message:
        return Message("call", {"epoch": self.epoch, "lineage": self.lineage, "patience_s": self.patience_s})

    @classmethod
    def from_message(cls, message: Message) -> "Call":
        """Raises ``BadMessage`` for anything malformed."""
        call = cls(message.get("epoch", int), Lineage(message.get("lineage", str)), message.get("patience_s", float))
        if message.kind != "call" or not 0 <= call.patience_s < math.inf:
            raise BadMessage(f"{message.kind} instead of a call, with a patience of {call.patience_s} s")
        return call


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a peer answers to a call."""

    is_coming: bool
    comes_in_s: float = 0.0
    """If it is coming."""
    free_in_s: float = 0.0
    """When its microbatch will be done; who would be too late then may come before with what it has, or not at all."""

    def to_message(self) -> Message:
        fields = {"coming": self.is_coming, "comes_in_s": self.comes_in_s, "free_in_s": self.free_in_s}
        return Message("coming", fields)

    @classmethod
    def from_message(cls, message: Message) -> "Reply":
        """Raises ``BadMessage`` for anything malformed."""
        reply = cls(
            is_coming=message.get("coming", bool),
            comes_in_s=message.get("comes_in_s", float),
            free_in_s=message.get("free_in_s", float),
        )
        if not (0 <= reply.comes_in_s < math.inf and 0 <= reply.free_in_s < math.inf):
            raise BadMessage(f"a peer announces itself in {reply.comes_in_s} s, and is free in {reply.free_in_s} s")
        return reply

    def after(self, seconds: float) -> "Reply":
        """The same answer some time later."""
        comes_in_s, free_in_s = max(self.comes_in_s - seconds, 0.0), max(self.free_in_s - seconds, 0.0)
        return Reply(is_coming=self.is_coming, comes_in_s=comes_in_s, free_in_s=free_in_s)


NOT_COMING = Reply(is_coming=False)
