"""The messages of a round as values, and every check that needs no other knowledge.

member -> leader   join      who I am, what I bring
leader -> member   welcome   wait for the group (a wait each half second shows that we are there) | refused | superseded
leader -> member   begin     members, weights, spans: the round is fixed
member -> leader   working   I am there, and have got so far; from the leader: wait
member -> leader   resume    (to a successor) our leader is lost: lead on with this round
leader -> member   lead      (a successor) follow this ballot
member -> leader   promised  I do; and this is what I have voted for
member -> leader   complaint another member is silent, gone, or sends what cannot be used
leader -> member   halt      these are gone: take nothing more of these jobs, and say how much you have (held) | dropped
leader -> member   mend      the jobs to go on with
member -> leader   done      digests of all I hold, and who is missing in it
leader -> member   prepare   the record that is to be: vote (vote, signed)
leader -> member   commit    the record, certified by a quorum of votes | abort
member -> reducer  parts     round id and job, then one message a part; the reducer answers with one result a part
member -> member   verdict?  what became of this round?
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from collab.averaging.agreement import MAX_MARK_CHARACTERS, MAX_MEMBERS as MAX_MEMBERS, MAX_WEIGHT
from collab.averaging.ballots import Ballot
from collab.averaging.contribution_plan import RESULT_CODECS
from collab.averaging.plan import LARGEST_PART_ELEMENTS, PART_ELEMENTS, SMALLEST_PART_ELEMENTS, Span, is_rate, is_tiling
from collab.averaging.uplink import SMALLEST_PARTS
from collab.compression.base import all_codecs
from collab.errors import BadMessage
from collab.net.wire import Message
from collab.types import Lineage, PeerId, one_peer_id

ROUND_PROTOCOL = "collab/round/4"
PARTS_PROTOCOL = "collab/parts/2"
VERDICT_PROTOCOL = "collab/verdict/3"

MAX_ELEMENTS = 1 << 36
MAX_BALLOT = 1 << 53
MAX_ROWS = 256
MAX_ROWS_S = 120.0
"""Until the last window of a round is over: a leader cannot hold a round open for longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A peer asks a leader for a place in the group of (epoch, lineage)."""

    fingerprint: str
    epoch: int
    lineage: Lineage
    num_elements: int
    """Length of the vector; 0: brings none, reduces only."""
    weight: float
    """Samples behind the vector; 0: brings none, reduces only."""
    can_reduce: bool
    up_bytes_per_s: float = 0.0
    """What its link was seen to carry; 0: not known."""
    up_is_limit: bool = False
    """Whether the link was full then; if not, it carries at least so much."""
    down_bytes_per_s: float = 0.0
    down_is_limit: bool = False
    promised: int = 0
    """Number of the highest ballot about this history that it has promised; 0: none."""
    terms: str = ""
    """Mark of the organiser's orders that it knows of for this step; empty: none."""
    rows: int = 1
    """Windows of the vector, each a row of equal length."""
    farthest_s: float = 0.0
    """With several: a round trip to the farthest peer that it knows, 0: none; as its parts have shown."""

    def to_message(self) -> Message:
        rows = {"rows": self.rows, "farthest_s": self.farthest_s} if self.rows > 1 else {}
        fields = {
            "fingerprint": self.fingerprint,
            "epoch": self.epoch,
            "lineage": self.lineage,
            "num_elements": self.num_elements,
            "weight": self.weight,
            "can_reduce": self.can_reduce,
            "up_bytes_per_s": self.up_bytes_per_s,
            "up_is_limit": self.up_is_limit,
            "down_bytes_per_s": self.down_bytes_per_s,
            "down_is_limit": self.down_is_limit,
            "promised": self.promised,
            "terms": self.terms,
        }
        return Message("join", fields | rows)

    @classmethod
    def from_message(cls, message: Message) -> "Join":
        """Raises ``BadMessage`` for anything malformed; whether the peer may join is the leader's question."""
        join = cls(
            fingerprint=message.get("fingerprint", str),
            epoch=message.get("epoch", int),
            lineage=Lineage(message.get("lineage", str)),
            num_elements=message.get("num_elements", int),
            weight=message.get("weight", float),
            can_reduce=message.get("can_reduce", bool),
            up_bytes_per_s=message.get("up_bytes_per_s", float),
            up_is_limit=message.get("up_is_limit", bool),
            down_bytes_per_s=message.get("down_bytes_per_s", float),
            down_is_limit=message.get("down_is_limit", bool),
            promised=message.get("promised", int),
            terms=message.get("terms", str),
            rows=message.get("rows", int) if "rows" in message.fields else 1,
            farthest_s=message.get("farthest_s", float) if "rows" in message.fields else 0.0,
        )
        if not 0 < join.rows <= MAX_ROWS or join.num_elements % join.rows or not 0 <= join.farthest_s < math.inf:
            raise BadMessage(f"join with {join.num_elements} elements in {join.rows} rows")
        if join.epoch < 0 or not 0 <= join.num_elements <= MAX_ELEMENTS:
            raise BadMessage(f"join with epoch {join.epoch} and {join.num_elements} elements")
        if not 0 <= join.promised < MAX_BALLOT - 1:
            raise BadMessage(f"join has promised ballot {join.promised}")
        if not 0 <= join.weight <= MAX_WEIGHT or (join.weight > 0) != (join.num_elements > 0):
            raise BadMessage(f"join with weight {join.weight} for {join.num_elements} elements")
        if not (is_rate(join.up_bytes_per_s) and is_rate(join.down_bytes_per_s)):
            raise BadMessage(f"join with rates of {join.up_bytes_per_s} and {join.down_bytes_per_s} bytes/s")
        return join


@dataclass(frozen=True, slots=True)
class Member:
    """One peer of a group."""

    peer: PeerId
    weight: float
    """Samples; 0: nothing of it goes into the mean."""
    codec: str = "none"
    """Of the parts that it sends."""
    receives: bool = True
    """Whether it wants the mean."""
    reduces: bool = True
    """Whether others can dial it, and give it spans."""


@dataclass(frozen=True, kw_only=True)  # no slots: who contributes is kept beside its fields
class Group:
    """A closed group: who takes part, with what weight, and who reduces what."""

    round_id: str
    epoch: int
    lineage: Lineage
    num_elements: int
    leader: PeerId
    members: tuple[Member, ...]
    spans: tuple[Span, ...]
    part_elements: int = PART_ELEMENTS
    """Length of a part; the last one of a span may be shorter."""
    result_codec: str = "none"
    """Of the means, the same bytes for all."""
    electors: tuple[PeerId, ...] = ()
    """Who decides what follows this history; none: the members."""
    ballot_number: int = 1
    expected_s: float = 0.0
    """How long the plan takes, by the rates that were measured; 0: none was."""
    terms: str = ""
    """Mark of the organiser's orders that count for this step; empty: none does."""
    rows: int = 1
    """Windows that the vector has a row of equal length for."""
    row_s: float = 0.0
    """From the end of one window to the end of the next; the first ends with BEGIN."""

    @property
    def row_elements(self) -> int:
        """Length of a row: of the vector, unless there are several."""
        return self.num_elements // self.rows

    @property
    def queue_s(self) -> float:
        """So long a word stands at least behind the parts of its sender, on the slowest link; 0: no rate is known."""
        longest = max(span.num_elements for span in self.spans)
        return SMALLEST_PARTS * self.expected_s * min(self.part_elements, longest) / self.num_elements

    @property
    def reducers(self) -> tuple[PeerId, ...]:
        """Members that can reduce."""
        return tuple(member.peer for member in self.members if member.reduces)

    @property
    def ballot(self) -> Ballot:
        """This attempt among all that were made to continue the same history."""
        return Ballot(self.ballot_number, self.leader)

    @property
    def successors(self) -> tuple[PeerId, ...]:
        """Who leads on when the leader is lost, in this order: those that only help come first."""
        able = [member for member in self.members if member.reduces and member.peer != self.leader]
        return tuple(member.peer for member in sorted(able, key=lambda member: member.receives))

    @cached_property
    def contributors(self) -> tuple[Member, ...]:  # members whose vector goes into the mean
        return tuple(member for member in self.members if member.weight > 0)

    @property
    def digest(self) -> str:  # 16 hex digits that name all of this in BEGIN and in logs
        return plan_digest(self._fields())

    def span_of(self, peer: PeerId) -> Span | None:
        """What ``peer`` reduces, if anything."""
        return next((span for span in self.spans if span.reducer == peer), None)

    def to_message(self) -> Message:
        fields = self._fields()
        return Message("begin", fields | {"digest": plan_digest(fields)})

    def _fields(self) -> dict[str, Any]:
        fields = {
            "round_id": self.round_id,
            "epoch": self.epoch,
            "lineage": self.lineage,
            "num_elements": self.num_elements,
            "leader": self.leader,
            "members": [[m.peer, m.weight, m.codec, m.receives, m.reduces] for m in self.members],
            "spans": [[span.reducer, span.start, span.stop] for span in self.spans],
            "part_elements": self.part_elements,
            "result_codec": self.result_codec,
            "electors": list(self.electors),
            "ballot": self.ballot_number,
            "expected_s": self.expected_s,
            "terms": self.terms,
        }
        if self.rows > 1:
            fields |= {"rows": self.rows, "row_s": self.row_s}
        return fields

    @classmethod
    def from_message(cls, message: Message) -> "Group":
        """Raises ``BadMessage`` when malformed, or when members, weights or spans make no sense together."""
        members = message.rows("members", str, float, str, bool, bool)
        spans = message.rows("spans", str, int, int)
        group = cls(
            round_id=message.get("round_id", str),
            epoch=message.get("epoch", int),
            lineage=Lineage(message.get("lineage", str)),
            num_elements=message.get("num_elements", int),
            leader=PeerId(message.get("leader", str)),
            members=tuple(Member(one_peer_id(row[0]), *row[1:]) for row in members),
            spans=tuple(Span(PeerId(reducer), start, stop) for reducer, start, stop in spans),
            part_elements=message.get("part_elements", int),
            result_codec=message.get("result_codec", str),
            electors=tuple(one_peer_id(peer) for peer in message.texts("electors")),
            ballot_number=message.get("ballot", int),
            expected_s=message.get("expected_s", float),
            terms=message.get("terms", str),
            rows=message.get("rows", int) if "rows" in message.fields else 1,
            row_s=message.get("row_s", float) if "rows" in message.fields else 0.0,
        )
        group._check()
        if group.digest != message.get("digest", str):
            raise BadMessage("begin has another digest than what came of it: its leader plans differently")
        return group

    def _check(self) -> None:
        peers = {member.peer for member in self.members}
        if len(peers) != len(self.members) or not 0 < len(peers) <= MAX_MEMBERS:
            raise BadMessage(f"begin names {len(self.members)} members, {len(peers)} different ones")
        if self.epoch < 0 or not 0 < self.num_elements <= MAX_ELEMENTS:
            raise BadMessage(f"begin with epoch {self.epoch} and {self.num_elements} elements")
        self._check_rows()
        smallest = SMALLEST_PART_ELEMENTS if self.rows == 1 else min(SMALLEST_PART_ELEMENTS, self.row_elements)
        if not smallest <= self.part_elements <= LARGEST_PART_ELEMENTS:
            raise BadMessage(f"begin cuts the vector into parts of {self.part_elements} elements")
        if any(not 0 <= member.weight <= MAX_WEIGHT for member in self.members):
            raise BadMessage("begin has a weight that is negative, absurd or not finite")
        if not self.contributors or not is_tiling(self.spans, self.num_elements):
            raise BadMessage("begin has no contributor, or spans that do not cover the vector")
        known = {codec.name for codec in all_codecs()}
        if self.result_codec not in RESULT_CODECS or not {member.codec for member in self.members} <= known:
            raise BadMessage("begin names a codec that is not known here, or that is never one of a mean")
        if any(member.weight > 0 and not member.receives for member in self.members):
            raise BadMessage("begin has a contributor that does not want the mean")
        if not {span.reducer for span in self.spans} <= set(self.reducers):
            raise BadMessage("begin has a reducer that is no member, or cannot be one")
        if not 0 < self.ballot_number < MAX_BALLOT or not 0 <= self.expected_s < math.inf:
            raise BadMessage(f"begin with ballot {self.ballot_number}, expected to take {self.expected_s} s")
        if len(self.terms) > MAX_MARK_CHARACTERS:
            raise BadMessage(f"begin with terms of {len(self.terms)} characters")
        if len(set(self.electors)) != len(self.electors) or len(self.electors) > MAX_MEMBERS:
            raise BadMessage("begin names an elector twice, or too many")

    def _check_rows(self) -> None:
        """A part is of one row, wherever work is divided anew."""
        is_sound = 0 < self.rows <= MAX_ROWS and self.num_elements % self.rows == 0
        if not is_sound or not 0 <= self.rows * self.row_s <= MAX_ROWS_S:
            raise BadMessage(f"begin with {self.rows} rows of {self.num_elements} elements, {self.row_s} s apart")
        length = self.part_elements
        if self.rows > 1 and (length < 1 or self.row_elements % length or any(s.start % length for s in self.spans)):
            raise BadMessage(f"begin has parts of {length} elements that are of several rows")


def plan_digest(fields: Mapping[str, Any]) -> str:
    """16 hex digits of the fields of BEGIN, so that all members know that they follow the same plan."""
    text = repr([value for name, value in sorted(fields.items()) if name != "digest"])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
